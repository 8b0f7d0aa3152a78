"""What the names of classes give away: several labels in one cell, measurements, one class per picture.

A column of classes could mean something else without anyone noticing. A name may contain spaces and commas ("french
horn", "tench, Tinca tinca"); what gives away several labels in a cell is that a few of them are combined into many
classes.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.registry import LabelKind, task_of
from vitrail.wording import counted

SEPARATORS = {",": "commas", ";": "semicolons", "|": "bars", " ": "spaces"}
LISTS = {"[": "]", "{": "}", "(": ")"}
AROUND = " []{}()'\""  # of a list that was written as text
FEWEST_CLASSES = 10  # from which one class per picture is no accident
PER_CLASS = 2  # pictures of a class on average, below which nothing can be learned and measured


@dataclass(frozen=True)
class Doubt:
    """Why the labels are probably not the ones to learn."""

    what: str
    example: str
    detail: str  # what was seen, and what to do
    certain: bool  # as far as names can tell
    kind: LabelKind | None = None  # what the labels probably are instead
    separator: str | None = None  # of several in one cell


def doubt_labels(classes: Sequence[str], pictures: int) -> Doubt | None:
    """Why the classes of a data set with this many pictures look wrong, if they do."""
    few = len(classes) >= FEWEST_CLASSES and pictures < PER_CLASS * len(classes)
    seen = f"{counted(len(classes), 'class')} for {counted(pictures, 'picture')}"
    numbers = [_number(name) for name in classes]
    if any(number % 1 for number in numbers) and not any(map(math.isnan, numbers)):
        advice = f"if they are quantities, pass `task={task_of('values')}`"
        return Doubt("the labels are measurements", classes[0], f"{seen}; {advice}", few, "values")
    for separator, called in SEPARATORS.items():
        if (labels := _combined(classes, separator)) is not None:
            example = next(name for name in classes if separator in name)
            combined = (
                f"{len(labels)} labels, separated by {called}, are combined into {counted(len(classes), 'class')}"
            )
            advice = f"to learn each label by itself, pass `task={task_of('set')}`"
            certain = separator != " " or _is_list(classes)
            return Doubt("several labels in one cell", example, f"{combined}; {advice}", certain, "set", separator)
    if not few:
        return None
    advice = "a class needs several pictures: check that this is the right column"
    return Doubt("nearly one class per picture", classes[0], f"{seen}; {advice}", certain=True)


def _number(name: str) -> float:
    try:
        return float(name) if math.isfinite(float(name)) else math.nan
    except ValueError:
        return math.nan


def _combined(classes: Sequence[str], separator: str) -> set[str] | None:
    """The labels that the classes are combined from, if that is how they came about: there are fewer of them."""
    cells = [_parts(name, separator) for name in classes]
    several = sum(len(parts) > 1 for parts in cells)
    labels = {part for parts in cells for part in parts}
    if separator == " ":  # as in many names: there must be more to it
        usual = 2 * several >= len(classes)
        return labels if len(labels) < len(classes) and (usual or _is_list(classes)) else None
    fewer = len(labels) < len(classes) or (len(labels) == len(classes) and several > 1)
    return labels if several and fewer else None


def _is_list(classes: Sequence[str]) -> bool:
    """Whether words separated by spaces can hardly be names: in another order, or each a class of its own."""
    cells = [_parts(name, " ") for name in classes]
    several = [parts for parts in cells if len(parts) > 1]
    alone = {parts[0] for parts in cells if len(parts) == 1}
    reordered = len({frozenset(parts) for parts in several}) < len(several)
    return reordered or sum(alone.issuperset(parts) for parts in several) > 1


def _parts(name: str, separator: str) -> list[str]:
    return [part.strip(AROUND) for part in name.split(separator) if part.strip(AROUND)]


def find_separator(cells: Sequence[str]) -> str | None:
    """What stands between the labels of cells that hold several: judging by combinations, or else what is commonest."""
    for separator in SEPARATORS:
        if _combined(cells, separator) is not None:
            return separator
    counts = {separator: sum(separator in cell for cell in cells) for separator in SEPARATORS if separator != " "}
    best = max(counts, key=lambda separator: counts[separator])
    return best if counts[best] else None


def split_cell(cell: str, separator: str | None) -> tuple[str, ...]:
    """The labels of a cell, each once; of a list that was written as text, without its brackets and quotes."""
    text = cell.strip()
    if text and LISTS.get(text[0]) == text[-1]:
        parts = _list_items(text[1:-1].strip(), separator or ",")
    else:
        parts = text.split(separator) if separator else [text]
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _list_items(text: str, separator: str) -> list[str]:
    quote = text[0] if text[:1] in ("'", '"') else '"'
    if len(separator) > 1:
        return [part.strip().strip(quote) for part in text.split(separator)]
    rows = csv.reader([text.replace("\n", " ")], delimiter=separator, quotechar=quote, skipinitialspace=True)
    return [item for row in rows for item in row]

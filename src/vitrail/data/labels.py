"""What the names of classes give away: several labels in one cell, measurements, one class per picture.

vitrail learns one label per picture, and could train on a table that means something else without noticing. A name may
contain spaces and commas ("french horn", "tench, Tinca tinca"); what gives away several labels in a cell is that a few
of them are combined into many classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitrail.wording import counted

SEPARATORS = {",": "commas", ";": "semicolons", "|": "bars", " ": "spaces"}
AROUND = " []{}()'\""  # of a list that was written as text
FEWEST_CLASSES = 10  # from which one class per picture is no accident
PER_CLASS = 2  # pictures of a class on average, below which nothing can be learned and measured
ONE_LABEL = "vitrail learns one label per picture"


@dataclass(frozen=True)
class Doubt:
    """Why the labels are probably not the ones to learn."""

    what: str
    example: str
    detail: str  # what was seen, and what to do
    certain: bool  # as far as names can tell


def doubt_labels(classes: Sequence[str], pictures: int) -> Doubt | None:
    """Why the classes of a data set with this many pictures look wrong, if they do."""
    few = len(classes) >= FEWEST_CLASSES and pictures < PER_CLASS * len(classes)
    seen = f"{counted(len(classes), 'class')} for {counted(pictures, 'picture')}"
    numbers = [_number(name) for name in classes]
    if any(number % 1 for number in numbers) and not any(map(math.isnan, numbers)):
        advice = f"{ONE_LABEL}, not quantities: turn the numbers into ranges, such as 0-10 and 10-20"
        return Doubt("the labels are measurements", classes[0], f"{seen}; {advice}", certain=few)
    for separator, called in SEPARATORS.items():
        if (labels := _combined(classes, separator)) is not None:
            example = next(name for name in classes if separator in name)
            combined = (
                f"{len(labels)} labels, separated by {called}, are combined into {counted(len(classes), 'class')}"
            )
            advice = f"{ONE_LABEL}: keep one label in each cell"
            certain = separator != " " or _is_list(classes)
            return Doubt("several labels in one cell", example, f"{combined}; {advice}", certain)
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

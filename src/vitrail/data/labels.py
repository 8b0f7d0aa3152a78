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


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """Why labels are probably not what is to be learned."""

    what: str
    example: str
    detail: str  # what was seen, and what to do
    certain: bool  # as far as names can tell


def doubt_labels(classes: Sequence[str], pictures: int) -> Doubt | None:
    """What is strange about the classes of so many pictures, if anything is."""
    few = len(classes) >= FEWEST_CLASSES and pictures < PER_CLASS * len(classes)
    seen = f"{counted(len(classes), 'class')} for {counted(pictures, 'picture')}"
    numbers = [_number(name) for name in classes]
    if any(number % 1 for number in numbers) and not any(map(math.isnan, numbers)):
        return Doubt(
            what="the labels are measurements",
            example=classes[0],
            detail=f"{seen}; {ONE_LABEL}, not quantities: turn the numbers into ranges, such as 0-10 and 10-20",
            certain=few,
        )
    for separator, called in SEPARATORS.items():
        if (labels := _combined(classes, separator)) is not None:
            return Doubt(
                what="several labels in one cell",
                example=next(name for name in classes if separator in name),
                detail=f"{len(labels)} labels, separated by {called}, are combined into "
                f"{counted(len(classes), 'class')}; {ONE_LABEL}: keep one label in each cell",
                certain=separator != " " or _is_list(classes),
            )
    if not few:
        return None
    return Doubt(
        what="nearly one class per picture",
        example=classes[0],
        detail=f"{seen}; a class needs several pictures: is it the right column",
        certain=True,
    )


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

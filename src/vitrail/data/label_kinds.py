"""What the label of a picture can be: a class, a set of labels, values, or nothing; how each is counted and written.

Labels are arrays with a row for each picture: int64 (N,) classes, uint8 (N, L) zeros and ones, float32 (N, K) values
in the user's units, or (N, 0) nothing. What depends on the kind is here, so that no other code asks for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from vitrail.registry import LabelKind
from vitrail.rng import Integers

Labels = np.ndarray[Any, np.dtype[Any]]


class Labelling(ABC):
    """One kind of labels; `names` are those of the model's outputs."""

    noun: str  # what an output stands for
    what: str  # the labels of a data set, in messages
    fewest = 1  # outputs

    @abstractmethod
    def fits(self, labels: Labels, num_outputs: int) -> bool:
        """Whether an array holds labels of this kind."""

    @abstractmethod
    def counts(self, labels: Labels, num_outputs: int) -> Integers:
        """The pictures that have each class, label or value."""

    def missing(self, labels: Labels, names: Sequence[str]) -> list[str]:
        """What no picture has."""
        counts = self.counts(labels, len(names))
        return [name for name, count in zip(names, counts, strict=True) if not count]

    @abstractmethod
    def cell(self, row: Any, names: Sequence[str]) -> str:
        """The label of one picture as a cell of split.csv."""

    @abstractmethod
    def parse(self, cells: Sequence[str], names: Sequence[str]) -> Labels:
        """The labels that cells stand for; ValueError if one of them stands for none."""

    @abstractmethod
    def used(self, cells: Iterable[str], names: Sequence[str]) -> set[str]:
        """The names that occur in cells."""

    @abstractmethod
    def caption(self, row: Any, names: Sequence[str]) -> str:
        """The label of one picture, for people."""

    @abstractmethod
    def identity(self, row: Any) -> Hashable:
        """What is equal for equal labels."""


class OneClass(Labelling):
    """Each picture has one class: its index."""

    noun, what, fewest = "class", "one class per picture", 2

    def fits(self, labels: Labels, num_outputs: int) -> bool:
        return labels.ndim == 1

    def counts(self, labels: Labels, num_outputs: int) -> Integers:
        return np.bincount(labels, minlength=num_outputs)

    def cell(self, row: Any, names: Sequence[str]) -> str:
        return names[int(row)]

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> Labels:
        places = {name: place for place, name in enumerate(names)}
        return np.array([_find(places, cell) for cell in cells], dtype=np.int64)

    def used(self, cells: Iterable[str], names: Sequence[str]) -> set[str]:
        return set(cells)

    def caption(self, row: Any, names: Sequence[str]) -> str:
        return names[int(row)]

    def identity(self, row: Any) -> Hashable:
        return int(row)


class LabelSet(Labelling):
    """Each picture has any number of labels: 0 or 1 for each."""

    noun, what = "label", "several labels per picture"

    def fits(self, labels: Labels, num_outputs: int) -> bool:
        stored = labels.dtype == np.uint8 and labels.shape[1:] == (num_outputs,)
        return stored and (not labels.size or int(labels.max()) <= 1)

    def counts(self, labels: Labels, num_outputs: int) -> Integers:
        return labels.sum(axis=0, dtype=np.int64)

    def cell(self, row: Any, names: Sequence[str]) -> str:
        return "|".join(_escape(names[place]) for place in np.flatnonzero(row).tolist())

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> Labels:
        return encode_sets(map(split_names, cells), names)

    def used(self, cells: Iterable[str], names: Sequence[str]) -> set[str]:
        return {name for cell in set(cells) for name in split_names(cell)}

    def caption(self, row: Any, names: Sequence[str]) -> str:
        return ", ".join(names[place] for place in np.flatnonzero(row).tolist()) or "no label"

    def identity(self, row: Any) -> Hashable:
        return tuple(np.flatnonzero(row).tolist())


class Values(Labelling):
    """Each picture has the same number of measured values."""

    noun, what = "value", "numbers"

    def fits(self, labels: Labels, num_outputs: int) -> bool:
        stored = labels.dtype == np.float32 and labels.shape[1:] == (num_outputs,)
        return stored and bool(np.isfinite(labels).all())

    def counts(self, labels: Labels, num_outputs: int) -> Integers:
        return np.full(num_outputs, len(labels), dtype=np.int64)

    def cell(self, row: Any, names: Sequence[str]) -> str:
        return "|".join(map(str, np.asarray(row, dtype=np.float32)))  # the shortest text that gives the same float32

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> Labels:
        rows = [[float(part) for part in cell.split("|")] for cell in cells]
        wrong = next((cell for cell, row in zip(cells, rows, strict=True) if len(row) != len(names)), None)
        if wrong is not None:
            raise ValueError(wrong)
        return np.array(rows, dtype=np.float32).reshape(-1, len(names))

    def used(self, cells: Iterable[str], names: Sequence[str]) -> set[str]:
        return set(names)

    def caption(self, row: Any, names: Sequence[str]) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in zip(names, row, strict=True))

    def identity(self, row: Any) -> Hashable:
        return tuple(np.asarray(row).tolist())


class Unlabelled(Labelling):
    """Pictures without labels, for what needs none."""

    noun, what, fewest = "label", "no labels", 0

    def fits(self, labels: Labels, num_outputs: int) -> bool:
        return labels.shape[1:] == (0,) and num_outputs == 0

    def counts(self, labels: Labels, num_outputs: int) -> Integers:
        return np.zeros(0, dtype=np.int64)

    def cell(self, row: Any, names: Sequence[str]) -> str:
        return ""

    def parse(self, cells: Sequence[str], names: Sequence[str]) -> Labels:
        return np.zeros((len(cells), 0), dtype=np.float32)

    def used(self, cells: Iterable[str], names: Sequence[str]) -> set[str]:
        return set()

    def caption(self, row: Any, names: Sequence[str]) -> str:
        return ""

    def identity(self, row: Any) -> Hashable:
        return ()


LABELLINGS: dict[LabelKind, Labelling] = {
    "class": OneClass(),
    "set": LabelSet(),
    "values": Values(),
    "none": Unlabelled(),
}


def as_labels(labels: Sequence[Any] | Labels) -> Labels:
    """Labels as they are stored: a row of a matrix, or a whole number, for each picture."""
    array = np.asarray(labels)
    if array.ndim != 2:
        return array.astype(np.int64, copy=False)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.uint8, copy=False)


def encode_sets(rows: Iterable[Iterable[str]], names: Sequence[str]) -> Labels:
    """Labels by their names as zeros and ones; ValueError for one that is not among `names`."""
    places = {name: place for place, name in enumerate(names)}
    listed = list(rows)
    pairs = [(row, _find(places, name)) for row, some in enumerate(listed) for name in some]
    matrix = np.zeros((len(listed), len(names)), dtype=np.uint8)
    if pairs:
        matrix[tuple(np.array(pairs).T)] = 1
    return matrix


def split_names(cell: str) -> list[str]:
    """The labels of a cell of split.csv: separated by |; in a name, a backslash stands before these two."""
    names = [""]
    signs = iter(cell)
    for sign in signs:
        if sign == "|":
            names.append("")
        else:
            names[-1] += next(signs, "") if sign == "\\" else sign
    return names if cell else []


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace("|", "\\|")


def _find(places: dict[str, int], name: str) -> int:
    if name not in places:
        raise ValueError(name)
    return places[name]

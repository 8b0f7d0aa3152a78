"""From the columns of a table to labels: what they mean, if nobody says, and the pictures' labels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from vitrail.data.config import DataConfig
from vitrail.data.label_kinds import LABELLINGS, Labels, encode_sets
from vitrail.data.labels import SEPARATORS, doubt_labels, find_separator, split_cell
from vitrail.data.source import align_labels
from vitrail.errors import DataError, shorten
from vitrail.registry import LabelKind, task_of
from vitrail.rng import Integers

LARGEST = float(np.finfo(np.float32).max)
FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}


@dataclass(frozen=True, kw_only=True)
class LabelColumns:
    """The labels of all rows."""

    kind: LabelKind
    rows: Sequence[Any]  # of each, the name of its class, a tuple of names, or a tuple of numbers
    outputs: tuple[str, ...] = ()  # the names of values, or of labels that have a column each
    assumed: tuple[str, ...] = ()  # what was chosen, a sentence each

    @property
    def task(self) -> str:
        return task_of(self.kind)

    def strata(self) -> Sequence[str] | Labels:
        """What splits are balanced by."""
        if self.kind == "class":
            return self.rows
        return self.table(self.outputs or tuple(sorted({name for row in self.rows for name in row})))

    def encode(self, where: str, parts: Mapping[str, Integers]) -> tuple[tuple[str, ...], Labels]:
        """The names of the outputs, which the splits must agree on, and the labels of all rows."""
        if self.outputs or self.kind == "none":
            return self.outputs, self.table(self.outputs)
        used = {
            split: [name for index in indices.tolist() for name in self._names(index)]
            for split, indices in parts.items()
        }
        classes = align_labels(where, used)
        return classes, self.table(classes)

    def cell(self, index: int) -> str:
        """The label of a row as split.csv has it."""
        if self.kind == "class":
            return self.rows[index]
        names = self.outputs or self._names(index)
        row = self.rows[index] if self.kind == "values" else [name in self.rows[index] for name in names]
        return LABELLINGS[self.kind].cell(row, names)

    def _names(self, index: int) -> tuple[str, ...]:
        return (self.rows[index],) if self.kind == "class" else self.rows[index]

    def table(self, names: tuple[str, ...]) -> Labels:
        """The labels of all rows, for outputs in this order."""
        if self.kind in ("values", "none"):
            return np.array(self.rows, dtype=np.float32).reshape(len(self.rows), len(names))
        known = set(names)
        if self.kind == "set":  # a label that only unused samples have is none
            return encode_sets(([name for name in row if name in known] for row in self.rows), names)
        codes = {name: code for code, name in enumerate(names)}
        return np.array([codes.get(name, -1) for name in self.rows], dtype=np.int64)


def read_labels(
    where: str,
    columns: Mapping[str, Sequence[Any]],
    config: DataConfig,
    class_names: Sequence[str] | None = None,
) -> LabelColumns:
    """What one column says, or several: a column of zeros and ones for each label, or one for each number."""
    holds_lists = any(isinstance(value, list) for values in columns.values() for value in values)
    if config.separator is not None and (len(columns) > 1 or holds_lists):
        raise DataError(f"{where}: `separator=` is for texts in one column; {', '.join(columns)} need none.")
    if len(columns) > 1:
        return _read_several(where, columns, config.label_kind)
    ((name, values),) = columns.items()
    if holds_lists:
        return _read_lists(where, name, values, config.label_kind, class_names)
    return _read_one(where, name, values, config, class_names)


def no_labels(count: int) -> LabelColumns:
    """Of so many rows whose labels are not read."""
    return LabelColumns(kind="none", rows=[()] * count)


def read_values(where: str, columns: Mapping[str, Sequence[Any]]) -> LabelColumns:
    """Numbers, a column for each output."""
    numbers = [[_number(where, name, row, value) for row, value in enumerate(some)] for name, some in columns.items()]
    return LabelColumns(kind="values", rows=list(zip(*numbers, strict=True)), outputs=tuple(columns))


def _number(where: str, column: str, row: int, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= LARGEST:
        got = "nothing" if _is_empty(value) else shorten(value)
        raise DataError(f"{where}: row {row + 1} must have a finite number in {column}; got {got}.")
    return number


def _read_several(where: str, columns: Mapping[str, Sequence[Any]], wanted: LabelKind | None) -> LabelColumns:
    if wanted == "class":
        raise DataError(f"{where}: one class per picture must be in one column; got {', '.join(columns)}.")
    are_flags = all(str(value).strip().lower() in FLAGS for values in columns.values() for value in values)
    if wanted == "values" or (wanted is None and not are_flags):
        return read_values(where, columns)
    names = tuple(columns)
    marks = [[_flag(where, name, row, value) for row, value in enumerate(some)] for name, some in columns.items()]
    rows = [tuple(name for name, mark in zip(names, row, strict=True) if mark) for row in zip(*marks, strict=True)]
    return LabelColumns(kind="set", rows=rows, outputs=names)


def _flag(where: str, column: str, row: int, value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in FLAGS:
        got = "nothing" if _is_empty(value) else shorten(value)
        raise DataError(f"{where}: row {row + 1} must have 0 or 1 in {column}; got {got}.")
    return FLAGS[text]


def _read_lists(
    where: str, name: str, values: Sequence[Any], wanted: LabelKind | None, class_names: Sequence[str] | None
) -> LabelColumns:
    """A column of lists."""
    if wanted not in (None, "set"):
        raise DataError(f"{where}: {name} holds lists: several labels per picture; pass `task={task_of('set')}`.")

    def name_all(row: int, value: Any) -> tuple[str, ...]:
        items = cast("list[Any]", value or [])
        return tuple(dict.fromkeys(_name(where, row, item, class_names) for item in items))

    assumed = () if wanted else (f"{name} holds lists: task {task_of('set')}",)
    rows = [name_all(row, value) for row, value in enumerate(values)]
    return LabelColumns(kind="set", rows=rows, assumed=assumed)


def _read_one(
    where: str, name: str, values: Sequence[Any], config: DataConfig, class_names: Sequence[str] | None
) -> LabelColumns:
    wanted, separator = config.label_kind, config.separator
    if wanted == "values":
        return read_values(where, {name: values})
    texts = sorted({str(value).strip() for value in values if not _is_empty(value)})
    assumed: tuple[str, ...] = ()
    if separator is not None:
        wanted = "set"
    elif wanted == "set":
        separator = None if class_names else find_separator(texts)
    elif wanted is None and not class_names and (doubt := doubt_labels(texts, len(values))) is not None:
        if doubt.kind == "values" and (doubt.certain or config.columns.label is not None):
            how = "pass `task=one` to learn each value as a class"
            numbers = read_values(where, {name: values})
            assumed = (f"{name} holds numbers: task {numbers.task}; {how}",)
            return LabelColumns(kind="values", rows=numbers.rows, outputs=numbers.outputs, assumed=assumed)
        if doubt.kind == "set" and doubt.certain:
            wanted, separator = "set", doubt.separator
            assert separator is not None
            how = "pass `task=one` to learn each combination as a class"
            shown = SEPARATORS[separator]
            assumed = (f"{name} holds several labels, separated by {shown}: task {task_of('set')}; {how}",)
    if wanted == "set":
        rows = [
            () if _is_empty(value) else split_cell(_name(where, row, value, class_names), separator)
            for row, value in enumerate(values)
        ]
        return LabelColumns(kind="set", rows=rows, assumed=assumed)
    return LabelColumns(kind="class", rows=[_name(where, row, each, class_names) for row, each in enumerate(values)])


def _is_empty(value: Any) -> bool:
    return value is None or value != value or not str(value).strip()  # NaN is no label either


def _name(where: str, row: int, value: Any, class_names: Sequence[str] | None) -> str:
    if _is_empty(value):
        raise DataError(f"{where}: row {row + 1} has no label.")
    if class_names is None:
        return str(value).strip()
    if not (isinstance(value, int) and 0 <= value < len(class_names)):
        reason = f"has the unknown label {shorten(value)}; there are {len(class_names)}"
        raise DataError(f"{where}: row {row + 1} {reason}.")
    return class_names[value]

"""Hugging Face `datasets`, where that library is installed."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from vitrail.data.config import DataConfig
from vitrail.data.label_columns import LabelColumns, read_labels, read_values
from vitrail.data.label_kinds import Labels
from vitrail.data.source import Dataset, RowSource, align_labels, split_dataset
from vitrail.data.split import SPLIT_NAMES, refuse_split_file
from vitrail.errors import DataError, MissingExtraError
from vitrail.registry import LabelKind


class HubSource(RowSource):
    """The pictures of one `datasets.Dataset`, still encoded."""

    def __init__(self, table: Any, column: str, labels: Sequence[int] | Labels, name: str) -> None:
        super().__init__(name, labels)
        self._table = table
        self._column = column

    def picture(self, index: int) -> bytes | Path:
        value: Any = self._table[int(self.rows[index])][self._column] or {"bytes": b"", "path": ""}
        return value["bytes"] or (Path(value["path"]) if value["path"] else b"")


def open_hub(name: str, config: DataConfig) -> Dataset:
    """A data set by its name on the hub, or a folder that `save_to_disk` wrote."""
    try:
        library = cast("Any", import_module("datasets"))
    except ImportError:
        raise MissingExtraError("A Hugging Face data set", "datasets") from None
    try:
        loaded = library.load_from_disk(name) if Path(name).is_dir() else library.load_dataset(name)
    except Exception as error:  # the library raises many kinds, for the network and for the files
        raise DataError(f"hf:{name}: cannot be loaded ({type(error).__name__}: {error}).") from error
    return from_hub(loaded, name, config)


def from_hub(loaded: Any, name: str, config: DataConfig) -> Dataset:
    """A `datasets.DatasetDict` or `datasets.Dataset` as ours."""
    parts = dict(loaded) if hasattr(loaded, "keys") else {"train": loaded}
    library = cast("Any", import_module("datasets"))
    roles = {role: split for split in parts if (role := SPLIT_NAMES.get(str(split).lower()))}
    kinds = {role: _label_columns(library, parts[split], f"{name}/{split}", config) for role, split in roles.items()}
    if any(kind != "class" for kind, _ in kinds.values()):
        every = {role: (parts[split], f"{name}/{split}", *kinds[role]) for role, split in roles.items()}
        return _open_other(library, name, every, config)
    sources: dict[str, HubSource] = {}
    names: dict[str, list[str]] = {}
    for role, split in roles.items():
        if converted := _convert(library, parts[split], f"{name}/{split}", kinds[role][1][0]):
            sources[role], names[role] = converted
    classes = align_labels(name, names)
    for role, source in sources.items():
        own = names[role]
        source.labels = np.array([classes.index(own[label]) for label in range(len(own))])[source.labels]
    if len(sources) > 1 or "train" not in sources:
        refuse_split_file(config, name)
        return Dataset(name=name, classes=classes, splits=sources)
    return split_dataset(name, classes, sources["train"], config)


def _label_columns(library: Any, rows: Any, name: str, config: DataConfig) -> tuple[LabelKind, list[str]]:
    """The columns of labels, and what they are: the first ClassLabel, or list of them, or else a float."""
    named = [part.strip() for part in (config.columns.label or "").split(",") if part.strip()]
    if unknown := [column for column in named if column not in rows.features]:
        raise DataError(f"{name}: has no column {unknown[0]}; got {', '.join(rows.features)}.")
    kinds: dict[str, LabelKind] = {
        column: kind
        for column in named or rows.features
        if (kind := _kind(library, rows.features[column])) and config.label_kind in (None, "none", kind)
    }
    kind = min(kinds.values(), key=("class", "set", "values").index, default=None)
    columns = [column for column in kinds if kinds[column] == kind]
    if kind is None or not _pictures(library, rows):
        raise DataError(
            f"{name}: needs an Image and a ClassLabel column (or a list of ClassLabel, or numbers); got "
            f"{', '.join(rows.features)}."
        )
    if kind == "values" and len(columns) > 1 and not named:
        raise DataError(
            f"{name}: has several columns of numbers; name those that are meant, such as "
            f"`columns={{'label': '{','.join(columns)}'}}`."
        )
    return kind, columns if kind == "values" else columns[:1]


def _items(feature: Any) -> Any:
    """What a list is made of; older versions write [ClassLabel]."""
    return cast("list[Any]", feature)[0] if isinstance(feature, list) else getattr(feature, "feature", None)


def _kind(library: Any, feature: Any) -> LabelKind | None:
    if isinstance(feature, library.ClassLabel):
        return "class"
    if isinstance(_items(feature), library.ClassLabel):
        return "set"
    return "values" if str(getattr(feature, "dtype", "")).startswith("float") else None


def _pictures(library: Any, rows: Any) -> list[str]:
    return [key for key, feature in rows.features.items() if isinstance(feature, library.Image)]


def _open_other(
    library: Any, name: str, parts: Mapping[str, tuple[Any, str, LabelKind, list[str]]], config: DataConfig
) -> Dataset:
    """Data with several labels per picture, or with numbers."""
    labels: dict[str, LabelColumns] = {}
    for role, (rows, where, kind, columns) in parts.items():
        if kind == "values":
            labels[role] = read_values(where, {column: rows[column] for column in columns})
            continue
        names = _items(rows.features[columns[0]]).names
        labels[role] = read_labels(where, {columns[0]: [each or [] for each in rows[columns[0]]]}, config, names)
    train = labels.get("train")
    if train is None or any((each.kind, each.outputs) != (train.kind, train.outputs) for each in labels.values()):
        raise DataError(f"{name}: needs a train split, and the same columns of labels in all splits.")
    used = {role: [label for row in each.rows for label in row] for role, each in labels.items()}
    classes = train.outputs or align_labels(name, used)
    sources: dict[str, HubSource] = {}
    for role, (rows, where, _, _) in parts.items():
        column = _pictures(library, rows)[0]
        encoded = rows.cast_column(column, library.Image(decode=False))
        sources[role] = HubSource(encoded, column, labels[role].table(classes), where)
    if len(sources) > 1:
        refuse_split_file(config, name)
        return Dataset(name=name, classes=classes, splits=sources, task=train.task, assumed=train.assumed)
    return split_dataset(name, classes, sources["train"], config, task=train.task, assumed=train.assumed)


def _convert(library: Any, rows: Any, name: str, label: str) -> tuple[HubSource, list[str]] | None:
    """A split and its class names; nothing if its labels are hidden, as those of many test splits are."""
    column = _pictures(library, rows)[0]
    values = [-1 if value is None else int(value) for value in rows[label]]
    if values and max(values) < 0:
        return None
    if values and min(values) < 0:
        raise DataError(f"{name}: row {values.index(min(values))} has no label, and others do; remove such rows.")
    encoded = rows.cast_column(column, library.Image(decode=False))
    return HubSource(encoded, column, values, name), list(rows.features[label].names)

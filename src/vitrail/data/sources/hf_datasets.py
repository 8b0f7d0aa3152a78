"""Hugging Face `datasets`, where that library is installed."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from vitrail.data.config import DataConfig
from vitrail.data.source import Dataset, RowSource, align_labels, split_dataset
from vitrail.data.split import SPLIT_NAMES, refuse_split_file
from vitrail.errors import DataError, MissingExtraError
from vitrail.rng import Integers


class HubSource(RowSource):
    """The pictures of one `datasets.Dataset`, still encoded."""

    def __init__(self, table: Any, column: str, labels: Sequence[int] | Integers, name: str) -> None:
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
    sources: dict[str, HubSource] = {}
    names: dict[str, list[str]] = {}
    for split, rows in parts.items():
        role = SPLIT_NAMES.get(str(split).lower())
        converted = _convert(library, rows, f"{name}/{split}") if role else None
        if role and converted:
            sources[role], names[role] = converted
    classes = align_labels(name, names)
    for role, source in sources.items():
        own = names[role]
        source.labels = np.array([classes.index(own[label]) for label in range(len(own))])[source.labels]
    if len(sources) > 1 or "train" not in sources:
        refuse_split_file(config, name)
        return Dataset(name=name, classes=classes, splits=sources)
    return split_dataset(name, classes, sources["train"], config)


def _convert(library: Any, rows: Any, name: str) -> tuple[HubSource, list[str]] | None:
    """A split and its class names; nothing if its labels are hidden, as those of many test splits are."""
    pictures = [key for key, feature in rows.features.items() if isinstance(feature, library.Image)]
    labels = [key for key, feature in rows.features.items() if isinstance(feature, library.ClassLabel)]
    if not pictures or not labels:
        raise DataError(f"{name}: needs an Image and a ClassLabel column; got {', '.join(rows.features)}.")
    column, label = pictures[0], labels[0]
    values = [-1 if value is None else int(value) for value in rows[label]]
    if values and max(values) < 0:
        return None
    if values and min(values) < 0:
        raise DataError(f"{name}: row {values.index(min(values))} has no label, and others do; remove such rows.")
    encoded = rows.cast_column(column, library.Image(decode=False))
    return HubSource(encoded, column, values, name), list(rows.features[label].names)

"""A CSV, TSV or Parquet table: one row per picture, with its path or encoded bytes, its label and perhaps its split."""

import csv
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from vitrail.data.config import Columns
from vitrail.data.naming import name_after
from vitrail.data.source import Dataset, FileSource, Labels, Source, align_labels
from vitrail.data.split import SPLIT_NAMES, SplitPlan
from vitrail.errors import DataError, MissingExtraError

# What we need from a table → the column names that are tried, in this order.
COLUMNS = {
    "picture": ("path", "file", "filename", "file_name", "filepath", "image_path", "image", "img", "picture"),
    "label": ("label", "labels", "class", "class_name", "category", "target", "fine_label"),
    "split": ("split", "set", "subset", "partition"),
}
DELIMITERS = {".csv": ",", ".tsv": "\t"}


class BytesSource(Source):
    """Pictures that a column holds as encoded bytes."""

    def __init__(self, pictures: Any, rows: Labels, labels: Sequence[int] | Labels, path: Path) -> None:
        super().__init__(labels)
        self._pictures = pictures  # an Arrow column, not copied
        self._rows = rows
        self._path = path

    def picture(self, index: int) -> bytes:
        value: Any = self._pictures[int(self._rows[index])].as_py()
        if isinstance(value, dict):  # a struct of bytes and path, as the `datasets` library writes pictures
            fields = cast("dict[str, Any]", value)
            value = fields.get("bytes")
            if not value and fields.get("path"):
                return (self._path.parent / fields["path"]).read_bytes()
        return value or b""

    def key(self, index: int) -> str:
        return f"{self._path.name}:{self._rows[index]}"

    def select(self, indices: Sequence[int] | Labels) -> "BytesSource":
        chosen = np.asarray(indices)
        return BytesSource(self._pictures, self._rows[chosen], self.labels[chosen], self._path)


def open_table(path: Path, plan: SplitPlan, columns: Columns | None = None) -> Dataset:
    """The data set that a table describes. Relative paths start at the table's own folder."""
    names, table, class_names = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    chosen = _choose_columns(path, names, columns or Columns())
    if not table:
        raise DataError(f"{path}: the table has no rows.")
    labels = _label_names(path, _values(table[chosen["label"]]), class_names.get(chosen["label"]))
    keys, source = _source(path, table[chosen["picture"]], len(labels))
    if chosen["split"]:
        plan.refuse_file(str(path))
        parts = _own_splits(path, _values(table[chosen["split"]]))
    else:
        parts = plan.apply(keys, labels)
    used = {name: [labels[int(index)] for index in indices] for name, indices in parts.items()}
    classes = align_labels(str(path), used)
    codes = {name: code for code, name in enumerate(classes)}
    source.labels = np.array([codes[name] for name in labels], dtype=np.int64)
    splits = {name: source.select(indices) for name, indices in parts.items()}
    made = not chosen["split"] and plan.file is None
    return Dataset(name=name_after(path), classes=classes, splits=splits, made_split=made)


def _read_csv(path: Path) -> tuple[list[str], dict[str, Any], dict[str, list[str]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, delimiter=DELIMITERS[path.suffix.lower()], strict=True)
        try:
            names = list(reader.fieldnames or ())
            rows = list(reader)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}, line {reader.line_num}: not a table ({error}).") from None
    return names, {name: [row[name] for row in rows] for name in names} if rows else {}, {}


def _read_parquet(path: Path) -> tuple[list[str], dict[str, Any], dict[str, list[str]]]:
    try:
        arrow, parquet = cast("Any", import_module("pyarrow")), cast("Any", import_module("pyarrow.parquet"))
    except ImportError:
        raise MissingExtraError("A Parquet table", "tables") from None
    try:
        table: Any = parquet.read_table(path, memory_map=True)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet table ({error}).") from None
    names: list[str] = table.column_names
    rows: dict[str, Any] = {name: table.column(name) for name in names} if table.num_rows else {}
    return names, rows, _class_names(table.schema.metadata)


def _class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Column → class names, as the Hugging Face `datasets` library stores them in a Parquet header."""
    if not metadata or b"huggingface" not in metadata:
        return {}
    features = json.loads(metadata[b"huggingface"]).get("info", {}).get("features", {})
    return {name: feature["names"] for name, feature in features.items() if "names" in feature}


def _choose_columns(path: Path, names: Sequence[str], columns: Columns) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for role, candidates in COLUMNS.items():
        asked = getattr(columns, role)
        found = [name for name in ([asked] if asked else candidates) if name in names]
        if not found and (asked or role != "split"):
            wanted = repr(asked) if asked else f"one of {', '.join(candidates)}"
            hint = " Its columns are separated by semicolons; write them with commas." if _semicolons(names) else ""
            has = ", ".join(names) or "none"
            raise DataError(f"{path}: the {role} column must be {wanted}; the table has {has}.{hint}")
        chosen[role] = found[0] if found else ""
    return chosen


def _semicolons(names: Sequence[str]) -> bool:
    return len(names) == 1 and ";" in names[0]


def _values(column: Any) -> list[Any]:
    return cast("list[Any]", column) if isinstance(column, list) else column.to_pylist()


def _label_names(path: Path, values: list[Any], class_names: list[str] | None) -> list[str]:
    for row, value in enumerate(values):
        if value is None or not str(value).strip():
            raise DataError(f"{path}: row {row + 1} has no label.")
        if class_names is not None and not (isinstance(value, int) and 0 <= value < len(class_names)):
            raise DataError(f"{path}: row {row + 1} has the unknown label {value!r}; there are {len(class_names)}.")
    return [class_names[value] if class_names else str(value).strip() for value in values]


def _source(path: Path, column: Any, num_rows: int) -> tuple[list[str], Source]:
    rows, nothing = np.arange(num_rows), np.zeros(num_rows, dtype=np.int64)
    kind = "string" if isinstance(column, list) else str(column.type)
    if kind.startswith("struct") or "binary" in kind:
        source: Source = BytesSource(column, rows, nothing, path)
    elif "string" in kind:
        folder = path.parent.resolve()
        values = cast("list[str | None]", _values(column))
        source = FileSource([folder / (value or "") for value in values], nothing, folder)
    else:
        raise DataError(f"{path}: the picture column must hold paths or encoded bytes; its type is {kind}.")
    return [source.key(index) for index in range(num_rows)], source


def _own_splits(path: Path, values: list[Any]) -> dict[str, Labels]:
    parts: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        name = SPLIT_NAMES.get(str(value).strip().lower())
        if name is None:
            raise DataError(f"{path}: row {row + 1} has the split {value!r}; must be one of {', '.join(SPLIT_NAMES)}.")
        parts.setdefault(name, []).append(row)
    return {name: np.array(rows, dtype=np.int64) for name, rows in parts.items()}

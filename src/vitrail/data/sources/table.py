"""A CSV, TSV or Parquet table: one row per picture, with its path or encoded bytes, its label and perhaps its split."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from vitrail.data.config import Columns, DataConfig
from vitrail.data.copies import Copies
from vitrail.data.label_columns import no_labels, read_labels
from vitrail.data.label_kinds import Labels
from vitrail.data.source import Dataset, FileSource, RowSource, Source, name_after
from vitrail.data.sources.parquet import ParquetTable
from vitrail.data.sources.store import StoreSource
from vitrail.data.split import SPLIT_NAMES, UNUSED, refuse_split_file, split_samples
from vitrail.errors import DataError, list_names, shorten, suggest
from vitrail.rng import Integers
from vitrail.storage import Disk, Store, is_address, refuse_secrets
from vitrail.untrusted import check_regular

# What we need from a table → the column names that are tried, in this order.
COLUMNS = {
    "picture": ("path", "file", "filename", "file_name", "filepath", "image_path", "image", "img", "picture"),
    "label": ("label", "labels", "class", "class_name", "category", "target", "fine_label"),
    "split": ("split", "set", "subset", "partition"),
}
DELIMITERS = {".csv": ",", ".tsv": "\t"}


class BytesSource(RowSource):
    """Pictures in a column of encoded bytes."""

    def __init__(self, pictures: Any, labels: Sequence[int] | Labels, name: str, copies: Copies) -> None:
        super().__init__(name, labels)
        self._pictures = pictures  # an Arrow column, not copied
        self._copies = copies  # of files beside the table

    def picture(self, index: int) -> bytes | Path | str:
        value: Any = self._pictures[int(self.rows[index])].as_py()
        if isinstance(value, dict):  # a struct of bytes and path, as the `datasets` library writes pictures
            fields = cast("dict[str, Any]", value)
            value = fields.get("bytes")
            if not value and isinstance(fields.get("path"), str):
                return self._file(fields["path"])
        return value or b""

    def _file(self, name: str) -> Path | str:
        try:
            return self._copies.get(name)
        except OSError:  # which whoever opens the address finds too
            return self._copies.where(name)


class CsvTable:
    """The columns of one CSV or TSV file."""

    def __init__(self, path: Path, where: str) -> None:
        check_regular(path)
        self._where = where  # as users write it
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=DELIMITERS[Path(where).suffix.lower()], strict=True)
            try:
                self.names = next(reader, [])
                self._rows = [row for row in reader if row]
            except (csv.Error, UnicodeDecodeError) as error:
                raise DataError(f"{where}, line {reader.line_num}: not a table ({error}).") from None
        self.num_rows = len(self._rows)

    def values(self, name: str) -> list[Any]:
        """A column; nothing where a row is too short for it."""
        if self.names.count(name) > 1:
            raise DataError(f"{self._where}: has {self.names.count(name)} columns called {name}; keep one.")
        column = self.names.index(name)
        return [row[column] if column < len(row) else None for row in self._rows]

    def class_names(self, _name: str) -> list[str] | None:
        return None


def open_table(store: Store, name: str, config: DataConfig) -> Dataset:
    """The data set that a table describes. Relative paths start at the table's own folder."""
    where, copies = store.path(name), Copies(store, config.cache)
    table = (ParquetTable if name.lower().endswith(".parquet") else CsvTable)(copies.get(name), where)
    unlabelled = config.label_kind == "none"
    chosen = _choose_columns(where, table.names, config.columns, ("label",) if unlabelled else ())
    if not table.num_rows:
        raise DataError(f"{where}: the table has no rows.")
    names = [] if unlabelled else _label_columns(chosen["label"], table.names)
    columns = {column: table.values(column) for column in names}
    class_names = table.class_names(names[0]) if len(names) == 1 else None
    labels = no_labels(table.num_rows) if unlabelled else read_labels(where, columns, config, class_names)
    nothing = np.zeros(table.num_rows, dtype=np.int64)
    if isinstance(table, ParquetTable) and not table.holds_texts(chosen["picture"]):
        source: Source = BytesSource(table.pictures(chosen["picture"]), nothing, name, copies)
    else:
        source = _files(where, table.values(chosen["picture"]), nothing, copies)
    groups = {} if config.group is None else _read_groups(where, table, config.group, source.keys())
    if chosen["split"]:
        refuse_split_file(config, where)
        parts = _own_splits(where, table.values(chosen["split"]))
    else:
        parts = split_samples(config, source.keys(), labels.strata(), groups)
    unused = tuple((source.key(index), labels.cell(index)) for index in parts.pop(UNUSED, ()))
    classes, source.labels = labels.encode(where, parts)
    return Dataset(
        name=name_after(where),
        classes=classes,
        splits={name: source.select(indices) for name, indices in parts.items()},
        made_split=not chosen["split"] and config.split_file is None,
        unused=unused,
        task=labels.task,
        assumed=labels.assumed,
        groups=groups,
    )


def _read_groups(where: str, table: ParquetTable | CsvTable, column: str, keys: Sequence[str]) -> dict[str, str]:
    """The group of each picture."""
    if column not in table.names:
        hint = suggest(column, table.names)
        raise DataError(f"{where}: `group={column}` must be a column of the table; {hint}")
    groups: dict[str, str] = {}
    for row, (key, value) in enumerate(zip(keys, table.values(column), strict=True), start=1):
        group = "" if value is None else str(value).strip()
        if not group:
            raise DataError(f"{where}: row {row} has nothing in the column {column}, so its group is unknown.")
        if groups.setdefault(key, group) != group:
            both = f"{shorten(groups[key])} and {shorten(group)}"
            raise DataError(f"{where}: {key[:100]} is there twice, in the groups {both}; keep one.")
    return groups


def _label_columns(text: str, names: Sequence[str]) -> list[str]:
    """The columns that are named: one, or several with commas between them."""
    return [text] if text in names else list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _choose_columns(where: str, names: Sequence[str], columns: Columns, optional: Sequence[str] = ()) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for role, candidates in COLUMNS.items():
        column = getattr(columns, role)
        wanted = _label_columns(column, names) if column and role == "label" else [column] if column else []
        missing = [name for name in wanted if name not in names]
        present = [name for name in candidates if name in names] if not column else [] if missing else [column]
        if not present and (column or role != "split") and role not in optional:
            expected = repr(missing[0] if missing else column) if column else f"one of {', '.join(candidates)}"
            hint = " Its columns are separated by semicolons; write them with commas." if _semicolons(names) else ""
            has = list_names(names, 20) or "none"
            raise DataError(f"{where}: the {role} column must be {expected}; the table has {has}.{hint}")
        chosen[role] = present[0] if present else ""
    return chosen


def _semicolons(names: Sequence[str]) -> bool:
    return len(names) == 1 and ";" in names[0]


def _files(where: str, values: Sequence[str | None], labels: Integers, copies: Copies) -> FileSource:
    """The files that a table names: paths from its own folder, or addresses."""
    names = [value if value and is_address(value) else Path(value or "").as_posix() for value in values]
    if isinstance(copies.store, Disk) and not any(map(is_address, names)):
        return FileSource(names, labels, copies.store.folder.resolve())
    for row, name in enumerate(names, start=1):
        if is_address(name):
            refuse_secrets(name, f"{where}, row {row}: ")
        elif name.startswith("/") and not isinstance(copies.store, Disk):
            raise DataError(f"{where}: row {row} must name a path from the table's folder, or an address; got {name}.")
    return StoreSource(names, labels, copies, copies.states(names))


def _own_splits(where: str, values: list[Any]) -> dict[str, Integers]:
    parts: dict[str, list[int]] = {}
    for row, value in enumerate(values):
        name = SPLIT_NAMES.get(str(value).strip().lower())
        if name is None:
            known = ", ".join(SPLIT_NAMES)
            raise DataError(f"{where}: row {row + 1} has the split {shorten(value)}; must be one of {known}.")
        parts.setdefault(name, []).append(row)
    return {name: np.array(rows, dtype=np.int64) for name, rows in parts.items()}

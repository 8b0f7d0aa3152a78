"""Features of pictures in files: a row for each picture, written one at a time and read in blocks; memory stays flat.

.parquet  the columns picture[, label, split] and features, a list of D float32 each
.npz      the arrays features (N, D) float32 and picture[, label, split] (N,)
.npy      the array (N, D) float32, which NumPy can map into memory; beside it, a .csv of the same name has the columns
          picture[, label, split], and its row i describes row i of the array
"""

import csv
import math
import shutil
import struct
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np

from vitrail.errors import ConfigError, InputError
from vitrail.files import as_utf8, atomic_path, load_pyarrow, open_csv
from vitrail.prediction.feature_table import BLOCK, TEXTS, FeatureTable, Texts
from vitrail.prediction.results import Floats
from vitrail.rng import Integers
from vitrail.threads import in_chunks
from vitrail.wording import counted, reason

FeatureFormat = Literal["npz", "npy", "parquet"]
FEATURES = "features"

WriteFeatures = Callable[[Texts, Floats], None]


def check_features_path(path: Path) -> None:
    """Refuse a file that cannot hold features, or that would replace what is not ours."""
    names = [f".{name}" for name in get_args(FeatureFormat)]
    if path.suffix not in names:
        raise ConfigError(f"features are saved as {', '.join(names[:-1])} or {names[-1]}; got {path}.")
    if path.suffix == ".parquet":
        load_pyarrow("writing Parquet")
    table = path.with_suffix(".csv")
    if path.suffix == ".npy" and table.exists() and not path.exists():
        raise ConfigError(f"{path} comes with {table}, which exists without it; move it, or choose another name.")


@contextmanager
def write_features(path: Path, columns: Sequence[str], width: int) -> Generator[WriteFeatures]:
    """What writes rows to a file of the format that its suffix names; it appears when it is whole."""
    check_features_path(path)
    if path.suffix == ".npy":
        with (
            atomic_path(path.with_suffix(".csv")) as table,  # both are whole before the first of them appears
            atomic_path(path) as array,
            _array_writer(array, table, columns, width) as write,
        ):
            yield write
        return
    with atomic_path(path) as draft:
        if path.suffix == ".parquet":
            with _parquet_writer(draft, columns, width) as write:
                yield write
            return
        array, table = draft.with_suffix(".npy"), draft.with_suffix(".csv")  # which go when the draft's folder goes
        with _array_writer(array, table, columns, width) as write:
            yield write
        _pack(draft, array, table, columns)


@contextmanager
def _parquet_writer(path: Path, columns: Sequence[str], width: int) -> Generator[WriteFeatures]:
    pa, pq = load_pyarrow("writing Parquet")
    types = {**dict.fromkeys(columns, pa.string()), FEATURES: pa.list_(pa.float32(), width)}
    schema = pa.schema(types)
    texts: list[Texts] = []
    block = np.empty((BLOCK, width), np.float32)
    with pq.ParquetWriter(path, schema) as file:

        def flush() -> None:
            lists = pa.FixedSizeListArray.from_arrays(pa.array(block[: len(texts)].ravel()), width)
            names = [pa.array(map(as_utf8, column), pa.string()) for column in zip(*texts, strict=True)]
            file.write_table(pa.table([*names, lists], schema=schema))
            texts.clear()

        def write(row: Texts, features: Floats) -> None:
            block[len(texts)] = features
            texts.append(row)
            if len(texts) == BLOCK:
                flush()

        yield write
        if texts:
            flush()


@contextmanager
def _array_writer(array: Path, table: Path, columns: Sequence[str], width: int) -> Generator[WriteFeatures]:
    count = 0
    with array.open("wb") as file, open_csv(table, columns, raw=True) as write_texts:
        _write_header(file, "<f4", (count, width))

        def write(row: Texts, features: Floats) -> None:
            nonlocal count
            assert features.shape == (width,)
            file.write(features.astype("<f4").tobytes())
            write_texts(row)
            count += 1

        yield write
        file.seek(0)
        _write_header(file, "<f4", (count, width))  # as long as before: NumPy leaves room for the number of rows


def _write_header(file: IO[bytes], dtype: str, shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


def _pack(path: Path, array: Path, table: Path, columns: Sequence[str]) -> None:
    """Put an array and the columns of its table into one .npz, as `np.savez` does, without holding any of them."""
    count, longest = 0, [1 for _ in columns]
    for row in islice(_read_table(table), 1, None):
        count += 1
        longest = [max(most, len(text)) for most, text in zip(longest, row, strict=True)]
    with zipfile.ZipFile(path, "w") as archive:
        with array.open("rb") as file, archive.open(f"{FEATURES}.npy", "w", force_zip64=True) as member:
            shutil.copyfileobj(file, member, 1 << 20)
        for place, (column, most) in enumerate(zip(columns, longest, strict=True)):
            with archive.open(f"{column}.npy", "w", force_zip64=True) as member:
                _write_header(member, f"<U{most}", (count,))
                for rows in in_chunks(islice(_read_table(table), 1, None), BLOCK):
                    member.write(np.array([row[place] for row in rows], f"<U{most}").tobytes())


def _read_table(path: Path) -> Iterator[list[str]]:
    """The rows of a table, the names of its columns first."""
    with path.open(encoding="utf-8", newline="", errors="surrogateescape") as file:
        width = 0
        for number, row in enumerate(csv.reader(file)):
            width = width or len(row)
            if len(row) != width:
                raise InputError(f"{path}: row {number} must have {counted(width, 'cell')}; has {len(row)}.")
            yield row


def read_features(path: Path) -> FeatureTable:
    """The features in a file that `write_features` has written; they are read when they are needed."""
    kinds: dict[str, type[_FeaturesInFile]] = {".npy": _InNpy, ".npz": _InNpz, ".parquet": _InParquet}
    if path.suffix not in kinds:
        raise InputError(f"{path}: features are in {', '.join(kinds)} files; `vitrail embed` writes them.")
    try:
        table = kinds[path.suffix](path.absolute())
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:  # pyarrow's errors are among these
        raise InputError(f"{path}: no features can be read from it ({reason(error)}).") from error
    if table.columns not in (TEXTS[:1], TEXTS):
        columns = ", ".join(table.columns) or "none"
        raise InputError(f"{path}: must have the texts {TEXTS[0]}, or {', '.join(TEXTS)}, for its rows; got {columns}.")
    return table


class _FeaturesInFile(FeatureTable):
    """Features that stay in their files until they are needed."""

    def __init__(self, *paths: Path) -> None:
        self._states = {path: _state_of(path) for path in paths}

    def _same(self, path: Path) -> Path:
        """One of the files, which must not have been replaced since: the features of other pictures would mix in."""
        if _state_of(path) != self._states[path]:
            raise InputError(f"{path}: was written again after these features; read it anew.")
        return path


def _state_of(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


class _InNpy(_FeaturesInFile):
    def __init__(self, path: Path) -> None:
        self.path, self._table = path, path.with_suffix(".csv")
        super().__init__(self.path, self._table)
        self._array = _StoredArray.in_file(path)
        self.shape = self._array.check_features()
        self.columns = tuple(next(_read_table(self._table), ()))

    @cached_property
    def features(self) -> Floats:
        """Mapped into memory: the system reads the parts that are used."""
        return np.load(self._same(self.path), mmap_mode="r")

    def feature_blocks(self) -> Iterator[Floats]:
        return self._array.blocks(self._same(self.path))

    def features_at(self, places: Integers) -> Floats:
        return self._array.at(self._same(self.path), places)

    def text_blocks(self, columns: Sequence[str]) -> Iterator[list[Texts]]:
        places = [self.columns.index(column) for column in columns]
        count = 0
        for rows in in_chunks(islice(_read_table(self._same(self._table)), 1, None), BLOCK):
            count += len(rows)
            yield [tuple(row[place] for place in places) for row in rows]
        if count != self.shape[0]:
            raise InputError(f"{self._table}: must describe the {self.shape[0]:,} rows of {self.path}; has {count:,}.")


class _InNpz(_FeaturesInFile):
    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(path)
        self._arrays = _StoredArray.in_archive(path)
        self.shape = self._arrays[FEATURES].check_features()
        self.columns = tuple(name for name in self._arrays if name != FEATURES)
        for name in self.columns:
            array = self._arrays[name]
            if array.shape != self.shape[:1] or array.dtype.kind != "U":
                raise ValueError(f"{name} must be a text for each row; got {array.dtype} of shape {array.shape}")

    def feature_blocks(self) -> Iterator[Floats]:
        return self._arrays[FEATURES].blocks(self._same(self.path))

    def features_at(self, places: Integers) -> Floats:
        return self._arrays[FEATURES].at(self._same(self.path), places)

    def text_blocks(self, columns: Sequence[str]) -> Iterator[list[Texts]]:
        path = self._same(self.path)
        for blocks in zip(*(self._arrays[column].blocks(path) for column in columns), strict=True):
            yield list(zip(*(block.tolist() for block in blocks), strict=True))


@dataclass(frozen=True, kw_only=True)
class _StoredArray:
    """An array somewhere in a file, of which any rows can be read."""

    offset: int  # of its first number, in bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def in_file(cls, path: Path, start: int = 0) -> "_StoredArray":
        """The array whose header begins at `start`."""
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        with path.open("rb") as file:
            file.seek(start)
            shape, is_fortran, dtype = readers[np.lib.format.read_magic(file)](file)
            if is_fortran:
                raise ValueError("columns are stored one after the other, not rows")
            offset = file.tell()
        if offset + dtype.itemsize * math.prod(shape) > path.stat().st_size:
            raise ValueError("it is cut off")
        return cls(offset=offset, dtype=dtype, shape=shape)

    @classmethod
    def in_archive(cls, path: Path) -> "dict[str, _StoredArray]":
        """Name → array of an .npz."""
        arrays: dict[str, _StoredArray] = {}
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    raise ValueError("its arrays are compressed; np.savez writes them as they are")
                file.seek(member.header_offset + 26)  # a local header: 30 bytes, the name, an extra field, the data
                name_length, extra_length = struct.unpack("<HH", file.read(4))
                start = member.header_offset + 30 + name_length + extra_length
                arrays[member.filename.removesuffix(".npy")] = cls.in_file(path, start)
        return arrays

    def check_features(self) -> tuple[int, int]:
        """The shape of what must be rows of features."""
        if len(self.shape) != 2 or self.dtype != np.float32:
            raise ValueError(f"features must be float32 of shape (N, D), not {self.dtype} of shape {self.shape}")
        return self.shape

    def blocks(self, path: Path) -> Iterator[Any]:
        with path.open("rb") as file:
            file.seek(self.offset)
            for start in range(0, self.shape[0], BLOCK):
                yield self._read(file, min(BLOCK, self.shape[0] - start))

    def at(self, path: Path, places: Integers) -> Any:
        rows = np.empty((len(places), *self.shape[1:]), self.dtype)
        size = self.dtype.itemsize * math.prod(self.shape[1:])
        with path.open("rb") as file:
            for row, place in zip(rows, places.tolist(), strict=True):
                file.seek(self.offset + place * size)
                row[:] = self._read(file, 1)[0]
        return rows

    def _read(self, file: IO[bytes], count: int) -> Any:
        return np.fromfile(file, self.dtype, count * math.prod(self.shape[1:])).reshape(count, *self.shape[1:])


class _InParquet(_FeaturesInFile):
    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(path)
        pa, _ = load_pyarrow("reading Parquet")
        with self._open() as file:
            schema = file.schema_arrow
            kind = schema.field(FEATURES).type
            if not pa.types.is_fixed_size_list(kind) or kind.value_type != pa.float32():
                raise ValueError(f"features must be lists of D float32 each, not {kind}")
            self.shape = (file.metadata.num_rows, kind.list_size)
            self.columns = tuple(name for name in schema.names if name != FEATURES)

    def _open(self) -> Any:
        _, pq = load_pyarrow("reading Parquet")
        return pq.ParquetFile(self._same(self.path), pre_buffer=False)  # which would hold what was read

    def _blocks(self, columns: Sequence[str]) -> Iterator[Any]:
        with self._open() as file:
            for group in range(file.num_row_groups):
                yield from file.iter_batches(BLOCK, row_groups=[group], columns=list(columns))

    def feature_blocks(self) -> Iterator[Floats]:
        for batch in self._blocks([FEATURES]):
            yield batch.column(FEATURES).flatten().to_numpy().reshape(-1, self.shape[1])

    def text_blocks(self, columns: Sequence[str]) -> Iterator[list[Texts]]:
        for batch in self._blocks(columns):
            yield list(zip(*(batch.column(column).to_pylist() for column in columns), strict=True))

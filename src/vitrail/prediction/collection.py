"""Embeddings that are kept, wherever: the parts of a job or a file of `vitrail embed`, read block by block."""

import csv
import io
import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from vitrail.errors import DataError, VitrailError
from vitrail.files import load_pyarrow
from vitrail.storage import Disk, Span, Store, hide_secrets, is_address, open_file_store, open_store
from vitrail.threads import in_chunks, map_in_order
from vitrail.untrusted import parse_json
from vitrail.wording import hint_path, in_one_line

Floats = np.ndarray[Any, np.dtype[np.float32]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

BLOCK = 4096  # rows that are handed out at once
REQUESTS = 8  # files that are asked about at once
TOGETHER = 4  # parts that are read at once
SUFFIXES = (".parquet", ".npz", ".npy")
FILES = tuple(f"features{suffix}" for suffix in SUFFIXES)  # that `vitrail embed` writes
JOB, PARTS = "job.json", "parts"


class Block(NamedTuple):
    """Some of the embeddings, in order; rows without one are left out."""

    rows: Integers  # (n,) their numbers
    features: Floats  # (n, D)


class Described(NamedTuple):
    """What is known of a row beside its features."""

    picture: str
    label: str | None


class Collection(ABC):
    """Embeddings of one width, one for each row, in files of a store."""

    def __init__(self, store: Store, files: Sequence[str], job: Mapping[str, Any] | None = None) -> None:
        self.store, self.files = store, tuple(files)
        self.job = job  # what describes the job that made them

    @property
    def name(self) -> str:
        """Where they are, as users write it."""
        return self.store.root if self.job is not None else self.store.path(self.files[0])

    @property
    @abstractmethod
    def count(self) -> int:
        """How many rows there are, with and without an embedding."""

    @property
    @abstractmethod
    def width(self) -> int:
        """D, the numbers of one embedding."""

    @abstractmethod
    def read_blocks(self) -> Iterator[Block]:
        """All embeddings, in the order of their rows, as they are stored."""

    @abstractmethod
    def describe(self, rows: Sequence[int]) -> dict[int, Described]:
        """The picture and the label of some rows."""

    def blocks(self, advance: Callable[[int], None] = lambda _: None) -> Iterator[Block]:
        """All embeddings that are numbers, in the order of their rows; `advance` is told how many are done."""
        for rows, features in self.read_blocks():
            finite = np.isfinite(features).all(axis=1)
            yield Block(rows, features) if finite.all() else Block(rows[finite], features[finite])
            advance(len(rows))

    @cached_property
    def fingerprint(self) -> str:
        """What changes if one of the files does."""
        states = map_in_order(self.store.state, self.files, REQUESTS)
        facts = [(name, state.size, state.version) for name, state in zip(self.files, states, strict=True)]
        return sha256(json.dumps(facts).encode()).hexdigest()

    @contextmanager
    def reading(self, name: str, content: bytes | OSError | None = None) -> Generator[IO[bytes]]:
        """One of the files, open, or its content; whatever is wrong with it is an error that names it."""
        try:
            if isinstance(content, OSError):
                raise content
            with self.store.open(name) if content is None else io.BytesIO(content) as file:
                yield file
        except VitrailError:
            raise
        except Exception as error:  # a damaged file can make pyarrow raise anything
            why = in_one_line(error)[:300]
            raise DataError(f"{self.store.path(name)}: its embeddings cannot be read ({why}).") from None


class ParquetFiles(Collection):
    """Columns `picture`, `features` and perhaps `label`, in one file after the other."""

    @cached_property
    def _shapes(self) -> list[tuple[int, int]]:
        """The rows and the width of each file."""
        return list(map_in_order(self._shape, self.files, REQUESTS))

    def _shape(self, name: str) -> tuple[int, int]:
        pa, pq = load_pyarrow("Searching in Parquet")
        with self.reading(name) as file:
            table = pq.ParquetFile(file)
            kinds = dict(zip(table.schema_arrow.names, table.schema_arrow.types, strict=True))
            kind = kinds.get("features")
            if kind is None or not pa.types.is_fixed_size_list(kind) or kind.value_type != pa.float32():
                what = "there is none" if kind is None else f"it is {kind}"
                raise DataError(
                    f"{self.store.path(name)}: the column features must be a fixed-size list of float32; {what}."
                )
            if "picture" not in kinds:
                raise DataError(f"{self.store.path(name)}: must have a column picture; it has {', '.join(kinds)}.")
            return table.metadata.num_rows, kind.list_size

    @property
    def count(self) -> int:
        return sum(rows for rows, _ in self._shapes)

    @property
    def width(self) -> int:
        width = self._shapes[0][1]
        for name, (_, other) in zip(self.files, self._shapes, strict=True):
            if other != width:
                raise DataError(f"{self.store.path(name)}: must have {width} features a row, as others; got {other}.")
        return width

    def read_blocks(self) -> Iterator[Block]:
        start, width = 0, self.width
        for batch in self._all_features():
            lists = batch.column(0)
            rows = start + np.flatnonzero(lists.is_valid().to_numpy(zero_copy_only=False))
            yield Block(rows, lists.flatten().to_numpy().reshape(-1, width))  # `flatten` leaves out what is null
            start += batch.num_rows

    def _all_features(self) -> Iterator[Any]:
        """A job's parts are small, and several of them are read whole; one large file is read as it is used."""
        if self.job is None:
            yield from self._batches(self.files[0], ["features"])
            return
        for names in in_chunks(self.files, TOGETHER):
            for name, content in zip(names, self.store.read([Span(name) for name in names]), strict=True):
                yield from self._batches(name, ["features"], content)

    def _batches(self, name: str, columns: list[str], content: bytes | OSError | None = None) -> Iterator[Any]:
        _, pq = load_pyarrow("Searching in Parquet")
        with self.reading(name, content) as file:
            yield from pq.ParquetFile(file).iter_batches(batch_size=BLOCK, columns=columns)

    def describe(self, rows: Sequence[int]) -> dict[int, Described]:
        starts = list(accumulate((count for count, _ in self._shapes), initial=0))
        found: dict[int, Described] = {}
        for name, start, end in zip(self.files, starts, starts[1:], strict=False):
            wanted = [row for row in rows if start <= row < end]
            if wanted:
                found |= self._describe(name, start, sorted(wanted))
        return found

    def _describe(self, name: str, start: int, wanted: list[int]) -> dict[int, Described]:
        found: dict[int, Described] = {}
        for batch in self._batches(name, ["picture", "label"]):  # the second only if there is one
            texts = batch.to_pydict()
            for row in (row for row in wanted if start <= row < start + batch.num_rows):
                label = texts["label"][row - start] if "label" in texts else None
                found[row] = Described(str(texts["picture"][row - start]), None if label is None else str(label))
            start += batch.num_rows
        return found


class ArrayFile(Collection):
    """The arrays `features`, `picture` and perhaps `label` of an .npz; or an .npy with a .csv of the others beside."""

    @cached_property
    def _shape(self) -> tuple[int, int]:
        with self._array("features") as (_, shape, dtype):
            if len(shape) != 2 or dtype.kind != "f":
                raise DataError(f"{self.name}: features must be an array of floats (N, D); got {dtype} {shape}.")
            return shape[0], shape[1]

    @property
    def count(self) -> int:
        return self._shape[0]

    @property
    def width(self) -> int:
        return self._shape[1]

    @property
    def _is_archive(self) -> bool:
        return self.files[0].endswith(".npz")

    def read_blocks(self) -> Iterator[Block]:
        start = 0
        for features in self._pieces("features"):
            yield Block(np.arange(start, start + len(features)), features.astype(np.float32, copy=False))
            start += len(features)

    def describe(self, rows: Sequence[int]) -> dict[int, Described]:
        if not self._is_archive:
            return self._read_csv(set(rows))
        with self.reading(self.files[0]) as file:
            names = [name.removesuffix(".npy") for name in zipfile.ZipFile(file).namelist()]
        pictures = self._texts("picture", set(rows))
        labels = self._texts("label", set(rows)) if "label" in names else {}
        return {row: Described(picture, labels.get(row)) for row, picture in pictures.items()}

    def _texts(self, name: str, rows: set[int]) -> dict[int, str]:
        texts, start = dict[int, str](), 0
        for piece in self._pieces(name):
            texts |= {row: str(piece[row - start]) for row in rows if start <= row < start + len(piece)}
            start += len(piece)
        if start != self.count:
            raise DataError(f"{self.name}: {name} must have {self.count:,} rows, as features has; got {start:,}.")
        return texts

    def _read_csv(self, rows: set[int]) -> dict[int, Described]:
        name, found, count = self.files[1], dict[int, Described](), 0
        with self.reading(name) as file:
            table = csv.DictReader(io.TextIOWrapper(file, "utf-8", "surrogateescape", newline=""))
            for row, cells in enumerate(table):
                count = row + 1
                if row in rows:
                    found[row] = Described(cells["picture"], cells.get("label"))
        if count != self.count:
            raise DataError(
                f"{self.store.path(name)}: must have {self.count:,} rows, as {self.files[0]}; it has {count:,}."
            )
        return found

    def _pieces(self, name: str) -> Iterator[np.ndarray[Any, Any]]:
        """The rows of an array, some at a time."""
        with self._array(name) as (file, shape, dtype):
            size = dtype.itemsize * (shape[1] if len(shape) == 2 else 1)
            for start in range(0, shape[0], BLOCK):
                number = min(BLOCK, shape[0] - start)
                content = file.read(size * number)
                if len(content) != size * number:
                    raise DataError(f"{self.name}: {name} must have {shape[0]:,} rows; the file ends before.")
                yield np.frombuffer(content, dtype).reshape(number, *shape[1:])

    @contextmanager
    def _array(self, name: str) -> Generator[tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]]:
        """An array's bytes, its shape and its type."""
        with ExitStack() as opened:
            file = opened.enter_context(self.reading(self.files[0]))
            if self._is_archive:
                archive = opened.enter_context(zipfile.ZipFile(file))
                file = cast("IO[bytes]", opened.enter_context(archive.open(f"{name}.npy")))
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, in_columns, dtype = read(file)
            if in_columns or dtype.hasobject or len(shape) not in (1, 2):
                raise DataError(f"{self.name}: {name} must be rows of numbers or texts; got {dtype} {shape}.")
            yield file, shape, dtype


def open_collection(where: str | Path) -> Collection:
    """The embeddings of a job's folder, of a file, or of the folder that holds one; an address can be any of them."""
    text = hide_secrets(str(where))
    if str(where).endswith(SUFFIXES) and (is_address(where) or not Path(where).is_dir()):
        store, name = open_file_store(where)
        return _open_file(store, name)
    store = open_store(where)
    try:
        names = store.entries()
    except (FileNotFoundError, NotADirectoryError):
        hint = hint_path(str(where)) if isinstance(store, Disk) else ""
        what = "a folder of a job or of `vitrail embed`, or a .parquet, .npz or .npy file of embeddings"
        raise DataError(f"{text}: must be {what}; there is none{f'; {hint}' if hint else '.'}") from None
    if JOB in names:
        return _open_job(store)
    kept = [name for name in FILES if name in names]
    if len(kept) != 1:
        got = f"it has {' and '.join(kept)}; name one of them" if kept else "it has neither"
        raise DataError(f"{text}: must hold {JOB} or one of {', '.join(FILES)}; {got}.")
    return _open_file(store, kept[0])


def _open_file(store: Store, name: str) -> Collection:
    try:
        store.state(name)
        if not name.endswith(".npy"):
            return (ParquetFiles if name.endswith(".parquet") else ArrayFile)(store, [name])
        table = f"{name.removesuffix('.npy')}.csv"
        store.state(table)
    except FileNotFoundError as error:
        needed = ", which names its pictures" if str(error.filename or "").endswith(".csv") else ""
        raise DataError(f"{error.filename or store.path(name)}: there is no such file{needed}.") from None
    return ArrayFile(store, [name, table])


def _open_job(store: Store) -> Collection:
    (content,) = store.read([Span(JOB)])
    try:
        job = parse_json(content) if isinstance(content, bytes) else None
    except ValueError as error:
        raise DataError(f"{store.path(JOB)}: not a description of a job ({error}).") from None
    if not isinstance(job, dict):
        raise DataError(f"{store.path(JOB)}: not a description of a job.")
    if "_DONE" not in store.entries():
        raise DataError(f"{store.root}: the job must be whole; it is not. Run the same `vitrail embed` again.")
    parts = [f"{PARTS}/{name}" for name in store.entries(PARTS) if name.endswith(".parquet")]
    if not parts:
        raise DataError(f"{store.path(PARTS)}: has no parts.")
    return ParquetFiles(store, parts, cast("dict[str, Any]", job))

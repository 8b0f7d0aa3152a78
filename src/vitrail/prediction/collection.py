"""Embeddings in which pictures are searched: the parts of a job, on a disk or in a store, or a file of `embed`."""

import io
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from vitrail.errors import DataError, VitrailError
from vitrail.files import load_pyarrow
from vitrail.prediction.feature_files import FEATURES, read_features
from vitrail.prediction.feature_table import BLOCK, FeatureTable, Texts
from vitrail.prediction.results import Floats
from vitrail.rng import Integers
from vitrail.storage import Disk, Span, Store, hide_secrets, is_address, open_store
from vitrail.threads import in_chunks, map_in_order
from vitrail.untrusted import parse_json
from vitrail.wording import hint_path, reason

REQUESTS = 8  # parts that are asked about at once
TOGETHER = 4  # parts that are read at once
SUFFIXES = (".npz", ".npy", ".parquet")
FILES = tuple(f"{FEATURES}{suffix}" for suffix in SUFFIXES)  # that `vitrail embed` writes
JOB, PARTS, DONE = "job.json", "parts", "_DONE"


class Block(NamedTuple):
    """Some of the embeddings, in order; rows without one are left out."""

    rows: Integers  # (n,) their numbers
    features: Floats  # (n, D)


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Embeddings, and the files that hold them."""

    table: FeatureTable
    store: Store
    files: tuple[str, ...]  # by their names in the store
    job: Mapping[str, Any] | None = None  # the description of the job that made them

    @property
    def name(self) -> str:
        """Where they are, as users write it."""
        return self.store.path(self.files[0]) if self.job is None else self.store.root

    @cached_property
    def fingerprint(self) -> str:
        """What changes if one of the files does."""
        facts: list[tuple[str, int, str]] = []
        for name, state in zip(self.files, self.store.states(self.files), strict=True):
            if isinstance(state, OSError):
                raise DataError(f"{self.store.path(name)}: cannot be read ({state.strerror or state}).")
            facts.append((name, state.size, state.version))
        return sha256(json.dumps(facts).encode()).hexdigest()

    def blocks(self, advance: Callable[[int], None] = lambda _: None) -> Iterator[Block]:
        """All embeddings, in the order of their rows; `advance` is told how many rows are done."""
        start = 0
        for features in self.table.feature_blocks():
            rows = np.flatnonzero(np.isfinite(features).all(axis=1))
            yield Block(rows + start, features if len(rows) == len(features) else features[rows])
            start += len(features)
            advance(len(features))

    def describe(self, rows: Integers) -> Iterator[tuple[str, str | None]]:
        """The picture and, of a data set, the label of some rows, whose numbers must rise."""
        labels = self.table.texts_at("label", rows) if "label" in self.table.columns else [None] * len(rows)
        return zip(self.table.texts_at("picture", rows), labels, strict=True)


class JobParts(FeatureTable):
    """The features of a job, one Parquet file after the other; of a picture that could not be read, NaN."""

    columns = ("picture",)

    def __init__(self, store: Store, files: Sequence[str]) -> None:
        self._store, self._files = store, files
        sizes = list(map_in_order(self._size_up, files, REQUESTS))
        self._ends = list(accumulate(rows for rows, _ in sizes))
        width = sizes[0][1]
        for name, (_, other) in zip(files, sizes, strict=True):
            if other != width:
                raise DataError(f"{store.path(name)}: must have {width} features a row, as other parts; got {other}.")
        self.shape = (self._ends[-1], width)

    def _size_up(self, name: str) -> tuple[int, int]:
        """The rows and the width of a part."""
        pa, pq = load_pyarrow("A search in Parquet")
        with self._reading(name) as file:
            part = pq.ParquetFile(file)
            kind = part.schema_arrow.field(FEATURES).type
            if not pa.types.is_fixed_size_list(kind) or kind.value_type != pa.float32():
                raise DataError(f"{self._store.path(name)}: features must be lists of D float32 each, not {kind}.")
            return part.metadata.num_rows, kind.list_size

    def feature_blocks(self) -> Iterator[Floats]:
        for names in in_chunks(self._files, TOGETHER):
            for name, content in zip(names, self._store.read([Span(name) for name in names]), strict=True):
                for batch in self._batches(name, FEATURES, content):
                    features = np.full((batch.num_rows, self.shape[1]), np.nan, np.float32)
                    lists = batch.column(0)
                    valid = lists.is_valid().to_numpy(zero_copy_only=False)
                    features[valid] = lists.flatten().to_numpy().reshape(-1, self.shape[1])  # without what is null
                    yield features

    def text_blocks(self, columns: Sequence[str]) -> Iterator[list[Texts]]:
        (column,) = columns
        for name in self._files:
            for batch in self._batches(name, column):
                yield [(text,) for text in batch.column(0).to_pylist()]

    def texts_at(self, column: str, places: Integers) -> tuple[str, ...]:
        texts: list[str] = []
        for name, start, end in zip(self._files, [0, *self._ends], self._ends, strict=False):
            inside = places[np.searchsorted(places, start) : np.searchsorted(places, end)] - start
            if len(inside):  # only of such parts, anything is read
                every = [text for batch in self._batches(name, column) for text in batch.column(0).to_pylist()]
                texts += [every[place] for place in inside.tolist()]
        return tuple(texts)

    def _batches(self, name: str, column: str, content: bytes | OSError | None = None) -> Iterator[Any]:
        _, pq = load_pyarrow("A search in Parquet")
        with self._reading(name, content) as file:
            yield from pq.ParquetFile(file).iter_batches(BLOCK, columns=[column])

    @contextmanager
    def _reading(self, name: str, content: bytes | OSError | None = None) -> Generator[IO[bytes]]:
        """A part, or what was read of it, as a file; whatever is wrong with it is an error that names it."""
        try:
            if isinstance(content, OSError):
                raise content
            with self._store.open(name) if content is None else io.BytesIO(content) as file:
                yield file
        except VitrailError:
            raise
        except Exception as error:  # a damaged file can make pyarrow raise anything
            why = " ".join(reason(error).split())[:300]
            raise DataError(f"{self._store.path(name)}: not a part of a job's embeddings ({why}).") from None


def open_collection(where: str | Path) -> Collection:
    """The embeddings of a job, by the path or address of its folder; or of a file, or of the folder that holds it."""
    if not is_address(where) and Path(where).suffix in SUFFIXES and not Path(where).is_dir():
        return _open_file(Path(where))
    store = open_store(where)
    text = hide_secrets(str(where))
    try:
        names = store.entries()
    except (FileNotFoundError, NotADirectoryError):
        hint = hint_path(str(where)) if isinstance(store, Disk) else ""
        kinds = f"a folder that `vitrail embed` has written, or a file of features ({', '.join(SUFFIXES)})"
        raise DataError(f"{text}: must be {kinds}; there is no such folder{f'; {hint}' if hint else '.'}") from None
    if JOB in names:
        return _open_job(store, is_done=DONE in names)
    kept = [name for name in FILES if name in names] if isinstance(store, Disk) else []
    if isinstance(store, Disk) and len(kept) == 1:
        return _open_file(store.folder / kept[0])
    got = f"it has {' and '.join(kept)}: name one of them" if kept else "it does not"
    files = f" or one of {', '.join(FILES)}" if isinstance(store, Disk) else ""
    raise DataError(f"{text}: must hold embeddings, {JOB}{files}; {got}.")


def _open_file(path: Path) -> Collection:
    table = read_features(path)
    names = (path.name, path.with_suffix(".csv").name) if path.suffix == ".npy" else (path.name,)
    return Collection(table=table, store=open_store(path.parent), files=names)


def _open_job(store: Store, *, is_done: bool) -> Collection:
    (content,) = store.read([Span(JOB)])
    try:
        job = parse_json(content if isinstance(content, bytes) else b"")
    except ValueError as error:
        raise DataError(f"{store.path(JOB)}: not the description of a job ({error}).") from None
    if not is_done:
        raise DataError(f"{store.root}: the job must have ended; it has not. Continue it first.")
    parts = tuple(f"{PARTS}/{name}" for name in store.entries(PARTS) if name.endswith(".parquet"))
    if not parts or not isinstance(job, dict):
        raise DataError(f"{store.root}: not a job with embeddings.")
    return Collection(table=JobParts(store, parts), store=store, files=parts, job=cast("dict[str, Any]", job))

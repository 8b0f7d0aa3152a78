"""Embeddings in which pictures are searched: the parts of a job, on a disk or in a store, or a file of `embed`."""

import io
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.pixels import Picture
from vitrail.errors import DataError, VitrailError
from vitrail.files import load_pyarrow
from vitrail.prediction.feature_files import FEATURES, read_features
from vitrail.prediction.feature_table import FeatureTable, Texts
from vitrail.prediction.job import DESCRIPTION, DONE, Job, Totals, part_file
from vitrail.prediction.listing import Item, read_items
from vitrail.prediction.results import Floats
from vitrail.rng import Integers
from vitrail.storage import Disk, Span, Store, hide_secrets, is_address, open_store
from vitrail.threads import in_chunks
from vitrail.wording import hint_path, reason

TOGETHER = 4  # parts that are read at once
SUFFIXES = (".npz", ".npy", ".parquet")
FILES = tuple(f"{FEATURES}{suffix}" for suffix in SUFFIXES)  # that `vitrail embed` writes


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
    job: Job | None = None  # that made them

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

    def pictures(self, rows: Iterable[int]) -> dict[int, Picture]:
        """Row → its picture, where a job knows where it is: in a shard or a table, too."""
        if self.job is None:
            return {}
        size, items = self.job.spec.unit, dict[int, Item]()
        for unit, some in groupby(sorted(set(rows)), lambda row: row // size):
            every = self.job.items(unit)
            items |= {row: every[row % size] for row in some}
        contents = zip(items, read_items(list(items.values())), strict=True)
        return {row: content for row, content in contents if not isinstance(content, OSError)}


class JobParts(FeatureTable):
    """The features of a job, part after part; of a picture that could not be read, NaN."""

    columns = ("picture",)

    def __init__(self, job: Job, totals: Totals) -> None:
        self._store = job.store
        self._units = range(totals.units)
        self._starts = [unit * job.spec.unit for unit in self._units] + [totals.pictures]
        self.shape = (totals.pictures, int(job.spec.resolved["width"]))

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the parts."""
        return tuple(map(part_file, self._units))

    def feature_blocks(self) -> Iterator[Floats]:
        for units in in_chunks(self._units, TOGETHER):
            contents = self._store.read([Span(part_file(unit)) for unit in units])
            for unit, content in zip(units, contents, strict=True):
                with self._reading(unit, content) as part:
                    lists = part.read(columns=[FEATURES]).column(0).combine_chunks()
                    features = lists.flatten().to_numpy().reshape(-1, self.shape[1])  # without those that are null
                    if lists.null_count:
                        read, features = features, np.full((len(lists), self.shape[1]), np.nan, np.float32)
                        features[lists.is_valid().to_numpy(zero_copy_only=False)] = read
                yield features

    def text_blocks(self, columns: Sequence[str]) -> Iterator[list[Texts]]:
        (column,) = columns
        for unit in self._units:
            yield [(text,) for text in self._texts(unit, column)]

    def texts_at(self, column: str, places: Integers) -> tuple[str, ...]:
        texts: list[str] = []
        units = np.searchsorted(self._starts, places, side="right") - 1
        for unit in np.unique(units).tolist():  # only their parts are read
            every = self._texts(unit, column)
            texts += [every[place - self._starts[unit]] for place in places[units == unit].tolist()]
        return tuple(texts)

    def _texts(self, unit: int, column: str) -> list[str]:
        with self._reading(unit) as part:
            return part.read(columns=[column]).column(0).to_pylist()

    @contextmanager
    def _reading(self, unit: int, content: bytes | OSError | None = None) -> Generator[Any]:
        """A part, or what was read of it, as a Parquet file; whatever is wrong with it is an error that names it."""
        _, pq = load_pyarrow("A search in a job")
        name = part_file(unit)
        try:
            if isinstance(content, OSError):
                raise content
            with self._store.open(name) if content is None else io.BytesIO(content) as file:
                part = pq.ParquetFile(file)
                rows, wanted = part.metadata.num_rows, self._starts[unit + 1] - self._starts[unit]
                if rows != wanted:
                    raise ValueError(f"must have {wanted:,} rows; got {rows:,}")
                yield part
        except VitrailError:
            raise
        except Exception as error:  # a damaged file can make pyarrow raise anything
            why = " ".join(reason(error).split())[:300]
            raise DataError(f"{self._store.path(name)}: not a part of this job ({why}).") from None


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
    if DESCRIPTION in names:
        return _open_job(where, is_done=DONE in names)
    kept = [name for name in FILES if name in names] if isinstance(store, Disk) else []
    if isinstance(store, Disk) and len(kept) == 1:
        return _open_file(store.folder / kept[0])
    got = f"it has {' and '.join(kept)}: name one of them" if kept else "it does not"
    files = f" or one of {', '.join(FILES)}" if isinstance(store, Disk) else ""
    raise DataError(f"{text}: must hold embeddings, {DESCRIPTION}{files}; {got}.")


def _open_file(path: Path) -> Collection:
    table = read_features(path)
    names = (path.name, path.with_suffix(".csv").name) if path.suffix == ".npy" else (path.name,)
    return Collection(table=table, store=open_store(path.parent), files=names)


def _open_job(where: str | Path, *, is_done: bool) -> Collection:
    job = Job.open(where)
    if job.spec.task != "embed":
        raise DataError(f"{job.store.root}: must be a job of `vitrail embed`; it is one of `vitrail {job.spec.task}`.")
    totals = job.listed() if is_done else None
    if totals is None:
        raise DataError(f"{job.store.root}: the job must have ended; it has not. Continue it: `resume=True`.")
    table = JobParts(job, totals)
    return Collection(table=table, store=job.store, files=table.files, job=job)

"""The nearest embeddings, approximately: faiss's inverted lists, built once and kept.

Each embedding is in the list of the centre that it is nearest to, and a search reads only the lists whose centres are
nearest to the query. The index holds the embeddings in float16, and is mapped into memory rather than read. It is kept
beside the embeddings, or in the user's cache if they are in an object store or a folder that cannot be written to; its
name tells which files it was built from, so that it is not used for others.
"""

import os
import sys
from hashlib import sha256
from math import isqrt
from pathlib import Path
from typing import Any, cast

import numpy as np

from vitrail.cache import Shelf, mark_used
from vitrail.errors import ConfigError, DataError, MissingExtraError
from vitrail.files import atomic_path
from vitrail.prediction.collection import Collection
from vitrail.prediction.neighbours import Nearest, unit_vectors
from vitrail.prediction.results import Floats
from vitrail.progress import Progress, silent
from vitrail.storage import Disk
from vitrail.wording import in_one_line, reason

LISTS = 2  # per square root of the number of rows
SEARCHED, LEAST_SEARCHED = 8, 96  # one of so many lists is searched, but at least so many
SAMPLES = 64  # embeddings for each list, from which the centres are made
ROOM = 8  # times as many rows are looked at as are wanted, at least
FORM = 1  # of what is built; another one is built again
SHELF = Shelf(name="search", most_items=32, most_bytes=64 << 30)


def load_faiss() -> Any:
    """faiss, or an error that says what to do."""
    if sys.platform == "darwin":  # github.com/faiss-wheels/faiss-wheels/issues/73
        raise ConfigError(
            'must be "exact" on macOS: faiss and torch each bring an OpenMP of their own there, and crash together.',
            field="method",
        )
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("An approximate search", "search") from None
    return cast("Any", faiss)


def kept_index(collection: Collection) -> Path | None:
    """The index that was built from these very files, if there is one."""
    return next((path for path in _places(collection) if path.is_file()), None)


def build_index(collection: Collection, progress: Progress = silent) -> Path:
    """Build the index of a collection, which is read twice, and keep it; an older one of the same files is removed."""
    faiss = load_faiss()
    count, width = collection.table.shape
    lists = max(min(LISTS * isqrt(count), count // 4), 1)
    index = faiss.index_factory(width, f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # fewer are no reason to complain
    with progress("sorting embeddings", 2 * count) as advance:
        every, samples = max(count // (SAMPLES * lists), 1), list[Floats]()
        for rows, features in collection.blocks(advance):
            samples.append(_prepare(features[rows % every == 0]))
        if not sum(map(len, samples)):
            raise DataError(f"{collection.name}: none of its pictures has an embedding.")
        index.train(np.concatenate(samples))
        for rows, features in collection.blocks(advance):
            index.add_with_ids(_prepare(features), rows)
    *beside, cached = _places(collection)
    path = next((path for path in beside if os.access(path.parent, os.W_OK)), cached)
    if path == cached:
        SHELF.make_room(2 * index.ntotal * index.d)
    try:
        with atomic_path(path) as draft, draft.open("wb") as file:  # of which faiss itself would not check the end
            faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{path}: the index cannot be written ({' '.join(reason(error).split())[:200]}).") from None
    for old in path.parent.glob(f"{_stem(collection)}-*.faiss") if path != cached else ():
        if old != path:
            old.unlink()
    return path


def search_index(path: Path, queries: Floats, k: int) -> Nearest:
    """About the `k` nearest rows of each query (Q, D)."""
    faiss = load_faiss()
    mark_used(path)
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
    except RuntimeError as error:
        raise DataError(f"{path}: not an index ({in_one_line(error)[:200]}); delete it, to build it again.") from None
    enough = -(-ROOM * k * index.nlist // max(index.ntotal, 1))
    index.nprobe = min(max(index.nlist // SEARCHED, LEAST_SEARCHED, enough), index.nlist)
    similarities, rows = index.search(_prepare(queries), k)
    order = [np.lexsort((own, -near))[: (own >= 0).sum()] for own, near in zip(rows, similarities, strict=True)]
    return Nearest(
        rows=tuple(own[best] for own, best in zip(rows, order, strict=True)),
        similarities=tuple(
            near[best].astype(np.float64).clip(-1, 1) for near, best in zip(similarities, order, strict=True)
        ),
        searched=index.ntotal,
    )


def _prepare(features: Floats) -> Floats:
    return unit_vectors(features).astype(np.float32)


def _stem(collection: Collection) -> str:
    return Path(collection.files[0]).parts[0]


def _places(collection: Collection) -> list[Path]:
    """Where its index may be; the last is in the user's cache."""
    key = sha256(f"{FORM} {collection.fingerprint}".encode()).hexdigest()[:16]
    name = f"{_stem(collection)}-{key}.faiss"
    store = collection.store
    return [*([store.folder / name] if isinstance(store, Disk) else []), SHELF.folder / name]

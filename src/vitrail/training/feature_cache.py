"""Features in the user's cache, by what the pictures contain: a picture that is in many runs is computed once.

`features/BACKBONE-HASH.safetensors` in the cache has the features of some pictures of one backbone, with the digests of
their contents. A file never changes: new pictures make another one, and many small ones become one. The least recently
used make room for new ones; a file that is damaged, or gone, counts as one that never was.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vitrail.cache import Shelf, mark_used
from vitrail.data.preprocess import Preprocess
from vitrail.errors import WeightsError
from vitrail.files import atomic_path
from vitrail.model import ViT
from vitrail.prediction import Predictor
from vitrail.prediction.results import Named
from vitrail.runtimes.runtime import Floats
from vitrail.training.feature_store import backbone_key, backbone_of, checksum
from vitrail.weights.tensor_files import read_safetensors, write_safetensors

SHELF = Shelf(name="features", most_items=512, most_bytes=2 << 30)
DIGEST_BYTES = 16
FILES = 16  # of one backbone, from which they are joined


class _Rows(NamedTuple):
    """What a file holds."""

    places: dict[str, int]  # digest → row
    features: Floats  # (n, D)


@dataclass(frozen=True)
class FeatureCache:
    """The features of one backbone."""

    key: str

    @classmethod
    def of(cls, model: ViT, preprocess: Preprocess) -> "FeatureCache":
        """That of a model, whose head makes no difference."""
        key = backbone_key(backbone_of(model, preprocess))
        return cls(hashlib.blake2b(key.encode(), digest_size=DIGEST_BYTES).hexdigest())

    def find(self, digests: Iterable[str]) -> dict[str, Floats]:
        """The features that are there, by the digests of the pictures."""
        wanted, found = set(digests), dict[str, Floats]()
        for path in self._files():
            if (rows := _read(path)) is None:
                continue
            if some := [digest for digest in wanted if digest in rows.places]:
                found |= {digest: rows.features[rows.places[digest]] for digest in some}
                wanted -= set(some)
                mark_used(path)
            if not wanted:
                break
        return found

    def add(self, features: Mapping[str, Floats]) -> None:
        """Keep what is new; a cache that cannot be written keeps nothing."""
        if not features:
            return
        old = self._files()
        joined = old if len(old) >= FILES else []
        everything = dict(features)
        for rows in filter(None, map(_read, joined)):
            everything |= {digest: rows.features[row] for digest, row in rows.places.items()}
        with contextlib.suppress(OSError):
            self._write(everything)
            for path in joined:
                path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return sorted(SHELF.folder.glob(f"{self.key}-*.safetensors"))

    def _write(self, features: Mapping[str, Floats]) -> None:
        digests = np.frombuffer(b"".join(map(bytes.fromhex, features)), dtype=np.uint8).reshape(len(features), -1)
        rows = np.stack(list(features.values())).astype(np.float32, copy=False)
        tensors = {"features": torch.from_numpy(rows), "digests": torch.from_numpy(digests.copy())}
        SHELF.make_room(rows.nbytes + digests.nbytes)
        name = hashlib.blake2b(digests.tobytes(), digest_size=8).hexdigest()
        with atomic_path(SHELF.folder / f"{self.key}-{name}.safetensors") as draft:
            write_safetensors(draft, tensors, {"crc32": checksum(tensors)})


def compute_features(
    predictor: Predictor,
    digests: Sequence[str | None],
    stream: Callable[[Iterable[int]], Iterable[Named]],
    cache: FeatureCache,
) -> tuple[dict[int, Floats], dict[int, str]]:
    """The features of pictures by their indices, and why others have none; what is not in the cache is computed.

    Args:
        digests: of the pictures' contents; None for one that is not to be found in the cache.
        stream: the pictures of some indices, by their names.
    """
    known = cache.find(digest for digest in digests if digest is not None)
    firsts = {digest or index: index for index, digest in reversed(list(enumerate(digests))) if digest not in known}
    missing = sorted(firsts.values())
    computed: dict[int, Floats] = {}
    broken: dict[int, str] = {}
    if missing:
        some = predictor.on("auto", count=len(missing), pictures=(picture for _, picture in stream(missing)))
        for index, (_, value) in zip(missing, some.features(stream(missing)), strict=True):
            if isinstance(value, str):
                broken[index] = value
            else:
                computed[index] = value.copy()
        new = {
            digest: computed[index] for digest, index in firsts.items() if isinstance(digest, str) and index in computed
        }
        cache.add(new)
        known |= new
    for index, digest in enumerate(digests):
        if digest in known:
            computed[index] = known[digest]
        elif index not in computed:
            broken.setdefault(index, broken.get(firsts[digest or index], ""))
    return computed, broken


@lru_cache(maxsize=2 * FILES)
def _load(path: Path, _version: tuple[int, int]) -> _Rows | None:
    try:
        tensors, metadata = read_safetensors(path)
        if metadata.get("crc32") != checksum(tensors):
            return None
        digests = [bytes(row).hex() for row in tensors["digests"].numpy()]
        rows: Floats = tensors["features"].numpy()
    except (WeightsError, KeyError):
        return None
    return _Rows({digest: row for row, digest in enumerate(digests)}, rows) if len(rows) == len(digests) else None


def _read(path: Path) -> _Rows | None:
    """A file's contents; kept in memory while they are among the last that were asked for."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _load(path, (status.st_ino, status.st_size))

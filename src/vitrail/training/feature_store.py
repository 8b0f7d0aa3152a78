"""Features in the run folder, written as they come: what a run has computed once, it never computes again.

`features/SPLIT-N.safetensors` has the features of some pictures, each file whole or absent; when all are there, they
become `features/SPLIT.safetensors`. Every file carries the key of what it was made of (weights, preprocessing,
pictures) and its checksum, and a file with another key, or a damaged one, counts as absent.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.data.source import FileSource, Source
from vitrail.errors import WeightsError
from vitrail.files import atomic_path
from vitrail.model import ViT
from vitrail.rng import Integers
from vitrail.schema import to_dict
from vitrail.weights.adapt import HEADS
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import fingerprint
from vitrail.weights.tensor_files import bytes_of, read_safetensors, write_safetensors

FOLDER, ANSWERS = "features", "answers"  # in a run folder; the latter is what a teacher says, by the same means
PART = 64  # pictures of a file: what a killed run computes again at most; a power of two


class Features(NamedTuple):
    """Of some pictures of a split; those that cannot be read are missing."""

    features: Tensor  # (n, D)
    indices: Tensor  # (n,) which samples of the split


def select_features(features: Features, rows: Integers) -> Features:
    """Those of some samples, as a split of its own, in the order given; samples that could not be read are missing."""
    chosen, indices = torch.from_numpy(rows), features.indices
    places = torch.full((1 + max(int(chosen.max()), int(indices.max())),), -1, dtype=torch.long)
    places[indices] = torch.arange(len(indices))
    there = places[chosen]
    return Features(features.features[there[there >= 0]], torch.nonzero(there >= 0).flatten())


def backbone_of(model: ViT, preprocess: Preprocess) -> Checkpoint:
    """The model without its head: features do not depend on that. The weights are shared."""
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items() if not name.startswith(HEADS)}
    return Checkpoint(
        config=replace(model.config, num_classes=0, distilled=False), tensors=tensors, preprocess=preprocess
    )


def backbone_key(backbone: Checkpoint) -> str:
    """Everything that the features of a picture depend on, beside the picture."""
    tensors = {name: tensor.cpu() for name, tensor in backbone.tensors.items()}
    return fingerprint(tensors) + json.dumps([to_dict(backbone.config), to_dict(backbone.preprocess)], sort_keys=True)


def features_key(backbone: Checkpoint, source: Source, contents: str = "") -> str:
    """Everything that the features of a split depend on; `contents` identifies those of the pictures."""
    return split_key(backbone_key(backbone), source, contents)


def split_key(made_by: str, source: Source, contents: str = "") -> str:
    """A hash of what something was computed with, and of the pictures of a split that it was computed from."""
    digest = hashlib.sha256(made_by.encode())
    for index in range(len(source)):
        size = source.size(index) if isinstance(source, FileSource) else 0
        digest.update(f"{source.key(index)}\0{size}\n".encode("utf-8", "surrogateescape"))
    digest.update(contents.encode())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class FeatureStore:
    """The features of one split in a run folder."""

    folder: Path
    split: str
    key: str
    count: int  # pictures of the split
    spread: bool = False  # whether each part is a sample of the split, so that some of them can stand for all

    @property
    def parts(self) -> range:
        return range(-(-self.count // PART))

    def pictures(self, part: int) -> range:
        """The samples of a part."""
        if self.spread:
            return range(part, self.count, len(self.parts))
        return range(part * PART, min((part + 1) * PART, self.count))

    def missing(self) -> list[int]:
        """The parts that are not there; files of other weights or pictures, and damaged ones, do not count."""
        if self.read_whole() is not None:
            return []
        return [part for part in self.parts if self._read_part(part) is None]

    def write(self, part: int, features: Features) -> None:
        """Keep a part."""
        self._write(self._path(part), features)

    def read(self, parts: Iterable[int]) -> Features:
        """These parts, in the order of the samples."""
        there = [self._read_part(part) for part in parts]
        found = [part for part in there if part is not None]
        if len(found) < len(there):
            raise WeightsError(f"features of {self.split} pictures have disappeared from {self.folder}; resume the run")
        full = [part for part in found if len(part.indices)] or found[:1]
        features, indices = (torch.cat(tensors) for tensors in zip(*full, strict=True))
        order = indices.argsort()
        return Features(features[order], indices[order])

    def _read_part(self, part: int) -> Features | None:
        """A part, if it is there and has the samples that it should have."""
        features = self._read(self._path(part))
        return features if features is not None and set(features.indices.tolist()) <= set(self.pictures(part)) else None

    def read_whole(self) -> Features | None:
        """All features, if they are in one file already."""
        return self._read(self._path(None))

    def join(self, features: Features) -> None:
        """One file instead of the parts, given all of them."""
        if self.read_whole() is None:
            self._write(self._path(None), features)
        for path in self.folder.glob(f"{self.split}-*.safetensors"):
            path.unlink(missing_ok=True)

    def _path(self, part: int | None) -> Path:
        return self.folder / (f"{self.split}.safetensors" if part is None else f"{self.split}-{part:07d}.safetensors")

    def _write(self, path: Path, features: Features) -> None:
        tensors = features._asdict()
        with atomic_path(path) as draft:
            write_safetensors(draft, tensors, {"key": self.key, "crc32": checksum(tensors)})

    def _read(self, path: Path) -> Features | None:
        if not path.is_file() or path.is_symlink():
            return None
        try:
            tensors, metadata = read_safetensors(path)
        except WeightsError:
            return None
        if metadata.get("key") != self.key or metadata.get("crc32") != checksum(tensors):
            return None
        return Features(**tensors)


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 of named tensors."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(bytes_of(tensors[name]), zlib.crc32(name.encode(), total))
    return str(total)


def largest_call(batch_size: int) -> int:
    """Pictures per call: a part has a whole number of calls, so that the same pictures always share one."""
    return 1 << min(max(batch_size, 1), PART).bit_length() - 1  # a power of two, as the part is

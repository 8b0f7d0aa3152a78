"""Ranks that share work must have the same data: the same names in the same order, with the same labels and splits."""

import hashlib
import socket
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vitrail.data.source import Dataset
from vitrail.errors import DataError, list_names
from vitrail.ranks import Ranks
from vitrail.wording import agree, counted

SHOWN = 3  # examples of a difference


class _Sample(NamedTuple):
    """One picture as a rank sees it."""

    key: str
    split: str
    name: str  # of the class, or the labels as split.csv has them


def check_same_data(dataset: Dataset, ranks: Ranks) -> None:
    """Refuse data that differ between ranks, on all of them; what they find in the pictures is not compared."""
    if ranks.world_size == 1:
        return
    digests = ranks.gather(_digest(dataset))
    differing = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if not differing:
        return
    own = list(_samples(dataset))
    difference = _describe(ranks.from_first(lambda: own), own)
    host, difference = ranks.gather((socket.gethostname(), difference))[differing[0]]
    others = len(differing) - 1
    more = f" (as {agree(others, 'does', 'do')} {counted(others, 'other rank')})" if others else ""
    error = DataError(
        f"all ranks must have the same pictures, classes and splits; rank {differing[0]} on {host} differs from rank 0"
        f"{more}: {difference}. Copy the data of rank 0 to all machines, or let all ranks read one shared folder."
    )
    raise ranks.reported_once(error)


def _samples(dataset: Dataset) -> Iterator[_Sample]:
    for split, source in dataset.splits.items():
        for key, cell in dataset.cells(source, range(len(source))):
            yield _Sample(key, split, cell)


def _digest(dataset: Dataset) -> bytes:
    digest = hashlib.blake2b(repr((dataset.task, dataset.classes)).encode(), digest_size=16)
    for sample in _samples(dataset):
        digest.update("\0".join(sample).encode("utf-8", "surrogateescape"))
    return digest.digest()


def _describe(first: Sequence[_Sample], own: Sequence[_Sample]) -> str:
    """How this rank's pictures differ from those of the first."""
    theirs, ours = ({sample.key: sample for sample in samples} for samples in (first, own))
    kinds = {
        "only there": [key for key in ours if key not in theirs],
        "missing there": [key for key in theirs if key not in ours],
        "of another class or split there": [key for key in ours if key in theirs and ours[key] != theirs[key]],
    }
    parts = [
        f"{counted(len(keys), 'picture')} {agree(len(keys), 'is', 'are')} {how}: {list_names(sorted(keys), SHOWN)}"
        for how, keys in kinds.items()
        if keys
    ]
    return "; ".join(parts) or "the same pictures or classes are in another order there"

"""The same picture twice: exactly (equal pixels) or nearly (resized, recompressed, slightly brighter)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from vitrail.data.augment.draws import permutation
from vitrail.data.check.scan import THUMBNAIL, Facts

MIN_CORRELATION = 0.97  # between the grey levels of two thumbnails; on CIFAR-10 this finds what a person calls the same
COARSE, COARSE_CORRELATION = 8, 0.96  # first at 8×8, where there is less to multiply
MIN_SIDE = 32  # smaller pictures look alike too easily
MIN_CONTRAST = 8.0  # standard deviation of a thumbnail; below it there is nothing to compare
ALL_PAIRS = 100_000  # up to so many pictures every pair is compared; beyond, those that are near the same pivots
BLOCK = 256
Vectors = np.ndarray[Any, np.dtype[np.float32]]


def exact_groups(facts: Sequence[Facts]) -> list[list[int]]:
    """Positions in `facts` of pictures with equal pixels, two or more each."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for position, fact in enumerate(facts):
        if not fact.trouble:
            found[fact.digest].append(position)
    return [group for group in found.values() if len(group) > 1]


def near_pairs(facts: Sequence[Facts]) -> list[tuple[int, int]]:
    """Positions in `facts` of pictures that are nearly, not exactly, the same."""
    large = [position for position, fact in enumerate(facts) if min(fact.width, fact.height) >= MIN_SIDE]
    if not large:
        return []
    thumbnails = np.stack([np.frombuffer(facts[i].thumbnail, dtype=np.uint8) for i in large]).astype(np.float32)
    clear = thumbnails.std(1) >= MIN_CONTRAST
    places, thumbnails = np.array(large)[clear], thumbnails[clear]
    step = THUMBNAIL // COARSE
    coarse = thumbnails.reshape(-1, COARSE, step, COARSE, step).mean((2, 4)).reshape(-1, COARSE * COARSE)
    fine, coarse = _center(thumbnails), _center(coarse)
    pairs: set[tuple[int, int]] = set()
    for bucket in _buckets(coarse):
        left, right = _similar(coarse[bucket])
        left, right = bucket[left], bucket[right]
        close = (fine[left] * fine[right]).sum(1) >= MIN_CORRELATION
        pairs.update(zip(places[left[close]].tolist(), places[right[close]].tolist(), strict=True))
    return sorted((a, b) for a, b in pairs if facts[a].digest != facts[b].digest)


def _center(vectors: Vectors) -> Vectors:
    """Without their mean and of length 1, so that a product is a correlation."""
    vectors = vectors - vectors.mean(1, keepdims=True)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)


def _buckets(vectors: Vectors) -> Iterator[np.ndarray[Any, Any]]:
    """Sets of rows, in ascending order, within which to look: all, or those that share one of their two best pivots."""
    if len(vectors) <= ALL_PAIRS:
        yield np.arange(len(vectors))
        return
    pivots = vectors[permutation(0, 0, len(vectors))[: 10 * len(vectors) // ALL_PAIRS]]
    best = np.concatenate(
        [
            np.argpartition(vectors[start : start + BLOCK] @ pivots.T, -2, axis=1)[:, -2:]
            for start in range(0, len(vectors), BLOCK)
        ]
    )  # (N, 2)
    for pivot in range(len(pivots)):
        yield np.flatnonzero((best == pivot).any(1))


def _similar(vectors: Vectors) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows (left < right) whose correlation is high enough to look closer."""
    lefts: list[np.ndarray[Any, Any]] = [np.empty(0, dtype=np.int64)]
    rights = lefts.copy()
    for start in range(0, len(vectors), BLOCK):
        left, right = np.nonzero(vectors[start : start + BLOCK] @ vectors[start:].T >= COARSE_CORRELATION)
        later = right > left
        lefts.append(left[later] + start)
        rights.append(right[later] + start)
    return np.concatenate(lefts), np.concatenate(rights)


def across_splits(facts: Sequence[Facts], group: Sequence[int]) -> bool:
    """Whether the same picture is in two splits: what was learned is then tested."""
    return len({facts[position].split for position in group}) > 1


def conflicting(facts: Sequence[Facts], group: Sequence[int]) -> bool:
    """Whether the same picture has two labels."""
    return len({facts[position].label for position in group}) > 1


def pair_names(facts: Sequence[Facts], group: Sequence[int]) -> Iterator[tuple[Facts, Facts]]:
    """The first of a group with each of the others."""
    return ((facts[a], facts[b]) for a, b in combinations(group, 2) if a == group[0])

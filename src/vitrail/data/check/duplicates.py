"""The same picture twice: exactly (equal pixels) or nearly (resized, recompressed, slightly brighter)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.check.scan import THUMBNAIL, PictureFacts
from vitrail.rng import Integers, permutation

MIN_CORRELATION = 0.97  # between the grey levels of two thumbnails; on CIFAR-10 this finds what people call the same
MIN_EDGE_CORRELATION = 0.8  # between their differences; copies have 0.9, two photographs of one layout below 0.7
COARSE, COARSE_CORRELATION = 8, 0.96  # first at 8×8, where there is less to multiply
MIN_SIDE = 32  # smaller pictures look alike too easily
MIN_CONTRAST = 8.0  # standard deviation of a thumbnail; below it there is nothing to compare
ALL_PAIRS = 100_000  # up to this many pictures, every pair is compared; beyond, those near the same pivots
BLOCK = 256
MOST = 8  # near duplicates shown of one picture, in its own split and in others
Vectors = np.ndarray[Any, np.dtype[np.float32]]


def exact_groups(facts: Sequence[PictureFacts]) -> list[list[int]]:
    """Positions in `facts` of pictures with equal pixels, two or more each."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for position, fact in enumerate(facts):
        if not fact.trouble:
            groups[fact.digest].append(position)
    return [group for group in groups.values() if len(group) > 1]


def near_pairs(facts: Sequence[PictureFacts], *, mirrored: bool = False) -> Iterator[tuple[PictureFacts, PictureFacts]]:
    """Pictures that are nearly, not exactly, the same; or with `mirrored`, one of which is a mirror image."""
    indices = [position for position, fact in enumerate(facts) if can_be_compared(fact)]
    if not indices:
        return
    thumbnails = np.stack([_levels(facts[index]) for index in indices])  # (N, 16, 16)
    others = thumbnails[:, :, ::-1] if mirrored else thumbnails
    lefts, rights = _Thumbnails.of(thumbnails), _Thumbnails.of(others)
    names = sorted({fact.split for fact in facts})
    splits = np.array([names.index(facts[index].split) for index in indices], dtype=np.int64)
    pairs: set[tuple[int, int]] = set()
    for bucket in buckets(_center(lefts.coarse + rights.coarse)):  # the same for a picture and its mirror image
        for left, right in _similar(lefts.part(bucket), rights.part(bucket), splits[bucket]):
            pairs.update((indices[a], indices[b]) for a, b in zip(bucket[left], bucket[right], strict=True))
    for first, other in ((facts[a], facts[b]) for a, b in sorted(pairs)):
        if first.digest != other.digest and correlate(first, other, mirrored=mirrored)[1] >= MIN_EDGE_CORRELATION:
            yield first, other


def can_be_compared(fact: PictureFacts) -> bool:
    """Whether a picture is readable, large and rich enough in contrast to be told from others by its thumbnail."""
    return min(fact.width, fact.height) >= MIN_SIDE and float(_levels(fact).std()) >= MIN_CONTRAST


def correlate(one: PictureFacts, other: PictureFacts, *, mirrored: bool = False) -> tuple[float, float]:
    """The correlations of two thumbnails' grey levels, and of the differences between neighbouring levels.

    The second tells two similar landscapes apart.
    """
    levels = np.stack([_levels(one), _levels(other)[:, ::-1] if mirrored else _levels(other)])
    grey = _center(levels.reshape(2, -1))
    levels = levels - levels.mean(2, keepdims=True)  # removes sky, horizon and field, which span whole rows
    edges = _center(np.concatenate([np.diff(levels, axis=axis).reshape(2, -1) for axis in (1, 2)], axis=1))
    return float(grey[0] @ grey[1]), float(edges[0] @ edges[1])


def _levels(fact: PictureFacts) -> Vectors:
    return np.frombuffer(fact.thumbnail, dtype=np.uint8).reshape(THUMBNAIL, THUMBNAIL).astype(np.float32)


class _Thumbnails(NamedTuple):
    """Thumbnails as vectors whose products are correlations."""

    coarse: Vectors  # (N, 8 · 8)
    fine: Vectors  # (N, 16 · 16)

    @classmethod
    def of(cls, levels: Vectors) -> "_Thumbnails":  # (N, 16, 16)
        step = THUMBNAIL // COARSE
        coarse = levels.reshape(-1, COARSE, step, COARSE, step).mean((2, 4))
        return cls(*(_center(each.reshape(len(levels), -1)) for each in (coarse, levels)))

    def part(self, rows: Integers) -> "_Thumbnails":
        return _Thumbnails(self.coarse[rows], self.fine[rows])


def _center(vectors: Vectors) -> Vectors:
    """With mean 0 and length 1, so that a product is a correlation."""
    vectors = vectors - vectors.mean(1, keepdims=True)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)


def buckets(vectors: Vectors) -> Iterator[Integers]:
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


def _similar(lefts: _Thumbnails, rights: _Thumbnails, splits: Integers) -> Iterator[tuple[Integers, Integers]]:
    """Rows (left < right) that correlate, block after block; each right one at most MOST times in its split and others.

    Without that limit, the frames of one film would give a quadratic number of pairs.
    """
    counts = np.zeros((2, len(splits)), dtype=np.int64)  # for each right row: pairs within its split, and across
    for start in range(0, len(splits), BLOCK):
        stop = min(start + BLOCK, len(splits))
        close = np.triu(lefts.coarse[start:stop] @ rights.coarse[start:].T >= COARSE_CORRELATION, 1)
        columns = np.flatnonzero(close.any(0))
        rows = columns + start
        same = splits[start:stop, None] == splits[rows]
        for kind, mask in enumerate((same, ~same)):
            wanted = close[:, columns] & mask & (counts[kind, rows] < MOST)
            _look_closer(wanted, lefts.fine[start:stop], rights.fine[rows])
            wanted &= np.cumsum(wanted, axis=0) <= MOST - counts[kind, rows]
            counts[kind, rows] += wanted.sum(0)
            left, right = np.nonzero(wanted)
            yield left + start, rows[right]


def _look_closer(wanted: np.ndarray[Any, Any], lefts: Vectors, rights: Vectors) -> None:
    """Keep, in place, the pairs that correlate as thumbnails too: one by one, or all at once where there are many."""
    if np.count_nonzero(wanted) > wanted.shape[1]:
        wanted &= lefts @ rights.T >= MIN_CORRELATION
        return
    left, right = np.nonzero(wanted)
    wanted[left, right] = (lefts[left] * rights[right]).sum(1) >= MIN_CORRELATION


def partners(facts: Sequence[PictureFacts], group: Sequence[int]) -> Iterator[tuple[PictureFacts, PictureFacts]]:
    """Each of a group but the first, paired with one to show beside it: of another class or split if possible."""
    first = facts[group[0]]
    other_class = next((facts[index] for index in group if facts[index].label != first.label), first)
    other_split = next((facts[index] for index in group if facts[index].split != first.split), first)
    for fact in (facts[index] for index in group[1:]):
        if other_class is not first:
            yield (other_class if fact.label == first.label else first), fact
        else:
            yield (other_split if fact.split == first.split else first), fact

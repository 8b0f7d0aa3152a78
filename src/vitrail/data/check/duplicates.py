"""The same picture twice: exactly (equal pixels) or nearly (resized, recompressed, slightly brighter)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

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


def near_pairs(facts: Sequence[PictureFacts]) -> Iterator[tuple[PictureFacts, PictureFacts]]:
    """Pictures that are nearly, not exactly, the same."""
    large = [position for position, fact in enumerate(facts) if min(fact.width, fact.height) >= MIN_SIDE]
    if not large:
        return
    thumbnails = np.stack([np.frombuffer(facts[i].thumbnail, dtype=np.uint8) for i in large]).astype(np.float32)
    clear = thumbnails.std(1) >= MIN_CONTRAST
    indices, thumbnails = np.array(large)[clear], thumbnails[clear]
    step = THUMBNAIL // COARSE
    coarse = thumbnails.reshape(-1, COARSE, step, COARSE, step).mean((2, 4)).reshape(-1, COARSE * COARSE)
    fine, coarse = _center(thumbnails), _center(coarse)
    names = sorted({fact.split for fact in facts})
    splits = np.array([names.index(facts[index].split) for index in indices], dtype=np.int64)
    pairs: set[tuple[int, int]] = set()
    for bucket in _buckets(coarse):
        for left, right in _similar(coarse[bucket], fine[bucket], splits[bucket]):
            pairs.update(zip(indices[bucket[left]].tolist(), indices[bucket[right]].tolist(), strict=True))
    for first, other in ((facts[a], facts[b]) for a, b in sorted(pairs)):
        if first.digest != other.digest and _same_edges(first, other):
            yield first, other


def _same_edges(one: PictureFacts, other: PictureFacts) -> bool:
    """Whether neighbouring levels differ in the same places, which tells two similar landscapes apart."""
    edges = _center(np.stack([_edges(one), _edges(other)]))
    return float(edges[0] @ edges[1]) >= MIN_EDGE_CORRELATION


def _edges(fact: PictureFacts) -> Vectors:
    levels = np.frombuffer(fact.thumbnail, dtype=np.uint8).reshape(THUMBNAIL, THUMBNAIL).astype(np.float32)
    levels = levels - levels.mean(1, keepdims=True)  # removes sky, horizon and field, which span whole rows
    return np.concatenate([np.diff(levels, axis=0).ravel(), np.diff(levels, axis=1).ravel()])


def _center(vectors: Vectors) -> Vectors:
    """With mean 0 and length 1, so that a product is a correlation."""
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


def _similar(coarse: Vectors, fine: Vectors, splits: Integers) -> Iterator[tuple[Integers, Integers]]:
    """Rows (left < right) that correlate, block after block; each right one at most MOST times in its split and others.

    Without that limit, the frames of one film would give a quadratic number of pairs.
    """
    counts = np.zeros((2, len(coarse)), dtype=np.int64)  # for each right row: pairs within its split, and across
    for start in range(0, len(coarse), BLOCK):
        stop = min(start + BLOCK, len(coarse))
        close = np.triu(coarse[start:stop] @ coarse[start:].T >= COARSE_CORRELATION, 1)
        columns = np.flatnonzero(close.any(0))
        rights = columns + start
        same = splits[start:stop, None] == splits[rights]
        for kind, mask in enumerate((same, ~same)):
            wanted = close[:, columns] & mask & (counts[kind, rights] < MOST)
            _look_closer(wanted, fine[start:stop], fine[rights])
            wanted &= np.cumsum(wanted, axis=0) <= MOST - counts[kind, rights]
            counts[kind, rights] += wanted.sum(0)
            left, right = np.nonzero(wanted)
            yield left + start, rights[right]


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

"""Near duplicates among pictures: similar features propose, and a comparison of pixels decides.

Features are nearly the same for two photographs of one scene, and differ for a picture and its tiny copy. So what the
features propose is compared by thumbnails, upright and mirrored, more leniently than what nothing proposes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from vitrail.data.check.duplicates import buckets, can_be_compared, correlate, exact_groups, near_pairs
from vitrail.data.check.scan import PictureFacts
from vitrail.evaluation.measurement import Singles
from vitrail.progress import Advance
from vitrail.tasks.one_metrics import Integers

NEIGHBOURS = 10  # of each picture that are looked at
MIN_SIMILARITY = 0.8  # cosine of two features about their mean
MIN_CORRELATION, MIN_EDGE_CORRELATION = 0.8, 0.6  # of their thumbnails; two similar things in one pose have 0.58
CELLS = 1 << 24  # similarities that are in memory at once

Likeness = Literal["same", "near", "mirrored"]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two pictures by their positions, the first before the other."""

    first: int
    other: int
    likeness: Likeness


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbours:
    """The nearest other pictures of each, the nearest first."""

    positions: Integers  # (N, k)
    similarities: Singles  # (N, k); -1 where there are fewer


def center(vectors: Singles) -> Singles:
    """Features about their mean, of length 1, so that a product is a similarity."""
    vectors = vectors - vectors.mean(axis=0)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def find_neighbours(vectors: Singles, k: int = NEIGHBOURS, progress: Advance = lambda _: None) -> Neighbours:
    """The k most similar of all others, by products of blocks; beyond 100,000, of those near the same pivots."""
    count, k = len(vectors), min(k, len(vectors) - 1)
    positions = np.zeros((count, k), dtype=np.int64)
    similarities = np.full((count, k), -1.0, dtype=np.float32)
    for bucket in buckets(vectors):
        bank = vectors[bucket]
        rows = max(CELLS // len(bank), 1)
        for start in range(0, len(bank), rows):
            own = bucket[start : start + rows]
            similar = bank[start : start + rows] @ bank.T
            similar[np.arange(len(own)), np.arange(start, start + len(own))] = -1.0  # itself
            _keep_best(positions, similarities, own, bucket, similar)
            progress(len(own))
    return Neighbours(positions=positions, similarities=similarities)


def _keep_best(positions: Integers, similarities: Singles, own: Integers, bucket: Integers, similar: Singles) -> None:
    """Put the best of what was known and what is new into the rows `own`; no picture twice."""
    k = positions.shape[1]
    nearest = np.argpartition(-similar, min(k, similar.shape[1]) - 1, axis=1)[:, :k]
    places = np.concatenate([positions[own], bucket[nearest]], axis=1)
    values = np.concatenate([similarities[own], np.take_along_axis(similar, nearest, axis=1)], axis=1)
    known = (bucket[nearest][:, :, None] == positions[own][:, None, :]) & (similarities[own][:, None, :] > -1)
    values[:, k:][known.any(axis=2)] = -1.0
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    positions[own], similarities[own] = np.take_along_axis(places, order, 1), np.take_along_axis(values, order, 1)


def find_duplicates(facts: Sequence[PictureFacts], kept: Integers, neighbours: Neighbours) -> list[Pair]:
    """Pairs that are the same picture, nearly, or mirrored; `kept` are the positions of those with features."""
    where = {(fact.split, fact.index): position for position, fact in enumerate(facts)}
    pairs: dict[tuple[int, int], Likeness] = {}
    for group in exact_groups(facts):
        pairs |= {(group[0], other): "same" for other in group[1:]}
    for mirrored in (False, True):
        for one, other in near_pairs(facts, mirrored=mirrored):
            pair = where[one.split, one.index], where[other.split, other.index]
            pairs.setdefault(pair, "mirrored" if mirrored else "near")
    for pair, likeness in _propose(facts, kept, neighbours):
        pairs.setdefault(pair, likeness)
    readable = set(kept.tolist())
    return [
        Pair(first=first, other=other, likeness=likeness)
        for (first, other), likeness in sorted(pairs.items())
        if first in readable and other in readable
    ]


def _propose(
    facts: Sequence[PictureFacts], kept: Integers, neighbours: Neighbours
) -> Iterator[tuple[tuple[int, int], Likeness]]:
    """Pairs with similar features whose thumbnails agree too."""
    rows, columns = np.nonzero(neighbours.similarities >= MIN_SIMILARITY)
    lefts, rights = kept[rows], kept[neighbours.positions[rows, columns]]
    proposed = {(min(pair), max(pair)) for pair in zip(lefts.tolist(), rights.tolist(), strict=True)}
    for first, other in sorted(proposed):
        one, two = facts[first], facts[other]
        if one.digest == two.digest or not (can_be_compared(one) and can_be_compared(two)):
            continue
        for mirrored in (False, True):
            grey, edges = correlate(one, two, mirrored=mirrored)
            if grey >= MIN_CORRELATION and edges >= MIN_EDGE_CORRELATION:
                yield (first, other), "mirrored" if mirrored else "near"
                break


def group_pairs(pairs: Sequence[Pair], count: int) -> Integers:
    """The group (N,) of each of `count` pictures: whatever pairs connect is one."""
    firsts, others = [pair.first for pair in pairs], [pair.other for pair in pairs]
    graph = coo_matrix((np.ones(len(pairs)), (firsts, others)), shape=(count, count))
    return connected_components(graph, directed=False)[1].astype(np.int64)

"""The nearest embeddings by cosine similarity: exactly, block by block.

float32 products find the candidates; what is returned of them is computed in float64, row by row, so that neither the
blocks nor the number of queries change a digit, equal embeddings are equally similar, and ties are in order of rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.prediction.collection import Block
from vitrail.prediction.results import Floats
from vitrail.rng import Integers

Doubles = np.ndarray[Any, np.dtype[np.float64]]

QUERIES = 1024  # that are multiplied at once, so that many take no more memory
SLACK = 1e-4  # by which a float32 product of unit vectors may be wrong, and more


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A picture of a collection, and how similar it is to one that was searched for."""

    picture: str
    similarity: float  # the cosine of the angle between the embeddings: 1 for the same direction
    row: int  # in the collection
    label: str | None = None


@dataclass(frozen=True)
class Nearest:
    """The nearest rows of each query, the most similar first, and of equal ones the first."""

    rows: tuple[Integers, ...]  # (Q) × (at most k,)
    similarities: tuple[Doubles, ...]
    searched: int  # rows that have an embedding


def unit_vectors(vectors: np.ndarray[Any, Any]) -> Doubles:
    """The vectors (N, D) with a length of 1; zero, which has no direction, stays zero and is similar to nothing."""
    wide = vectors.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    return wide / np.where(lengths == 0, 1, lengths)


def find_nearest(blocks: Iterable[Block], queries: Floats, k: int) -> Nearest:
    """The `k` nearest rows of each query (Q, D), among all rows of the blocks, which come in order."""
    units = unit_vectors(queries)
    rows = [np.empty(0, np.int64) for _ in units]
    similarities = [np.empty(0) for _ in units]
    searched = 0
    for block in blocks:
        searched += len(block.rows)
        if not len(block.rows):
            continue
        lengths = np.linalg.norm(block.features, axis=1)
        lengths[lengths == 0] = 1
        for start in range(0, len(units), QUERIES):
            some = slice(start, start + QUERIES)
            rough = units[some].astype(np.float32) @ block.features.T / lengths  # (Q, n)
            least = np.array([last[k - 1] if len(last) == k else -np.inf for last in similarities[some]])
            if k < rough.shape[1] and np.isinf(least).any():
                least = np.maximum(least, np.partition(rough, -k, axis=1)[:, -k])
            candidates = rough >= (least - SLACK)[:, None]
            for query in (start + np.flatnonzero(candidates.any(axis=1))).tolist():
                chosen = np.flatnonzero(candidates[query - start])
                exact = (unit_vectors(block.features[chosen]) * units[query]).sum(axis=1).clip(-1, 1)
                together = np.concatenate([similarities[query], exact])
                best = np.argsort(-together, kind="stable")[:k]
                rows[query] = np.concatenate([rows[query], block.rows[chosen]])[best]
                similarities[query] = together[best]
    return Nearest(tuple(rows), tuple(similarities), searched)

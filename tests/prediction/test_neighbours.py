"""Exact neighbours: as scikit-learn finds them, whatever the blocks; ties in order of rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import NearestNeighbors

from vitrail.prediction import neighbours
from vitrail.prediction.collection import Block
from vitrail.prediction.neighbours import find_nearest, unit_vectors

Array = np.ndarray[Any, Any]


def in_blocks(features: Array, size: int) -> Iterator[Block]:
    for start in range(0, len(features), size):
        block = features[start : start + size]
        rows = np.flatnonzero(np.isfinite(block).all(axis=1))
        yield Block(rows + start, block[rows])


def clustered(count: int, width: int, seed: int = 0) -> Array:
    """Vectors around the same twenty centres, whatever the seed."""
    draw, centres = np.random.default_rng(seed), np.random.default_rng(0).standard_normal((20, width))
    return (centres[draw.integers(0, 20, count)] + draw.standard_normal((count, width))).astype(np.float32)


@pytest.mark.parametrize("size", [7, 256, 5000])
def test_scikit_learn_finds_the_same(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    features, queries = clustered(3000, 24), clustered(50, 24, seed=1)
    monkeypatch.setattr(neighbours, "QUERIES", 16)
    found = find_nearest(in_blocks(features, size), queries, 10)
    oracle = NearestNeighbors(n_neighbors=10, metric="cosine", algorithm="brute").fit(features.astype(np.float64))
    distances, rows = oracle.kneighbors(queries.astype(np.float64))
    np.testing.assert_array_equal(np.stack(found.rows), rows)
    np.testing.assert_allclose(np.stack(found.similarities), 1 - distances, atol=1e-12)
    assert found.searched == 3000


@given(
    values=st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=3, max_size=3), min_size=1, max_size=40),
    broken=st.sets(st.integers(0, 39), max_size=10),
    size=st.integers(1, 41),
    k=st.integers(1, 12),
)
def test_blocks_ties_and_rows_without_an_embedding(
    values: list[list[float]], broken: set[int], size: int, k: int
) -> None:
    """Few different vectors, so that most are equally similar to a query; some of them zero, or of no length at all."""
    features = np.array(values, np.float32)
    features[sorted(row for row in broken if row < len(features))] = np.nan
    queries = features[np.isfinite(features).all(axis=1)][:5]
    if not len(queries):
        return
    found = find_nearest(in_blocks(features, size), queries, k)
    for query, rows, similarities in zip(unit_vectors(queries), found.rows, found.similarities, strict=True):
        every = {
            row: float((unit_vectors(features[row : row + 1])[0] * query).sum().clip(-1, 1))
            for row in range(len(features))
            if np.isfinite(features[row]).all()
        }
        expected = sorted(every, key=lambda row: (-every[row], row))[:k]
        assert rows.tolist() == expected
        assert similarities.tolist() == [every[row] for row in expected]
    assert found.searched == np.isfinite(features).all(axis=1).sum()


def test_copies_of_a_picture_are_equally_similar_wherever_they_are() -> None:
    features = clustered(1000, 48)
    copies = [3, 128, 500, 999]
    features[copies] = features[3]
    found = find_nearest(in_blocks(features, 130), features[3:4], 5)
    assert found.rows[0].tolist()[:4] == copies
    assert set(found.similarities[0].tolist()[:4]) == {1.0}


def test_fewer_rows_than_wanted() -> None:
    found = find_nearest(in_blocks(clustered(3, 8), 2), clustered(2, 8), 10)
    assert [len(rows) for rows in found.rows] == [3, 3]

"""Approximate neighbours: almost those of an exact search; an index belongs to the files that it was built from."""

import os
import sys
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from tests.prediction.test_collection import put_job
from tests.prediction.test_neighbours import clustered

from vitrail.errors import ConfigError, DataError, MissingExtraError
from vitrail.prediction.collection import open_collection
from vitrail.prediction.inverted_lists import SHELF, build_index, kept_index, search_index
from vitrail.prediction.neighbours import find_nearest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def test_it_finds_almost_what_an_exact_search_finds(tmp_path: Path) -> None:
    features, queries = clustered(8000, 32), clustered(100, 32, seed=1)
    put_job(str(tmp_path / "out"), features, size=4000, broken=(7, 7999))
    collection = open_collection(tmp_path / "out")
    exact = find_nearest(collection.blocks(), queries, 10)
    near = search_index(build_index(collection), queries, 10)
    recall = np.mean([len(np.intersect1d(*both)) / 10 for both in zip(exact.rows, near.rows, strict=True)])
    assert recall >= 0.95
    assert near.searched == exact.searched == 7998
    for rows, similarities in zip(near.rows, near.similarities, strict=True):
        assert (np.diff(similarities) <= 0).all()
        assert len(set(rows.tolist())) == 10
    known = [dict(zip(*each, strict=True)) for each in zip(exact.rows, exact.similarities, strict=True)]
    for mine, rows, similarities in zip(known, near.rows, near.similarities, strict=True):
        for row, similarity in zip(rows, similarities, strict=True):
            assert similarity == pytest.approx(mine.get(row, similarity), abs=2e-4)  # they are kept in float16


def test_an_index_is_kept_beside_the_embeddings_until_they_change(tmp_path: Path) -> None:
    put_job(str(tmp_path), clustered(300, 8), size=100)
    collection = open_collection(tmp_path)
    assert kept_index(collection) is None
    first = build_index(collection)
    assert first.parent == tmp_path
    assert kept_index(open_collection(str(tmp_path))) == first
    put_job(str(tmp_path), clustered(300, 8, seed=2), size=100)
    changed = open_collection(tmp_path)
    assert kept_index(changed) is None
    second = build_index(changed)
    assert list(tmp_path.glob("*.faiss")) == [second] != [first]


def test_an_index_of_a_store_is_in_the_users_cache(store_root: str) -> None:
    put_job(store_root, clustered(300, 8), size=100)
    collection = open_collection(store_root)
    path = build_index(collection)
    assert (path.parent == SHELF.folder) == ("://" in store_root)
    assert kept_index(open_collection(store_root)) == path
    assert len(search_index(path, clustered(1, 8), 20).rows[0]) == 20


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_job(str(tmp_path / "out"), clustered(30, 8))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert build_index(open_collection(tmp_path / "out")).parent == SHELF.folder


@pytest.mark.parametrize("count", [1, 3, 40])
def test_few_rows(tmp_path: Path, count: int) -> None:
    put_job(str(tmp_path), clustered(count, 8))
    found = search_index(build_index(open_collection(tmp_path)), clustered(2, 8), 50)
    assert [sorted(rows.tolist()) for rows in found.rows] == [list(range(count))] * 2


def test_nothing_to_search_in(tmp_path: Path) -> None:
    put_job(str(tmp_path), clustered(3, 8), broken=(0, 1, 2))
    with pytest.raises(DataError, match="none of its pictures has an embedding"):
        build_index(open_collection(tmp_path))


def test_a_damaged_index(tmp_path: Path) -> None:
    put_job(str(tmp_path), clustered(300, 8), size=100)
    path = build_index(open_collection(tmp_path))
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="not an index .*; delete it"):
        search_index(path, clustered(1, 8), 3)


@pytest.mark.parametrize("count", [30, 5000], ids=["at the end", "before"])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    put_job(str(tmp_path), clustered(count, 8), size=1000)
    collection, open_path = open_collection(tmp_path), Path.open

    def open_full(path: Path, mode: str) -> IO[bytes]:
        return open_path(Path("/dev/full") if mode == "wb" else path, mode)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(ConfigError, match=r"the index cannot be written \("):
        build_index(collection)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_DONE", "job.json", "manifest", "parts"]


def test_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_job(str(tmp_path), clustered(3, 8))
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r'pip install "vitrail\[search\]"'):
        build_index(open_collection(tmp_path))


def test_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_job(str(tmp_path), clustered(3, 8))
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match='method= must be "exact" on macOS'):
        build_index(open_collection(tmp_path))

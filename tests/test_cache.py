"""What the cache keeps, and for how long."""

import os
from pathlib import Path

import pytest

from vitrail.cache import cache_folder, make_room, mark_used, size_on_disk


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VITRAIL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "vitrail"
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert size_on_disk(cache_folder()) == 0


def test_the_oldest_go_first_and_so_do_drafts_of_the_dead(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "middle", "old", ".draft")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    (tmp_path / ".fresh").mkdir()
    make_room(tmp_path, 300, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".fresh", "middle", "new", "old"]
    mark_used(tmp_path / "old")
    make_room(tmp_path, 250, 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".fresh", "new", "old"]
    make_room(tmp_path, 250, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".fresh", "old"]
    make_room(tmp_path / "nowhere", 0, 0)

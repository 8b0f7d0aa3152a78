"""Replaced pictures are noticed, copied ones are left in peace."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.data.conftest import make_folder  # noqa: F401 - a fixture

from vitrail.data import Dataset, open_data
from vitrail.data.sharding import write_shards
from vitrail.data.source import ArraySource
from vitrail.errors import DataError
from vitrail.training import contents
from vitrail.training.contents import contents_key, report_replaced, write_contents


@pytest.fixture
def data(make_folder: Callable[..., Path]) -> Dataset:  # noqa: F811
    return open_data(make_folder("train/cat", "train/dog", "val/cat", "val/dog", count=6))


def paths_of(data: Dataset, split: str) -> list[Path]:
    source = data.split(split)
    return [Path(str(source.picture(index))) for index in range(len(source))]


def alter(path: Path) -> None:
    """Other contents of the same size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, (5, 5))


def copy(data: Dataset) -> None:
    for split in data.splits:
        for path in paths_of(data, split):
            os.utime(path, (7, 7))


def report(data: Dataset, folder: Path) -> list[str]:
    notes: list[str] = []
    report_replaced(data, folder, notes.append)
    return notes


def test_only_the_replaced_are_reported_once(data: Dataset, tmp_path: Path) -> None:
    write_contents(data, tmp_path)
    train, val = data.split("train"), data.split("val")
    before = contents_key(tmp_path, train), contents_key(tmp_path, val)
    copy(data)
    assert report(data, tmp_path) == []
    assert (contents_key(tmp_path, train), contents_key(tmp_path, val)) == before
    for path in paths_of(data, "val"):
        alter(path)
    alter(paths_of(data, "train")[3])
    assert report(data, tmp_path) == [
        "1 of the run's 12 train pictures has been replaced since the run began: train/cat/003.jpg; the run continues",
        "12 of the run's 12 val pictures have been replaced since the run began: val/cat/000.jpg, val/cat/001.jpg, "
        "val/cat/002.jpg, …; do not compare accuracies from before and after",
    ]
    after = contents_key(tmp_path, train), contents_key(tmp_path / "probe", val)
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert report(data, tmp_path) == []


def test_what_has_no_hash_was_copied_if_others_were(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "HASHED", 3)  # every fourth
    write_contents(data, tmp_path)
    key = contents_key(tmp_path, data.split("train"))
    alter(paths_of(data, "train")[1])
    assert report(data, tmp_path)[0].startswith("1 of the run's 12 train pictures has been replaced")
    assert contents_key(tmp_path, data.split("train")) != key
    key = contents_key(tmp_path, data.split("train"))
    copy(data)
    assert report(data, tmp_path) == []
    assert contents_key(tmp_path, data.split("train")) == key


def test_shards_and_pictures_in_memory(data: Dataset, tmp_path: Path) -> None:
    write_shards(data, tmp_path / "s")
    shards, digits = open_data(tmp_path / "s"), open_data("digits")
    for name, each in (("shards", shards), ("digits", digits)):
        write_contents(each, tmp_path / name)
        assert report(each, tmp_path / name) == []
    alter(tmp_path / "s" / "val-000000.tar")
    assert report(shards, tmp_path / "shards") == [
        "1 of the run's 1 val shard has been replaced since the run began: val-000000.tar; "
        "do not compare accuracies from before and after"
    ]
    test = digits.split("test")
    assert isinstance(test, ArraySource)
    test.images[:] += 1
    assert report(digits, tmp_path / "digits")[0].startswith("135 of a sample of 135 test pictures have been replaced")


def test_older_runs_and_damaged_records(data: Dataset, tmp_path: Path) -> None:
    assert report(data, tmp_path) == []
    assert contents_key(tmp_path, data.split("train")) == ""
    for text in ("", "name\n", "name,bytes,modified,blake2b\na,b,c,d\n", "name,bytes,modified,blake2b\na\n"):
        (tmp_path / "pictures.csv").write_text(text)
        with pytest.raises(DataError, match="pictures.csv is damaged"):
            report(data, tmp_path)

"""The loader and pictures that cannot be read: replaced, left out, listed, and an error when they are many."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.data.test_loader import assert_same
from tests.data.test_pixels import write_png

from vitrail.data import Augment, Dataset, Loader, LoaderConfig, Preprocess, open_data
from vitrail.errors import DataError

SPEC = Preprocess(size=(16, 16))


def break_pictures(data: Dataset, split: str, count: int) -> None:
    for index in range(count):
        path = Path(str(data.split(split).picture(index)))
        path.write_bytes(path.read_bytes()[:-100])


def test_a_broken_picture_is_replaced_in_training_and_listed(folder: Dataset) -> None:
    break_pictures(folder, "train", 1)
    config = LoaderConfig(batch_size=46, max_broken_rate=0.1, workers=2)
    loader = Loader(folder, "train", SPEC, config, Augment(crop="resized"))
    batch = next(iter(loader))
    assert len(batch.images) == 46
    assert 0 not in batch.indices
    assert list(loader.broken) == ["train/cat/000.jpg"]
    assert "truncated" in loader.broken["train/cat/000.jpg"]
    again = Loader(folder, "train", SPEC, replace(config, workers=0), Augment(crop="resized"))
    assert_same(list(again), [batch])


def test_a_broken_picture_is_left_out_of_evaluation(folder: Dataset) -> None:
    break_pictures(folder, "val", 1)
    for workers in (0, 3):
        loader = Loader(folder, "val", SPEC, LoaderConfig(batch_size=40, max_broken_rate=0.1, workers=workers))
        batches = list(loader)
        assert [index for batch in batches for index in batch.indices.tolist()] == list(range(1, 46))
        assert [len(batch.images) for batch in batches] == [39, 6]
        whole = list(Loader(folder, "val", SPEC, LoaderConfig(batch_size=1, max_broken_rate=0.1)))
        assert torch.equal(torch.cat([batch.images for batch in batches]), torch.cat([batch.images for batch in whole]))


def test_more_than_one_percent_broken_is_an_error(folder: Dataset) -> None:
    break_pictures(folder, "train", 1)
    with pytest.raises(DataError, match=r"1 of 46 pictures cannot be read, more than 1 % of a split:") as error:
        list(Loader(folder, "train", SPEC, LoaderConfig(batch_size=40, seed=1), Augment()))
    assert "data check" in str(error.value)
    assert "train/cat/000.jpg" in str(error.value)
    assert "leave them out with max_broken_rate=0.03." in str(error.value), "and that is enough:"
    list(Loader(folder, "train", SPEC, LoaderConfig(batch_size=40, seed=1, max_broken_rate=0.03), Augment()))


def test_broken_pictures_as_errors(folder: Dataset) -> None:
    break_pictures(folder, "val", 1)
    with pytest.raises(DataError, match=r"train/cat|val/cat/000.jpg"):
        list(Loader(folder, "val", SPEC, LoaderConfig(on_broken="error", max_broken_rate=1.0)))


def test_unreadable_and_empty_files_are_skipped_too(folder: Dataset, make_folder, tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    (root / "val/cat/empty.jpg").touch()
    (root / "val/cat/gone.jpg").symlink_to(root / "nowhere.jpg")
    (root / "val/cat/self.jpg").symlink_to(root / "val/cat/self.jpg")
    (root / "val/cat/huge.png").write_bytes(write_png(60_000, 60_000))
    loader = Loader(open_data(root), "val", SPEC, LoaderConfig(max_broken_rate=0.2, workers=2))
    assert sum(len(batch.images) for batch in loader) == 46
    assert sorted(loader.broken) == [f"val/cat/{name}" for name in ("empty.jpg", "gone.jpg", "huge.png", "self.jpg")]


def test_all_broken_ends(make_folder) -> None:
    data = open_data(make_folder("train/cat", "train/dog", count=2))
    break_pictures(data, "train", 4)
    with pytest.raises(DataError, match="cannot be read"):
        list(Loader(data, "train", SPEC, LoaderConfig(batch_size=2, max_broken_rate=1.0), Augment()))

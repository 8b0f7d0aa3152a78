"""Which pictures calibrate, choose and accept: three sets that share none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.conftest import picture

from vitrail.data.preprocess import preset
from vitrail.data.source import ArraySource, Dataset
from vitrail.errors import DataError, WeightsError
from vitrail.model import ViT
from vitrail.runtimes.int8_trials import ByteImages, Goal
from vitrail.verbs import int8_pictures
from vitrail.verbs.int8_pictures import is_unlabelled, read_calibration
from vitrail.weights.checkpoint import Checkpoint

CLASSES = ("cat", "dog")


@pytest.fixture
def checkpoint(make_model: Callable[..., ViT]) -> Checkpoint:
    model = make_model(num_classes=3, image_size=(8, 8))
    spec = preset("timm", (8, 8), 3)
    names = ("dog", "cat", "eel")  # not in the order of the data
    return Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=spec, classes=names)


def make_data(**counts: int) -> Dataset:
    """Splits in which every picture of all of them is of another grey."""
    splits: dict[str, ArraySource] = {}
    grey = 0
    for name, count in counts.items():
        images = torch.arange(grey, grey + count, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8)
        splits[name] = ArraySource(images.contiguous(), np.arange(count) % 2, name)
        grey += count
    return Dataset(name="greys", classes=CLASSES, splits=splits)


def greys(pictures: ByteImages) -> set[int]:
    return set(pictures.pixels[:, 0, 0, 0].tolist())


def test_no_picture_serves_twice(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_pictures, "RANGES", 10)
    monkeypatch.setattr(int8_pictures, "HELD_OUT", 16)
    result = read_calibration(make_data(train=40, test=30), checkpoint, "model.safetensors", Goal())
    ranges, choosing, accepting = map(greys, (result.ranges, result.choosing, result.accepting))
    assert (len(ranges), len(choosing), len(accepting)) == (10, 8, 8)
    assert max(ranges) < 40 <= min(choosing | accepting)
    assert not choosing & accepting
    assert result.describe() == "calibrated on 10 pictures, chosen on 8 others, accepted on 8 others again"


def test_validation_chooses_and_test_accepts(checkpoint: Checkpoint) -> None:
    result = read_calibration(make_data(train=10, val=8, test=6), checkpoint, "model.safetensors", Goal())
    assert greys(result.choosing) == set(range(10, 18))
    assert greys(result.accepting) == set(range(18, 24))


def test_data_of_training_pictures_only_are_split(checkpoint: Checkpoint) -> None:
    result = read_calibration(make_data(train=60), checkpoint, "model.safetensors", Goal())
    parts = [greys(part) for part in (result.ranges, result.choosing, result.accepting)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 60


def test_labels_align_by_name(checkpoint: Checkpoint) -> None:
    data = make_data(train=10, val=8, test=6)
    result = read_calibration(data, checkpoint, "model.safetensors", Goal())
    assert result.choosing.targets is not None
    assert result.choosing.targets.tolist() == [1, 0] * 4  # cat is the model's second class
    unknown = replace(checkpoint, classes=("ant", "bee", "eel"))
    assert read_calibration(data, unknown, "model.safetensors", Goal()).choosing.targets is None
    with pytest.raises(DataError, match="max_loss= needs pictures with labels"):
        read_calibration(data, unknown, "model.safetensors", Goal(max_loss=1))


def test_a_folder_of_pictures_without_labels(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for number in range(9):
        picture(number, (12, 12)).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("no picture")
    assert is_unlabelled(tmp_path)
    result = read_calibration(tmp_path, checkpoint, "model.safetensors", Goal())
    parts = (result.ranges, result.choosing, result.accepting)
    assert [len(part) for part in parts] == [4, 3, 2]
    assert len({part.pixels[row].tobytes() for part in parts for row in range(len(part))}) == 9
    assert all(part.targets is None for part in parts)
    with pytest.raises(DataError, match="max_loss= needs"):
        read_calibration(tmp_path, checkpoint, "model.safetensors", Goal(max_loss=1))


def test_pictures_that_cannot_be_read(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for number in range(6):
        picture(number, (12, 12)).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="1 of .* cannot be read"):
        read_calibration(tmp_path, checkpoint, "model.safetensors", Goal())


def test_too_few(checkpoint: Checkpoint, tmp_path: Path) -> None:
    picture(0).save(tmp_path / "0.png")
    picture(1).save(tmp_path / "1.png")
    with pytest.raises(DataError, match="at least two pictures that are not calibrated with.*there is 1"):
        read_calibration(tmp_path, checkpoint, "model.safetensors", Goal())


def test_a_model_without_classes(make_model: Callable[..., ViT]) -> None:
    model = make_model(num_classes=0)
    bare = Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=preset("timm", (32, 32), 3))
    with pytest.raises(WeightsError, match="this checkpoint has no classes"):
        read_calibration(make_data(train=10, test=6), bare, "model.safetensors", Goal())


def test_a_run_keeps_its_own_split(checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training pictures of the run calibrate, whatever split we would make today."""
    from vitrail.data.datasets import open_data, write_split_file

    folder = tmp_path / "data"
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
        for number in range(10):
            picture(number + 100 * len(name) + ord(name[0]), (12, 12)).save(folder / name / f"{number}.png")
    run = tmp_path / "run"
    run.mkdir()
    made = open_data(folder)
    swapped = replace(made, splits={"train": made.split("train"), "val": made.split("test"), "test": made.split("val")})
    write_split_file(swapped, run / "split.csv")
    result = read_calibration(folder, checkpoint, run, Goal())
    plain = read_calibration(folder, checkpoint, "elsewhere.safetensors", Goal())
    assert np.array_equal(result.choosing.pixels, plain.accepting.pixels)
    assert np.array_equal(result.accepting.pixels, plain.choosing.pixels)

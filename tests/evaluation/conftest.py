"""A small data set whose classes stand in another order than the model's."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.conftest import picture
from tests.prediction.conftest import CLASSES, make_predictor

from vitrail.data import ArraySource, Dataset, open_data
from vitrail.prediction import Predictor


@pytest.fixture
def predictor() -> Predictor:
    return make_predictor()


@pytest.fixture
def arrays() -> Dataset:
    images = torch.randint(0, 256, (150, 3, 20, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    source = ArraySource(images, np.arange(150) % 7, "arrays")
    names = tuple(reversed(CLASSES))
    return Dataset(name="arrays", classes=names, splits={"train": source, "test": source.select(range(100))})


@pytest.fixture
def folder(tmp_path: Path) -> Dataset:
    """210 test pictures as files, one of them broken, and a few to train on."""
    return open_data(make_class_folders(tmp_path / "animals"))


def make_class_folders(root: Path, count: int = 30) -> Path:
    for split, number in (("train", 2), ("test", count)):
        for label, name in enumerate(CLASSES):
            (root / split / name).mkdir(parents=True)
            for index in range(number):
                picture(1000 * label + index).save(root / split / name / f"{index:03d}.png")
    (root / "test" / "cat" / "007.png").write_bytes(b"broken")
    return root

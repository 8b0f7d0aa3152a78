"""Small real data sets that the tests share."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data import ArraySource, Dataset, open_data

MakeFolder = Callable[..., Path]


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A smooth picture that is different for each seed."""
    corners = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(corners).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Class folders of JPEGs: make_folder("train/cat", "train/dog", count=3)."""

    def make(*folders: str, count: int = 3, root: str = "pictures") -> Path:
        for number, folder in enumerate(folders):
            target = tmp_path / root / folder
            target.mkdir(parents=True)
            for index in range(count):
                picture(1000 * number + index).save(target / f"{index:03d}.jpg", quality=95)
        return tmp_path / root

    return make


@pytest.fixture
def folder(make_folder) -> Dataset:
    return open_data(make_folder("train/cat", "train/dog", "val/cat", "val/dog", count=23))


@pytest.fixture
def arrays() -> Dataset:
    images = torch.randint(0, 256, (46, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    source = ArraySource(images, np.arange(46) % 2, "arrays")
    return Dataset(name="arrays", classes=("a", "b"), splits={"train": source, "val": source})

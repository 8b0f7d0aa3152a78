"""A tiny predictor and pictures for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.data.conftest import picture

from conftest import TINY, randomize
from vitrail.data.preprocess import preset
from vitrail.model import ViT
from vitrail.prediction import Predictor
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Origin
from vitrail.weights.write import write_checkpoint

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")


@pytest.fixture
def predictor() -> Predictor:
    return make_predictor()


def make_predictor(**changes: Any) -> Predictor:
    config = replace(TINY, **changes)
    model = randomize(ViT(config)).eval()
    spec = preset("timm", config.image_size, config.channels)
    return Predictor(runtime=TorchRuntime(model), preprocess=spec, classes=CLASSES, origin=Origin())


@pytest.fixture
def checkpoint_file(tmp_path: Path) -> Path:
    """The same model as a file."""
    return write_tiny(tmp_path / "tiny.safetensors")


def write_tiny(path: Path, classes: tuple[str, ...] | None = CLASSES, **changes: Any) -> Path:
    config = replace(TINY, num_classes=len(classes) if classes else TINY.num_classes, **changes)
    tensors = randomize(ViT(config)).state_dict()
    spec = preset("timm", config.image_size)
    write_checkpoint(Checkpoint(config=config, tensors=tensors, preprocess=spec, classes=classes), path)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Eleven files of several sizes; the fourth is broken."""
    folder = tmp_path / "photos"
    folder.mkdir()
    paths = [folder / f"{number:02d}.jpg" for number in range(11)]
    for number, path in enumerate(paths):
        picture(number, (40 + number, 30)).save(path, quality=95)
    paths[3].write_bytes(b"no picture")
    return paths

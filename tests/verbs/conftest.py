"""What the tests of verbs share: a tiny checkpoint and some photographs in a folder of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.data.conftest import picture

from vitrail.data.preprocess import Preprocess
from vitrail.model import ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def save_model(make_model: Callable[..., ViT], inside: Path) -> Callable[..., str]:
    """Writes a tiny model with random weights and names for its classes; the file's name."""

    def save(name: str = "model.safetensors", **changes: Any) -> str:
        model = make_model(**changes)
        classes = tuple(f"class {index}" for index in range(model.config.num_classes)) or None
        spec = Preprocess(size=model.config.image_size, resize="shortest", crop=0.9)
        checkpoint = Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=spec, classes=classes)
        save_checkpoint(checkpoint, name)
        return name

    return save


@pytest.fixture
def photos(inside: Path) -> list[str]:
    """Three photographs in a folder, the last one small."""
    names = ["photos/one.png", "photos/three.jpg", "photos/two.png"]
    Path("photos").mkdir()
    for name, size in zip(names, ((60, 50), (40, 70), (24, 20)), strict=True):
        picture(len(name), size).save(name)
    return names

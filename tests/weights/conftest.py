"""Checkpoints for the tests: one small model in every format that can hold it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conftest import TINY, randomize
from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, PositionConfig, ViT
from vitrail.weights.checkpoint import Checkpoint, FormatName

# What a model must be for each format to hold it.
FITTING: dict[FormatName, dict[str, Any]] = {
    "vitrail": {"registers": 1, "block": BlockConfig(qk_norm=True)},
    "google": {"block": BlockConfig(activation="gelu_tanh")},
    "big_vision": {
        "block": BlockConfig(activation="gelu_tanh"),
        "pooling": "map",
        "class_token": False,
        "positions": PositionConfig(covers="patches"),
    },
    "timm": {"positions": PositionConfig(resample="timm")},
    "hf": {"positions": PositionConfig(resample="hf")},
    "torchvision": {"positions": PositionConfig(resample="torchvision")},
    "dinov2": {
        "num_classes": 0,
        "block": BlockConfig(layer_scale=1e-5),
        "registers": 2,
        "positions": PositionConfig(resample="timm"),
    },
}


@pytest.fixture
def make_checkpoint() -> Callable[..., Checkpoint]:
    def make(**changes: Any) -> Checkpoint:
        config = replace(TINY, **changes)
        model = randomize(ViT(config))
        spec = preset("google", config.image_size, config.channels)
        return Checkpoint(config=config, tensors=model.state_dict(), preprocess=spec)

    return make

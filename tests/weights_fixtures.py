"""What a model must be for each format to hold it, for tests that go through all formats."""

from typing import Any

from vitrail.model import BlockConfig, PositionConfig
from vitrail.weights.catalogue import FormatName

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

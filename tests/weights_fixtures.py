"""What a model must be for each format to hold it, for tests that go through all formats; and a small DINOv2."""

from typing import Any

from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.weights.resolve import FormatName

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
    "lucidrains": {
        "block": BlockConfig(norm_eps=1e-5, qkv_bias=False),
        "pixel_norm": True,
        "patch_norm": True,
    },
    "tintn": {"block": BlockConfig(activation="gelu_tanh", norm_eps=1e-5), "pool_norm": "none"},
    "d2l": {"block": BlockConfig(norm_eps=1e-5, qkv_bias=False, proj_bias=False, mlp_bias=True)},
}
# DINOv2's architecture: features and no head, LayerScale, patches of 14 pixels.
TINY_DINO = ViTConfig(
    image_size=(56, 56),
    patch_size=(14, 14),
    width=16,
    depth=2,
    heads=2,
    mlp_width=64,
    num_classes=0,
    block=BlockConfig(layer_scale=0.1),
    positions=PositionConfig(resample="dinov2"),
)

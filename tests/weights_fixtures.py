"""What a model must be for each format to hold it, for tests of all formats; a small DINOv2; what oracles prove."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.model import BlockConfig, PositionConfig, RelativeBias, Rope, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import eva, pe
from vitrail.weights.read import read_checkpoint, read_files
from vitrail.weights.resolve import FormatName, find_files
from vitrail.weights.write import write_checkpoint

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
    "dinov3": {
        "num_classes": 0,
        "block": BlockConfig(layer_scale=1e-5, norm_eps=1e-5, key_bias=False),
        "registers": 2,
        "positions": PositionConfig(kind="none"),
        "relative": Rope(),
    },
    "tips": {
        "num_classes": 0,
        "block": BlockConfig(layer_scale=1e-5),
        "registers": 1,
        "positions": PositionConfig(resample="timm"),
    },
    "clip": {
        "num_classes": 0,
        "block": BlockConfig(norm_eps=1e-5, activation="quick_gelu"),
        "patch_bias": False,
        "pre_norm": True,
        "projection": 24,
        "positions": PositionConfig(resample="timm"),
    },
    "pe": {
        "num_classes": 0,
        "block": BlockConfig(norm_eps=1e-5, layer_scale=0.1),
        "patch_bias": False,
        "pre_norm": True,
        "pooling": "map",
        "pool_prefix": True,
        "pool_heads": 8,
        "projection": 24,
        "positions": PositionConfig(resample="pe"),
        "relative": pe.rope(class_token=True),
    },
    "eva": {
        "block": BlockConfig(key_bias=False, mlp="swiglu", mlp_norm=True),
        "pooling": "mean",
        "pool_norm": "after",
        "positions": PositionConfig(resample="hf"),
        "relative": eva.ROPE,
    },
    "beit": {
        "block": BlockConfig(key_bias=False, layer_scale=0.1),
        "pooling": "mean",
        "pool_norm": "after",
        "positions": PositionConfig(kind="none"),
        "relative": RelativeBias(),
    },
    "aimv2": {
        "num_classes": 0,
        "block": BlockConfig(norm="rms", norm_eps=1e-5, qkv_bias=False, proj_bias=False, mlp="swiglu"),
        "class_token": False,
        "pooling": "mean",
        "patch_norm": True,
        "positions": PositionConfig(covers="patches", resample="timm"),
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


def check_features(read: Checkpoint, oracle: Callable[[Tensor], Tensor], *sizes: tuple[int, int]) -> None:
    """Our model of a file gives what the oracle gives, for pictures of these sizes."""
    model = read.build()
    for size in sizes:
        images = torch.randn(2, read.config.channels, *size)
        with torch.inference_mode():
            ours, theirs = model(images), oracle(images)
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max(), size


def check_written_back(read: Checkpoint, source: Path, target: Path, name: FormatName) -> None:
    """Through our own format and back, every key has its type and its bits."""
    ours = target.with_name("ours.safetensors")
    write_checkpoint(read, ours)
    write_checkpoint(read_checkpoint(ours), target, name)
    before, after = (read_files(find_files(path), allow_pickle=True).tensors for path in (source, target))
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(after[key], tensor), key
        assert after[key].dtype == tensor.dtype, key

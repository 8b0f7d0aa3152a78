"""A tiny model of every family that we read: what they have that the paper's ViT has not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from conftest import TINY, randomize
from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, PositionConfig, RelativeBias, Rope, ViT, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.write import write_checkpoint

_NONE = PositionConfig(kind="none")
_PATCHES = PositionConfig(covers="patches")
_EVA = BlockConfig(mlp="swiglu", mlp_norm=True, key_bias=False)
_INDEX = Rope(base=10_000.0, coordinates="index", offset=1.0, order="xy", pairing="interleaved")

FAMILIES: dict[str, ViTConfig] = {
    "dinov3": replace(
        TINY,
        registers=4,
        positions=_NONE,
        relative=Rope(),
        block=BlockConfig(key_bias=False, layer_scale=1.0, norm_eps=1e-5),
    ),
    "dinov3-stored": replace(
        TINY,
        registers=2,
        positions=_NONE,
        relative=Rope(frequencies="stored"),
        block=BlockConfig(mlp="swiglu", layer_scale=1.0),
        pooling="mean",
    ),
    "clip": replace(
        TINY,
        pre_norm=True,
        patch_bias=False,
        projection=24,
        normalize_features=True,
        block=BlockConfig(activation="quick_gelu", norm_eps=1e-5),
    ),
    "siglip": replace(
        TINY,
        class_token=False,
        pooling="map",
        positions=PositionConfig(resample="siglip2"),
        block=BlockConfig(activation="gelu_tanh"),
    ),
    "pe": replace(
        TINY,
        pre_norm=True,
        patch_bias=False,
        relative=_INDEX,
        pooling="map",
        pool_prefix=True,
        pool_heads=2,
        pool_mlp_width=48,
        projection=24,
        positions=PositionConfig(resample="pe"),
    ),
    "pe-spatial": replace(TINY, pre_norm=True, relative=_INDEX, pool_norm="none"),
    "eva02": replace(
        TINY,
        relative=Rope(base=10_000.0, coordinates="reference", reference=(4, 4), pairing="interleaved"),
        block=_EVA,
        pooling="mean",
        pool_norm="after",
    ),
    "rope-mixed": replace(
        TINY,
        positions=_PATCHES,
        relative=replace(_INDEX, offset=0.0, frequencies="mixed", base=10.0),
        block=BlockConfig(layer_scale=1.0),
    ),
    "beit": replace(
        TINY,
        positions=_NONE,
        relative=RelativeBias(),
        block=BlockConfig(key_bias=False, layer_scale=0.1),
        pooling="mean",
        pool_norm="after",
    ),
    "beit-shared": replace(TINY, relative=RelativeBias(shared=True)),
    "relpos": replace(TINY, class_token=False, positions=_NONE, relative=RelativeBias(), pooling="mean"),
    "beit3": replace(TINY, block=BlockConfig(attention_norm=True, mlp_norm=True, norm_eps=1e-5)),
    "aimv2": replace(
        TINY,
        class_token=False,
        patch_norm=True,
        pooling="mean",
        block=BlockConfig(norm="rms", qkv_bias=False, proj_bias=False, mlp="swiglu", norm_eps=1e-5),
    ),
    "deit-distilled": replace(
        TINY, registers=1, summary_tokens=2, distilled=True, positions=PositionConfig(covers="all", resample="timm")
    ),
    "vit-pytorch": replace(
        TINY,
        attention_width=48,
        pixel_norm=True,
        patch_norm=True,
        pooling="mean",
        pool_prefix=True,
        block=BlockConfig(qkv_bias=False, norm_eps=1e-5),
    ),
    "simple-vit": replace(
        TINY,
        class_token=False,
        pooling="mean",
        pixel_norm=True,
        patch_norm=True,
        positions=PositionConfig(kind="sincos"),
        block=BlockConfig(qkv_bias=False, proj_bias=False, mlp_bias=True, norm_eps=1e-5),
    ),
    "radio": replace(
        TINY,
        registers=3,
        summary_tokens=2,
        patch_bias=False,
        pool_norm="none",
        positions=PositionConfig(covers="patches", resample="radio"),
    ),
}


def write_family(path: Path, name: str, **changes: Any) -> Path:
    """A checkpoint of the family's model with random weights, and names for its classes."""
    config = replace(FAMILIES[name], **changes)
    model = randomize(ViT(config))
    if not config.block.key_bias:
        for block in model.blocks:
            block.attention.qkv.bias.data.chunk(3)[1].zero_()
    classes = tuple("abcdefg")
    spec = preset("timm", config.image_size, config.channels)
    write_checkpoint(Checkpoint(config=config, tensors=model.state_dict(), preprocess=spec, classes=classes), path)
    return path

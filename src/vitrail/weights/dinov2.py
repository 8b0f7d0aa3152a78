"""facebookresearch/dinov2: `.pth` files of backbones with LayerScale, and register tokens in the newer ones."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.model import PositionConfig, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, anything, computes, only, positions
from vitrail.weights.infer import Hints, Raw, assumed_heads, infer_image_size, infer_sizes
from vitrail.weights.keys import Rule, layer, read_tensors, rule, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_pickle
from vitrail.weights.timm import BLOCK, block_rules, infer_block

GATED = ("w12", "w12", "w3")  # ViT-g's MLPs: gate and up in one matrix, and down
DINOV2_HEADS = "every DINOv2, with 64 features each"


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    named = {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= tensors.keys()
    return named and bool({"mask_token", "register_tokens"} & tensors.keys())


def key_table(config: ViTConfig) -> list[Rule]:
    rules = [
        rule("embed.class_token", "cls_token"),
        rule("embed.positions", "pos_embed"),
        *layer("embed.patches", "patch_embed.proj"),
        *layer("norm", "norm"),
    ]
    if config.registers:
        rules.append(rule("embed.registers", "register_tokens"))
    for index in range(config.depth):
        rules += block_rules(config, index, GATED)
    return rules


def read(raw: Raw, hints: Hints) -> Checkpoint:
    tensors, extras = split_mask_token(raw.tensors, "mask_token")
    config = infer_config(replace(raw, tensors=tensors), hints)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config), tensors),
        extras=extras,
        preprocess=preset("dinov2", config.image_size, config.channels),
        origin=Origin(format="dinov2"),
        notes=assumed_heads(config, hints, DINOV2_HEADS),
    )


def infer_config(raw: Raw, hints: Hints) -> ViTConfig:
    gated = f"blocks.0.mlp.{GATED[-1]}.weight" in raw.tensors
    mlp = f"blocks.0.mlp.{GATED[-1] if gated else 'fc2'}"
    sizes = infer_sizes(raw, hints, patches="patch_embed.proj", layers=r"blocks\.(\d+)\.", mlp=mlp, head_size=64)
    registers = raw.size("register_tokens", axis=1) or 0
    return ViTConfig(
        **sizes,
        image_size=infer_image_size(raw.shape("pos_embed", 3)[1], (1,), sizes["patch_size"], hints)[0],
        num_classes=0,
        registers=registers,
        pooling=hints.pooling or "cls",
        block=infer_block(raw, hints, gated),
        positions=PositionConfig(resample="timm" if registers else "dinov2"),  # antialiased since the registers came
    )


def split_mask_token(tensors: dict[str, Tensor], name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Separate the token of DINOv2's pre-training, which our forward pass never reads; zeros are its default."""
    rest = {key: tensor for key, tensor in tensors.items() if key != name}
    token = tensors.get(name)
    return rest, {} if token is None or not token.any() else {"mask_token": token}


def mask_token(checkpoint: Checkpoint) -> Tensor:
    """The original mask token, or its initial value."""
    class_token = checkpoint.tensors["embed.class_token"]
    return checkpoint.extras.get("mask_token", class_token.new_zeros(1, class_token.shape[-1]))


def _layer_scale(value: float | None, config: ViTConfig) -> str:
    return "" if value is not None else "it always has layer scale"


# What DINOv2's backbone can hold, in either of its formats.
BACKBONE: Holds = {
    **COMMON,
    **positions("learned", covers="class"),
    "num_classes": only(0, reason="it is a backbone without a head"),
    "registers": anything,
    "block.qkv_bias": anything,
    "block.layer_scale": _layer_scale,
    "block.mlp": anything,
}
HOLDS: Holds = {
    **BACKBONE,
    **computes(BLOCK),
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    tensors = write_tensors(key_table(checkpoint.config), checkpoint.tensors)
    write_pickle(path, {**tensors, "mask_token": mask_token(checkpoint)})


FORMAT = ForeignFormat(
    name="dinov2",
    suffixes=(".pth",),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
    family="dinov2",
)

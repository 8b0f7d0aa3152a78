"""facebookresearch/dinov2: `.pth` files of backbones with LayerScale, and register tokens in the newer ones."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.model import PositionConfig, ViTConfig
from vitrail.weights import infer, keys
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import timm
from vitrail.weights.foreign.timm import BLOCK
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, anything, computes, only, positions
from vitrail.weights.infer import Hints, Raw, assumed_heads
from vitrail.weights.keys import Names, Rule, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_pickle

# Our modules → DINOv2's: timm's names, but for the registers and ViT-g's MLPs, whose gate and up are one matrix.
_GATED = {"mlp.gate": "mlp.w12", "mlp.up": "mlp.w12", "mlp.down": "mlp.w3"}
NAMES: Names = {**timm.NAMES, **under("blocks.{}", "blocks.{}.", _GATED), "embed.registers": "register_tokens"}
DINOV2_HEADS = "every DINOv2, with 64 features each"


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return is_backbone(tensors) and count_registers(tensors) != 1


def count_registers(tensors: Mapping[str, Tensor]) -> int:
    """One register is what distinguishes a TIPS (`tips.py`)."""
    registers = tensors.get("register_tokens")
    return 0 if registers is None or registers.ndim < 2 else registers.shape[1]


def is_backbone(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of DINOv2, or of a TIPS."""
    named = {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.ls1.gamma"} <= tensors.keys()
    rotary = {"storage_tokens", "rope_embed.periods"} & tensors.keys()
    return named and bool({"mask_token", "register_tokens"} & tensors.keys()) and not rotary


def key_table(config: ViTConfig) -> list[Rule]:
    return keys.key_table(config, NAMES)


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


def infer_config(raw: Raw, hints: Hints, head_size: int = 64) -> ViTConfig:
    resample = "timm" if "register_tokens" in raw.tensors else "dinov2"  # antialiased since the registers came
    learned = PositionConfig(resample=resample)
    return infer.infer_config(raw, hints, NAMES, block=BLOCK, positions=learned, head_size=head_size)


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
    "registers": lambda value, config: "one register is what distinguishes a TIPS" if value == 1 else "",
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

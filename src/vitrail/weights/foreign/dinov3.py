"""facebookresearch/dinov3: `.pth` files of backbones with rotary positions, whose periods they store."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess, preset
from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, Rope, ViTConfig
from vitrail.weights import infer, keys
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import timm
from vitrail.weights.foreign.dinov2 import BACKBONE, mask_token, split_mask_token
from vitrail.weights.formats import ForeignFormat, Holds, anything, computes, only
from vitrail.weights.infer import Hints, Raw, assumed_heads, leave_out
from vitrail.weights.keys import Names, Rule, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_pickle

BLOCK = BlockConfig(activation="gelu", norm_eps=1e-5, layer_scale=1e-5)
SIZE = 256  # to which its README resizes pictures; its positions are bound to no size
PERIODS = "rope_embed.periods"
MASK = "blocks.{}.attn.qkv.bias_mask"  # buffers that hide the keys' part of the biases
LOCAL_NORM = ("local_cls_norm.weight", "local_cls_norm.bias")  # of local crops in pre-training
PROJECTORS = r"projectors\."  # heads of EUPE's distillation
# Our modules → DINOv3's: timm's names, but for the registers, the periods and the gated MLPs.
_GATED = {"mlp.gate": "mlp.w1", "mlp.up": "mlp.w2", "mlp.down": "mlp.w3"}
NAMES: Names = {
    **timm.NAMES,
    **under("blocks.{}", "blocks.{}.", _GATED),
    "embed.registers": "storage_tokens",
    "relative.periods": PERIODS,
}


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    named = {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.ls1.gamma"} <= tensors.keys()
    return named and bool({"storage_tokens", PERIODS} & tensors.keys())


def key_table(config: ViTConfig) -> list[Rule]:
    return keys.key_table(config, NAMES)


def read(raw: Raw, hints: Hints) -> Checkpoint:
    tensors, extras = split_mask_token(raw.tensors, "mask_token")
    extras |= {name: tensors.pop(name) for name in LOCAL_NORM if name in tensors}
    tensors, remarks = leave_out(tensors, PROJECTORS, "the distillation's projectors")
    masked = apply_masks(tensors)
    head_size = 4 * raw.shape(PERIODS, 1)[0] if PERIODS in tensors else 64
    if PERIODS in tensors and torch.equal(tensors[PERIODS], periods_of(Rope(), head_size)):
        del tensors[PERIODS]  # not rounded: other libraries compute the same
    config = infer_config(replace(raw, tensors=tensors), hints, head_size, key_bias=not masked)
    preprocess, notes = assume_preprocess(raw.path, config)
    heads = (
        () if PERIODS in raw.tensors else assumed_heads(config, hints, "every DINOv3 but the largest, 64 features each")
    )
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config), tensors),
        extras=extras,
        preprocess=preprocess,
        origin=Origin(format="dinov3"),
        notes=(*heads, *notes),
        remarks=remarks,
    )


def infer_config(raw: Raw, hints: Hints, head_size: int, *, key_bias: bool) -> ViTConfig:
    rows, columns = (max(SIZE // side, 1) * side for side in raw.shape("patch_embed.proj.weight", 4)[2:])
    return infer.infer_config(
        raw,
        replace(hints, image_size=hints.image_size or (rows, columns)),
        NAMES,
        block=replace(BLOCK, key_bias=key_bias),
        positions=PositionConfig(kind="none"),
        head_size=head_size,
        relative=Rope(frequencies="stored" if PERIODS in raw.tensors else "computed"),
    )


def apply_masks(tensors: dict[str, Tensor]) -> bool:
    """Take out the buffers that hide the keys' biases, and make those zero; whether there were any."""
    found = [name for name in tensors if name.endswith(".bias_mask")]
    for name in found:
        mask, bias = tensors.pop(name), name.removesuffix("_mask")
        if bias not in tensors or not torch.equal(mask.float(), key_mask(tensors[bias].float())):
            raise WeightsError(f"{name} must hide the keys' third of the biases, and nothing else.")
        tensors[bias] = tensors[bias] * mask.to(tensors[bias].dtype)
    return bool(found)


def periods_of(rope: Rope, head_size: int) -> Tensor:
    """The periods in float32, as computed before they are rounded."""
    return rope.base ** (2 * torch.arange(head_size // 4, dtype=torch.float32) / (head_size // 2))


def key_mask(bias: Tensor) -> Tensor:
    """1 for queries and values, 0 for keys."""
    mask = torch.ones_like(bias)
    mask.chunk(3)[1].zero_()
    return mask


def assume_preprocess(path: Path, config: ViTConfig) -> tuple[Preprocess, tuple[str, ...]]:
    """Two sets of pictures were learned from, and only the names of the files tell which."""
    satellite = "sat493m" in path.name.lower()
    spec = preset("dinov3-sat" if satellite else "dinov3", config.image_size, config.channels)
    if satellite or "lvd1689m" in path.name.lower():
        return spec, ()
    return spec, (
        "the file does not state its mean and std: assumed those of photographs; the weights for satellite pictures "
        "are known by their file name, which contains sat493m",
    )


HOLDS: Holds = {
    **BACKBONE,
    **computes(BLOCK),
    "positions.kind": only("none", reason="its positions are rotary, and none are added to the tokens"),
    "positions.covers": anything,
    "relative.kind": only("rope", reason="its positions are rotary"),
    "relative.base": anything,  # the periods are stored
    "relative.frequencies": only("computed", "stored", reason="its rotary positions are the same in every block"),
    "block.key_bias": anything,
    "block.proj_bias": anything,
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    config = checkpoint.config
    tensors = write_tensors(key_table(config), checkpoint.tensors)
    assert isinstance(config.relative, Rope)
    if config.relative.frequencies == "computed":
        tensors[PERIODS] = periods_of(config.relative, config.head_size)
    if config.block.qkv_bias and not config.block.key_bias:
        biases = {index: tensors[f"blocks.{index}.attn.qkv.bias"] for index in range(config.depth)}
        tensors |= {MASK.format(index): key_mask(bias) for index, bias in biases.items()}
    tensors |= {name: checkpoint.extras[name] for name in LOCAL_NORM if name in checkpoint.extras}
    write_pickle(path, {**tensors, "mask_token": mask_token(checkpoint)})


FORMAT = ForeignFormat(
    name="dinov3",
    suffixes=(".pth",),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
)

"""microsoft/unilm: `.pth` files of BEiT and BEiT v2, pre-trained or fine-tuned, with relative position biases.

EVA builds on its code, and has its names (`eva.py`).
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess, preset
from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, RelativeBias, ViTConfig
from vitrail.model.parts import Pair
from vitrail.weights import infer, keys
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.dinov2 import split_mask_token
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, anything, computes, only, positions
from vitrail.weights.infer import Hints, Notes, Raw, assumed, leave_out
from vitrail.weights.keys import KEYLESS, LAYERS, Names, Rule, read_tensors, rule, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_pickle

BLOCK = BlockConfig(activation="gelu", norm_eps=1e-6, layer_scale=0.1, key_bias=False)
TABLE, INDEX = "relative_position_bias_table", "relative_position_index"
SHARED, OWN = "rel_pos_bias.", "blocks.{}.attn."  # where a table for all blocks, or each block's, is
# Heads of pre-training, which predict visual tokens; and v2's blocks for [cls] alone.
PRETRAINING = r"lm_head\.|cls_pt_"
BIAS = "blocks.{}.attention.qkv.bias"

# Our modules → BEiT's.
BLOCK_NAMES: Names = {
    "norm1": "norm1",
    "attention.qkv.weight": "attn.qkv.weight",
    "attention.qkv.bias": ("attn.q_bias", "attn.v_bias"),
    "attention.proj": "attn.proj",
    "branch1.scale": "gamma_1",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "branch2.scale": "gamma_2",
}


def names_of(pool_norm: str, block: Names = BLOCK_NAMES) -> Names:
    """The names of a model's modules, of which the last norm's says what it normalises."""
    return {
        "embed.class_token": "cls_token",
        "embed.positions": "pos_embed",
        "embed.patches": "patch_embed.proj",
        **under("blocks.{}", "blocks.{}.", block),
        "norm": "fc_norm" if pool_norm == "after" else "norm",
        "head": "head",
    }


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return "patch_embed.proj.weight" in tensors and bool({SHARED + INDEX, OWN.format(0) + INDEX} & tensors.keys())


def key_table(config: ViTConfig, names: Names | None = None) -> list[Rule]:
    """The rules of a model: keys have no biases, and each block may have a table of its own."""
    rules = keys.key_table(config, names or names_of(config.pool_norm))
    biases = {BIAS.format(block) for block in range(config.depth)}
    rules = [replace(each, form=KEYLESS) if each.ours in biases else each for each in rules]
    if isinstance(config.relative, RelativeBias):
        rules.append(rule("relative.table", *(place + TABLE for place in _places(config)), form=LAYERS))
    return rules


def _places(config: ViTConfig) -> list[str]:
    assert isinstance(config.relative, RelativeBias)
    return [SHARED] if config.relative.shared else [OWN.format(block) for block in range(config.depth)]


def read(raw: Raw, hints: Hints) -> Checkpoint:
    tensors, extras = split_mask_token(raw.tensors, "mask_token")
    tensors, remarks = leave_out(tensors, PRETRAINING, "heads of the pre-training")
    raw = replace(raw, tensors=tensors)
    config = infer_config(raw, hints)
    for name in [name for name in tensors if name.endswith(INDEX)]:
        if not torch.equal(tensors.pop(name).long(), index_of(config.grid)):
            raise WeightsError(f"{name} is not the one that follows from a grid of {config.grid[0]}×{config.grid[1]}.")
    preprocess, unstated = assume_preprocess(raw.path, config)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config), tensors),
        extras=extras,
        preprocess=preprocess,
        origin=Origin(format="beit"),
        notes=(*assumed_pooling(config, hints), *unstated),
        remarks=remarks,
    )


def infer_config(raw: Raw, hints: Hints) -> ViTConfig:
    shared, pool_norm = SHARED + TABLE in raw.tensors, infer_pool_norm(raw)
    rows, heads = raw.shape((SHARED if shared else OWN.format(0)) + TABLE, 2)
    patch = raw.shape("patch_embed.proj.weight", 4)[2:]
    if hints.image_size is None:  # the grid is square: (2 · side − 1)² offsets, and 3 for pairs with [cls]
        side = (isqrt(max(rows - 3, 0)) + 1) // 2
        hints = replace(hints, image_size=(side * patch[0], side * patch[1]))
    return infer.infer_config(
        raw,
        replace(hints, heads=hints.heads or heads),
        names_of(pool_norm),
        block=BLOCK,
        positions=PositionConfig(resample="dinov2"),
        pool_norm=pool_norm,
        relative=RelativeBias(shared=shared),
    )


def infer_pool_norm(raw: Raw) -> infer.PoolNorm:
    return "after" if "fc_norm.weight" in raw.tensors else "before"


def assumed_pooling(config: ViTConfig, hints: Hints) -> Notes:
    """The note for a model without a head, which has not pooled anything yet."""
    unknown = config.num_classes == 0 and config.pool_norm == "before"
    return assumed("pooling", config.pooling, "pooling", hints.pooling) if unknown else ()


def index_of(grid: Pair) -> Tensor:
    """For each query and key the row of the table: offsets of patches, then pairs with [cls]."""
    rows, columns = grid
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    apart = places[:, None] - places[None]
    index = (apart[..., 0] + rows - 1) * (2 * columns - 1) + apart[..., 1] + columns - 1
    offsets = (2 * rows - 1) * (2 * columns - 1)
    index = F.pad(index, (1, 0, 1, 0), value=offsets + 1)  # a patch looks at [cls]
    index[0] = offsets
    index[0, 0] = offsets + 2
    return index


def assume_preprocess(path: Path, config: ViTConfig) -> tuple[Preprocess, Notes]:
    """The two versions have different means, and only the names of their files tell which it is."""
    spec = preset("beit", config.image_size, config.channels)
    if path.name.startswith("beitv2_") and config.channels == 3:
        return replace(spec, mean=IMAGENET_MEAN, std=IMAGENET_STD), ()
    known = path.name.startswith("beit_")
    note = (
        "the file does not state its mean and std: assumed those of BEiT, 0.5; BEiT v2, whose files begin with beitv2_"
    )
    return spec, () if known else (f"{note}, has ImageNet's",)


def _pooling(value: str, config: ViTConfig) -> str:
    expected = "mean" if config.pool_norm == "after" else "cls"
    return "" if value == expected else "it pools [cls], or the mean of the patches before its last LayerNorm"


# What BEiT and EVA hold.
SHARED_HOLDS: Holds = {
    **COMMON,
    **positions("learned", "none", covers="class"),
    **computes(BLOCK),
    "pooling": _pooling,
    "pool_norm": only("before", "after", reason="it has a last LayerNorm"),
    "block.qkv_bias": anything,
    "block.key_bias": lambda value, config: "its keys have no bias" if value and config.block.qkv_bias else "",
    "block.layer_scale": anything,
}
HOLDS: Holds = {
    **SHARED_HOLDS,
    "relative.kind": only("bias", reason="its attention has relative position biases"),
    "relative.shared": anything,
}


def mask_tokens(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The token of the pre-training, if there was one."""
    return {name: tensor for name, tensor in checkpoint.extras.items() if name == "mask_token"}


def write(checkpoint: Checkpoint, path: Path) -> None:
    config = checkpoint.config
    tensors = write_tensors(key_table(config), checkpoint.tensors)
    tensors |= {place + INDEX: index_of(config.grid) for place in _places(config)}
    write_pickle(path, tensors | mask_tokens(checkpoint))


FORMAT = ForeignFormat(
    name="beit",
    suffixes=(".pth",),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
)

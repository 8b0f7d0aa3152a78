"""lucidrains/vit-pytorch: the state dicts of its `ViT` and `SimpleViT`, of every release that can be told apart.

Its releases give the same parts other names; which, is the dialect of a checkpoint's origin:

| | to 0.9 | to 0.40 | to 1.3 | since 1.4 |
|---|---|---|---|---|
| blocks of `ViT` | residual | prenorm | prenorm | inside |
| LayerNorms around the patch projection | | | yes | yes |
| last LayerNorm | in the head | in the head | in the head | after the last block |
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.model.parts import Pair
from vitrail.weights import keys
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.d2l import unscaled
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, anything, computes, only, positions
from vitrail.weights.infer import Hints, Notes, Raw, assumed, assumed_heads, infer_config
from vitrail.weights.keys import Form, Names, Rule, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_pickle
from vitrail.wording import counted

BLOCK = BlockConfig(activation="gelu", norm_eps=1e-5, qkv_bias=False)  # what every release computes
HEAD_SIZE = 64  # its default, whatever the width
Dialect = Mapping[str, str]

# Spelling → our modules → those of a layer.
BLOCKS: dict[str, Names] = {
    "residual": {
        "norm1": "0.fn.norm",
        "attention.qkv": "0.fn.fn.to_qkv",
        "attention.proj": "0.fn.fn.to_out.0",
        "norm2": "1.fn.norm",
        "mlp.fc1": "1.fn.fn.net.0",
        "mlp.fc2": "1.fn.fn.net.3",
    },
    "prenorm": {
        "norm1": "0.norm",
        "attention.qkv": "0.fn.to_qkv",
        "attention.proj": "0.fn.to_out.0",
        "norm2": "1.norm",
        "mlp.fc1": "1.fn.net.0",
        "mlp.fc2": "1.fn.net.3",
    },
    "inside": {
        "norm1": "0.norm",
        "attention.qkv": "0.to_qkv",
        "attention.proj": "0.to_out.0",
        "norm2": "1.net.0",
        "mlp.fc1": "1.net.1",
        "mlp.fc2": "1.net.4",
    },
    "simple": {  # SimpleViT: without dropout, and so without its numbers
        "norm1": "0.norm",
        "attention.qkv": "0.to_qkv",
        "attention.proj": "0.to_out",
        "norm2": "1.net.0",
        "mlp.fc1": "1.net.1",
        "mlp.fc2": "1.net.3",
    },
}
LAYER = "transformer.layers.0."
OLDEST, PATCHES = "patch_to_embedding.", "to_patch_embedding.1."
TOKENS = {"class_token": "cls_token", "positions": "pos_embedding", "registers": "register_tokens"}
NORMS = {"pixel_norm": "to_patch_embedding.1", "patches": "to_patch_embedding.2", "patch_norm": "to_patch_embedding.3"}
# Spelling → the models, of sampled tokens, sequences and videos, that share it with all of their keys.
LOOKALIKES = {"prenorm": "ats_vit, vit_1d and vit_3d", "simple": "simple_vit_1d and simple_vit_3d"}
PREPROCESS = "the file does not state its preprocessing: assumed pixels from 0 to 1, squashed to the size"


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    attention = any(f"{LAYER}{block['attention.qkv']}.weight" in tensors for block in BLOCKS.values())
    return attention and (f"{OLDEST}weight" in tensors or f"{PATCHES}weight" in tensors)


def names_of(dialect: Dialect, normed: bool) -> Names:
    """Our modules → those of a release; `normed` ones have LayerNorms before and after the patch projection."""
    head = "linear_head" if dialect["blocks"] == "simple" else "mlp_head"
    last = {"norm": "transformer.norm", "head": head}
    if dialect["head"] == "sequential":
        last = {"norm": f"{head}.0", "head": f"{head}.1"}
    return {
        **under("embed", "", TOKENS),
        **under("embed", "", NORMS if normed else {"patches": PATCHES.rstrip(".")}),
        **under("blocks.{}", "transformer.layers.{}.", BLOCKS[dialect["blocks"]]),
        **last,
    }


def dialect_in(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The spellings of a file."""
    fits = {
        name
        for name, block in BLOCKS.items()
        if f"{LAYER}{block['attention.qkv']}.weight" in tensors and f"{LAYER}{block['mlp.fc2']}.weight" in tensors
    }
    simple = "pos_embedding" not in tensors
    spelling = next((name for name in BLOCKS if name in fits and (name == "simple") == simple), None)
    if spelling is None:
        raise WeightsError("its layers are not those of a ViT or SimpleViT of vit-pytorch, but of another model there.")
    after = "transformer.norm.weight" in tensors
    if spelling == "inside" and not after and tensors["pos_embedding"].ndim == 3:
        raise WeightsError("it is one of vit-pytorch's other models: ats_vit, vit_1d, vit_3d or a DeepViT.")
    flat = [name for name, theirs in TOKENS.items() if theirs in tensors and tensors[theirs].ndim == 2]
    return {"blocks": spelling, "head": "linear" if after else "sequential", "flat": " ".join(flat)}


def usual_dialect(config: ViTConfig) -> dict[str, str]:
    """The spellings of the newest release that computes such a model."""
    simple = config.positions.kind == "sincos"
    after = config.pool_norm == "before" and (simple or config.pixel_norm)
    blocks = "simple" if simple else "inside" if after else "prenorm"
    flat = "class_token positions" if after and not config.pool_prefix else ""
    return {"blocks": blocks, "head": "linear" if after else "sequential", "flat": "registers" if simple else flat}


def dialect_for(checkpoint: Checkpoint) -> Dialect:
    """The spellings to write a checkpoint with."""
    return checkpoint.origin.dialect_of("lucidrains") or usual_dialect(checkpoint.config)


def key_table(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    (rows, columns), channels = config.patch_size, config.channels  # theirs have the channels last
    pixels = Form(
        lambda theirs: theirs[0].reshape(rows, columns, channels).permute(2, 0, 1).flatten(),
        lambda ours: (ours.reshape(channels, rows, columns).permute(1, 2, 0).flatten(),),
    )
    filters = Form(
        lambda theirs: theirs[0].reshape(-1, rows, columns, channels).permute(0, 3, 1, 2),
        lambda ours: (ours.permute(0, 2, 3, 1).flatten(1),),
    )
    flat = Form(lambda theirs: theirs[0][None], lambda ours: (ours[0],))
    forms = {"embed.patches.weight": filters, "embed.pixel_norm.weight": pixels, "embed.pixel_norm.bias": pixels}
    forms |= {f"embed.{name}": flat for name in dialect["flat"].split()}
    rules = keys.key_table(config, names_of(dialect, config.pixel_norm))
    return [replace(each, form=forms.get(each.ours, each.form)) for each in rules]


def read(raw: Raw, hints: Hints) -> Checkpoint:
    tensors = {name.replace(OLDEST, PATCHES): tensor for name, tensor in raw.tensors.items()}
    check_readable(tensors)
    oldest = len(tensors.keys() - raw.tensors.keys()) > 0
    if empty := "cls_token" in tensors and not tensors["cls_token"].numel():  # since 1.16, where the mean is pooled
        del tensors["cls_token"]
    dialect = dialect_in(tensors)
    normed = "to_patch_embedding.3.weight" in tensors
    names = names_of(dialect, normed)
    patch_size, channels = infer_patches(tensors, names, hints)
    shapes = shapes_of(tensors, names, patch_size, channels)
    config = infer_config(
        replace(raw, tensors=shapes),
        hints,
        names,
        block=BLOCK,
        positions=PositionConfig(covers="all"),
        head_size=HEAD_SIZE,
        attention_width=len(tensors[f"{LAYER}{BLOCKS[dialect['blocks']]['attention.qkv']}.weight"]) // 3,
    )
    simple = dialect["blocks"] == "simple"
    config = replace(
        config,
        block=settle_scale(config, hints) if oldest else config.block,
        pool_norm="before" if dialect["head"] == "linear" else "after",
        pool_prefix=config.pooling == "mean" and config.class_token,
        positions=PositionConfig(kind="sincos") if simple else config.positions,
    )
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, dialect), tensors),
        preprocess=unscaled(config),
        origin=Origin(format="lucidrains", dialect=dialect),
        notes=(*assumptions(config, hints, known_pooling=simple or empty), *lookalikes(dialect), PREPROCESS),
    )


def assumptions(config: ViTConfig, hints: Hints, *, known_pooling: bool) -> Notes:
    """What neither a key nor a hint settles, one note each."""
    rows, columns = config.patch_size
    height, width = config.image_size
    notes = assumed_heads(config, hints, f"vit-pytorch's default, {HEAD_SIZE} features each")
    pixels = f"{rows}×{columns} pixels of {counted(config.channels, 'channel')}"
    notes += assumed("patches", pixels, "patch_size", hints.patch_size)
    if not known_pooling:
        notes += assumed("pooling", config.pooling, "pooling", hints.pooling)
    if config.positions.kind == "sincos":
        notes += assumed("picture size", f"{height}×{width}", "image_size", hints.image_size)
    return notes


def lookalikes(dialect: Dialect) -> Notes:
    """The note on models that cannot be told apart by their keys."""
    names = LOOKALIKES.get(dialect["blocks"])
    return (f"vit-pytorch's {names} have the same keys, and compute something else",) if names else ()


def check_readable(tensors: Mapping[str, Tensor]) -> None:
    """Raise for what our model does not compute, by name."""
    if not any(".to_out." in name for name in tensors):
        raise WeightsError(
            "its attention has no projection after it (one head as wide as the tokens); ours always has."
        )
    if any(re.fullmatch(r"mlp_head\.[234]\.weight", name) for name in tensors):
        raise WeightsError("its head is an MLP with GELU (vit-pytorch before 0.3); ours is one layer.")
    if "linear_head.weight" in tensors and tensors["linear_head.weight"].ndim == 1:
        raise WeightsError("its head is only a LayerNorm (a mistake of vit-pytorch 1.4.0), so it gives no classes.")


def settle_scale(config: ViTConfig, hints: Hints) -> BlockConfig:
    """The oldest releases share their names, but not the scale of their attention."""
    usual, wide = config.head_size**-0.5, config.width**-0.5
    if hints.attention_scale is None:
        raise WeightsError(
            f"the file does not state its attention scale: vit-pytorch before 0.6.7 has 1 / √{config.width}, later "
            f"ones 1 / √{config.head_size}; pass `attention_scale={wide:.6g}` or `attention_scale={usual:.6g}`."
        )
    same = abs(hints.attention_scale - usual) <= 1e-5 * usual
    return replace(config.block, attention_scale=None) if same else config.block


def infer_patches(tensors: Mapping[str, Tensor], names: Names, hints: Hints) -> tuple[Pair, int]:
    """The patch size and the channels, of which the file has only the product."""
    count = tensors[f"{names['embed.patches'][0]}.weight"].shape[-1]
    if hints.patch_size is not None:
        area = hints.patch_size[0] * hints.patch_size[1]
        if count % area:
            raise WeightsError(f"its patches have {count} numbers each; patch_size must divide them, {area} does not.")
        return hints.patch_size, count // area
    for channels in (3, 1):
        side = isqrt(count // channels)
        if channels * side**2 == count:
            return (side, side), channels
    raise WeightsError(
        f"its patches have {count} numbers each, which are not 3 channels or 1 of a square; pass `patch_size=`, the "
        "height and width."
    )


def shapes_of(tensors: Mapping[str, Tensor], names: Names, patch: Pair, channels: int) -> dict[str, Tensor]:
    """The same names with the shapes of a convolution and of tokens with a batch, and no numbers."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    shapes |= {name: (1, *shapes[name]) for name in TOKENS.values() if len(shapes.get(name, ())) == 2}
    patches = f"{names['embed.patches'][0]}.weight"
    shapes[patches] = (shapes[patches][0], channels, *patch)
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def _is_simple(config: ViTConfig) -> bool:
    return config.positions.kind == "sincos"


def _norms(value: bool, config: ViTConfig) -> str:
    return (
        "" if config.pixel_norm == config.patch_norm else "it has norms before and after the patch projection, or none"
    )


def _class_token(value: bool, config: ViTConfig) -> str:
    if _is_simple(config):
        return "its SimpleViT has no [cls] token" if value else ""
    newest = config.pixel_norm and config.pool_norm == "before"
    return "" if value or newest else "it has a [cls] token, except in its newest releases"


def _registers(value: int, config: ViTConfig) -> str:
    newest = _is_simple(config) and config.pixel_norm and config.pool_norm == "before"
    return "" if newest or not value else "only its newer SimpleViT has registers"


def _pool_norm(value: str, config: ViTConfig) -> str:
    if value == "none":
        return "it has a last LayerNorm"
    if config.pooling == "mean" and value == "before" and not config.pixel_norm:
        return "its releases without norms of the patches have the last LayerNorm after the pooling"
    return ""


HOLDS: Holds = {
    **COMMON,
    **positions("learned", "sincos", covers="class"),
    "num_classes": lambda value, config: "" if value else "it always has a head",
    "attention_width": anything,
    "pixel_norm": _norms,
    "patch_norm": _norms,
    "class_token": _class_token,
    "registers": _registers,
    "pooling": only("cls", "mean", reason="it pools the [cls] token or the mean"),
    "pool_prefix": lambda value, config: (
        "" if value == (config.pooling == "mean" and config.class_token) else "its mean is that of all tokens"
    ),
    "pool_norm": _pool_norm,
    **computes(BLOCK),
    "block.qkv_bias": only(False, reason="its queries, keys and values have no biases"),
    "block.proj_bias": lambda value, config: (
        "" if value != _is_simple(config) else "its ViT has a bias after attention, and its SimpleViT has none"
    ),
    "block.mlp_bias": lambda value, config: "" if config.block.mlp_has_bias else "the layers of its MLP have biases",
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    config = checkpoint.config
    tensors = write_tensors(key_table(config, dialect_for(checkpoint)), checkpoint.tensors)
    if not config.class_token and not _is_simple(config):
        positions = tensors["pos_embedding"]
        tensors["cls_token"] = positions[..., :0, :]
    write_pickle(path, tensors)


def how_to_load(checkpoint: Checkpoint, path: Path) -> str:
    config = checkpoint.config
    arguments: dict[str, Any] = {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_classes": config.num_classes,
        "dim": config.width,
        "depth": config.depth,
        "heads": config.heads,
        "dim_head": config.head_size,
        "mlp_dim": config.hidden_width,
        "channels": config.channels,
        **({} if _is_simple(config) else {"pool": config.pooling}),
    }
    shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    kind = "SimpleViT" if _is_simple(config) else "ViT"
    load = f'model = vit_pytorch.{kind}({shown}); model.load_state_dict(torch.load("{path}"))'
    return f"{load}, with vit-pytorch {releases(dialect_for(checkpoint), config)}"


def releases(dialect: Dialect, config: ViTConfig) -> str:
    """Those whose models have these names."""
    if dialect["blocks"] == "residual":
        return "0.7 to 0.9"
    if dialect["head"] == "sequential":
        return "1.0 to 1.3" if config.pixel_norm else "0.35 to 0.40" if _is_simple(config) else "0.10 to 0.40"
    if _is_simple(config):
        return "since 1.4.1"
    return "since 1.16.1" if dialect["flat"] else "1.4 to 1.15" if config.class_token else "1.16.0"


FORMAT = ForeignFormat(
    name="lucidrains",
    suffixes=(".pt",),
    holds=lambda config: HOLDS,
    write=write,
    how_to_load=how_to_load,
    resamples=_is_simple,
    recognises=recognises,
    read=read,
)

"""baaivision/EVA: `.pt` files of EVA-02, its CLIPs, and EVA's pre-training; fine-tuned EVA has timm's names.

Its names are BEiT's. What the models of different sizes spell differently is the dialect: queries, keys and values in
one matrix or three, and the gated MLP's first two matrices likewise.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.errors import WeightsError
from vitrail.model import PositionConfig, Rope, ViTConfig
from vitrail.weights import infer
from vitrail.weights.checkpoint import LOGIT_SCALE, Checkpoint
from vitrail.weights.foreign import beit
from vitrail.weights.foreign.beit import (
    BLOCK,
    PRETRAINING,
    SHARED_HOLDS,
    assumed_pooling,
    infer_pool_norm,
    key_table,
    mask_tokens,
    names_of,
)
from vitrail.weights.foreign.dinov2 import split_mask_token
from vitrail.weights.formats import ForeignFormat, Holds, anything, only
from vitrail.weights.infer import Hints, Notes, Raw, assumed_heads, leave_out
from vitrail.weights.keys import Names, read_tensors, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_pickle

REFERENCE = (16, 16)  # the grid of pre-training, whose coordinates every other grid spans
ROPE = Rope(base=10_000.0, coordinates="reference", reference=REFERENCE, order="yx", pairing="interleaved")
ANGLES = re.compile(r"(blocks\.\d+\.attn\.)?rope\.freqs_(cos|sin)")  # buffers, of the model and once more of each block
VISUAL = "visual."  # before the names of an EVA-CLIP's tower
HEAD_SIZES = {1408: 88}  # width → features of a head; otherwise 64


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    tensors = {name.removeprefix(VISUAL): tensor for name, tensor in tensors.items()}
    own = {"blocks.0.mlp.w1.weight", "blocks.0.mlp.w12.weight", "rope.freqs_cos", "mask_token"} & tensors.keys()
    return (
        {"patch_embed.proj.weight", "blocks.0.attn.q_bias"} <= tensors.keys()
        and bool(own)
        and not beit.recognises(tensors)
    )


def block_names(dialect: Mapping[str, str]) -> Names:
    """Our modules within a block → EVA's."""
    qkv = ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight")
    gate, up = ("mlp.w12", "mlp.w12") if dialect.get("mlp") == "packed" else ("mlp.w1", "mlp.w2")
    return {
        **beit.BLOCK_NAMES,
        **({"attention.qkv.weight": qkv} if dialect.get("qkv") == "separate" else {}),
        "attention.norm": "attn.inner_attn_ln",
        "mlp.gate": gate,
        "mlp.up": up,
        "mlp.norm": "mlp.ffn_ln",
        "mlp.down": "mlp.w3",
    }


def read(raw: Raw, hints: Hints) -> Checkpoint:
    prefix = VISUAL if f"{VISUAL}cls_token" in raw.tensors else ""
    tensors, extras, remarks = split_tower(raw.tensors) if prefix else split_pretraining(raw.tensors)
    angles = {name: tensors.pop(name) for name in list(tensors) if ANGLES.fullmatch(name)}
    dialect = {
        "prefix": prefix,
        "qkv": "separate" if "blocks.0.attn.q_proj.weight" in tensors else "one",
        "mlp": "packed" if "blocks.0.mlp.w12.weight" in tensors else "separate",
    }
    config = infer_config(replace(raw, tensors=tensors), hints, dialect, rotates=bool(angles))
    for name, angle in angles.items():
        check_angles(name, angle, config)
    names = names_of(config.pool_norm, block_names(dialect))
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, names), tensors),
        extras=extras,
        preprocess=preset("clip", config.image_size, config.channels),
        origin=Origin(format="eva", dialect=dialect),
        notes=(*assumed_heads(config, hints, "every EVA of its width"), *assumed_pooling(config, hints)),
        remarks=remarks,
    )


def split_pretraining(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor], Notes]:
    """The model, the token of its pre-training, and remarks on what was left out."""
    tensors, extras = split_mask_token(tensors, "mask_token")
    tensors, remarks = leave_out(tensors, PRETRAINING, "heads of the pre-training")
    return tensors, extras, remarks


def split_tower(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor], Notes]:
    """The picture's tower of an EVA-CLIP, the similarity's scale, and remarks."""
    extras = {name: tensors.pop(name) for name in (LOGIT_SCALE,) if name in tensors}
    tensors, remarks = leave_out(tensors, rf"(?!{re.escape(VISUAL)})", "the tower that reads texts")
    head = "its projection to what texts are compared with has a bias, and is read as a head"
    return {name.removeprefix(VISUAL): each for name, each in tensors.items()}, extras, (*remarks, head)


def infer_config(raw: Raw, hints: Hints, dialect: Mapping[str, str], *, rotates: bool) -> ViTConfig:
    pool_norm = infer_pool_norm(raw)
    return infer.infer_config(
        raw,
        hints,
        names_of(pool_norm, block_names(dialect)),
        block=BLOCK,
        positions=PositionConfig(resample="hf"),
        head_size=HEAD_SIZES.get(raw.shape("patch_embed.proj.weight", 4)[0], 64),
        pool_norm=pool_norm,
        relative=ROPE if rotates else None,
    )


def check_angles(name: str, stored: Tensor, config: ViTConfig) -> None:
    """Raise unless the stored sines or cosines are those that we compute."""
    computed = angles_of(config)[name.rpartition("_")[2]]
    close = stored.shape == computed.shape and torch.allclose(stored.float(), computed, rtol=0, atol=1e-2)
    if not close or (stored.dtype == torch.float32 and not torch.allclose(stored, computed, rtol=0, atol=1e-4)):
        raise WeightsError(
            f"{name} are not the angles of a grid of {config.grid[0]}×{config.grid[1]} with coordinates up to "
            f"{REFERENCE[0]}, heads of {config.head_size} features and base {ROPE.base:g}."
        )


def angles_of(config: ViTConfig) -> dict[str, Tensor]:
    """The sines and cosines of each patch, (h·w, K), as EVA computes and stores them."""
    half = config.head_size // 2
    frequencies = 1.0 / (ROPE.base ** (torch.arange(0, half, 2).float() / half))
    rows, columns = (
        (torch.arange(side) / side * span)[:, None] * frequencies
        for side, span in zip(config.grid, REFERENCE, strict=True)
    )
    pair = (rows.repeat_interleave(2, -1)[:, None], columns.repeat_interleave(2, -1)[None])
    angles = torch.cat([axis.expand(*config.grid, half) for axis in pair], dim=-1).flatten(0, 1)
    return {"cos": angles.cos(), "sin": angles.sin()}


_ROTARY = "its positions are rotary, as in EVA-02: rows first, interleaved, base 10000, coordinates up to 16"
HOLDS: Holds = {
    **SHARED_HOLDS,
    "block.mlp": anything,
    "block.mlp_norm": anything,
    "block.attention_norm": anything,
    "relative.kind": only("none", "rope", reason="it has no relative position biases"),
    **{
        f"relative.{name}": only(getattr(ROPE, name), reason=_ROTARY)
        for name in ("base", "coordinates", "reference", "offset", "order", "pairing", "frequencies")
    },
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    config = checkpoint.config
    dialect = checkpoint.origin.dialect_of("eva") or {"qkv": "separate" if config.block.mlp_norm else "one"}
    rules = key_table(config, names_of(config.pool_norm, block_names(dialect)))
    tensors = write_tensors(rules, checkpoint.tensors)
    if isinstance(config.relative, Rope):
        places = ["", *(f"blocks.{block}.attn." for block in range(config.depth))]
        angles = angles_of(config)
        tensors |= {f"{place}rope.freqs_{kind}": angle for place in places for kind, angle in angles.items()}
    prefix = dialect.get("prefix", "")
    others = {name: each for name, each in checkpoint.extras.items() if prefix and name == LOGIT_SCALE}
    tensors = {prefix + name: tensor for name, tensor in tensors.items()}
    write_pickle(path, tensors | mask_tokens(checkpoint) | others)


FORMAT = ForeignFormat(
    name="eva",
    suffixes=(".pt", ".pth"),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
    family="clip",
)

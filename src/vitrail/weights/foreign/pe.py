"""facebookresearch/perception_models: `.pt` files of the Perception Encoder (core, lang, spatial)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, PositionConfig, Rope, ViTConfig
from vitrail.weights import infer
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import clip
from vitrail.weights.foreign.clip import TOWER, is_tower, key_table, split_tower, write_tower
from vitrail.weights.formats import ForeignFormat, Holds, anything, computes, only
from vitrail.weights.infer import Hints, Raw, assumed, assumed_heads
from vitrail.weights.keys import Names, read_tensors, under
from vitrail.weights.metadata import Origin

BLOCK = BlockConfig(activation="gelu", norm_eps=1e-5, layer_scale=0.1)
POOL_HEADS = 8
HEAD_SIZES = {1536: 96}  # width → features of a head; otherwise 64
_QKV = "attn.in_proj_"
# Our modules → PE's: CLIP's names, and its attention pooling, which has queries, keys and values in one matrix.
_POOL: Names = {
    "probe": "probe",
    **{f"query.{kind}": _QKV + kind for kind in ("weight", "bias")},
    **{f"key_value.{kind}": (_QKV + kind, _QKV + kind) for kind in ("weight", "bias")},
    "proj": "attn.out_proj",
    "norm": "layernorm",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
NAMES: Names = {**clip.NAMES, **under("pool", "attn_pool.", _POOL)}


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return is_tower(tensors) and not clip.recognises(tensors)


def rope(class_token: bool) -> Rope:
    """Rows and columns count from 1 where [cls] stands at 0, and are never scaled to another grid."""
    offset = 1.0 if class_token else 0.0
    return Rope(base=10_000.0, coordinates="index", offset=offset, order="xy", pairing="interleaved")


def read(raw: Raw, hints: Hints) -> Checkpoint:
    tower = split_tower(raw)
    config = infer_config(tower.raw, hints)
    pooled = config.pooling if config.pooling == "map" else None  # whose layers are among the keys
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, NAMES), tower.raw.tensors),
        extras=tower.extras,
        preprocess=preset("pe", config.image_size, config.channels),
        origin=Origin(format="pe", dialect={"prefix": tower.prefix}),
        notes=(
            *assumed_heads(config, hints, "every PE of its width"),
            *assumed("pooling", "the mean of the patches", "pooling", hints.pooling or pooled),
        ),
        remarks=tower.remarks,
    )


def infer_config(raw: Raw, hints: Hints) -> ViTConfig:
    width, has_pool = raw.shape("conv1.weight", 4)[0], "attn_pool.probe" in raw.tensors
    config = infer.infer_config(
        raw,
        hints if has_pool else replace(hints, pooling=hints.pooling or "mean"),
        NAMES,
        block=BLOCK,
        positions=PositionConfig(resample="pe"),
        head_size=HEAD_SIZES.get(width, 64),
        pool_norm="before" if "ln_post.weight" in raw.tensors else "none",
        pool_heads=POOL_HEADS,
        relative=rope("class_embedding" in raw.tensors),
    )
    return replace(config, projection=raw.size("proj", axis=1), pool_prefix=config.pooling == "map")


def _pool_heads(value: int | None, config: ViTConfig) -> str:
    heads = config.heads if value is None else value
    return "" if config.pooling != "map" or heads == POOL_HEADS else f"its attention pooling has {POOL_HEADS} heads"


def _pool_prefix(value: bool, config: ViTConfig) -> str:
    expected = config.pooling == "map" and config.class_token
    return "" if value == expected else "its attention pooling reads [cls] too, and a mean does not"


def _norm(value: str, config: ViTConfig) -> str:
    expected = "before" if config.pooling == "map" else "none"
    return "" if value == expected else "it has a last LayerNorm, before the pooling, only where it pools by attention"


def _offset(value: float, config: ViTConfig) -> str:
    expected = rope(config.class_token).offset
    return "" if value == expected else f"its rows and columns count from {expected:g}"


_ROTARY = "its positions are rotary, with rows and columns by their number, base 10000, columns first, interleaved"
HOLDS: Holds = {
    **TOWER,
    **computes(BLOCK),
    "class_token": anything,
    "pre_norm": only(True, reason="a LayerNorm precedes its first block"),
    "pooling": only("cls", "mean", "map", reason="it pools by attention, or leaves that to others"),
    "pool_norm": _norm,
    "pool_heads": _pool_heads,
    "pool_mlp_width": anything,
    "pool_prefix": _pool_prefix,
    "projection": anything,
    "relative.kind": only("rope", reason="its positions are rotary"),
    "relative.offset": _offset,
    **{
        f"relative.{name}": only(getattr(rope(True), name), reason=_ROTARY)
        for name in ("base", "coordinates", "order", "pairing", "frequencies")
    },
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    write_tower(checkpoint, path, key_table(checkpoint.config, NAMES), "pe")


FORMAT = ForeignFormat(
    name="pe",
    suffixes=(".pt", ".bin", ".safetensors"),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
    family="pe",
)

"""transformers' vision towers, by themselves or beside a text tower: CLIP, MetaCLIP 2, SigLIP, SigLIP 2 and AIMv2."""

from collections.abc import Mapping
from math import isqrt
from typing import Any

from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import ViTConfig
from vitrail.weights.foreign.huggingface_family import (
    ATTENTION_DROPOUT,
    HEAD,
    NOT_SQUARE,
    Family,
    Model,
    Values,
    check_gate,
    eps,
    sizes,
    square,
)
from vitrail.weights.keys import SAME, Form, Names, stacked, under
from vitrail.weights.sidecars import Settings

FLAT = Form(lambda theirs: theirs[0][None], lambda ours: (ours[0],))  # (N, D) ↔ (1, N, D)
VECTOR = Form(lambda theirs: theirs[0][None, None], lambda ours: (ours[0, 0],))  # (D) ↔ (1, 1, D)
TOWER: Names = {
    "embed.class_token": "embeddings.class_embedding",
    "embed.positions": "embeddings.position_embedding.weight",
    "embed.patches": "embeddings.patch_embedding",
    "pre_norm": "pre_layrnorm",
    "norm": "post_layernorm",
    **under(
        "blocks.{}",
        "encoder.layers.{}.",
        {
            "norm1": "layer_norm1",
            "norm2": "layer_norm2",
            "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "attention.proj": "self_attn.out_proj",
            "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2",
        },
    ),
}
POSITION_IDS = r"\bposition_ids$"
TEXT = "the text tower was left out; the scale of its logits is kept for zero-shot classification"


def _clip_forms(config: ViTConfig) -> Mapping[str, Form]:
    return {"embed.positions": FLAT, "embed.class_token": VECTOR}


def _clip(kind: str, tower: str, name: str) -> Family:
    prefixed, any_ = ("vision_model.",), ("", "vision_model.")
    projection: Names = {"projection": "visual_projection"}
    return Family(
        kind=kind,
        tower=tower,
        models=(
            Model(
                name=f"{name}ForImageClassification",
                prefixes=prefixed,
                signs=("classifier.weight",),
                outer=HEAD,
                fields={"pooling": "mean", "pool_norm": "none"},
                unused=("post_layernorm.",),
                remark="the norm of [cls] is kept but not used: the classifier reads the mean patch without it",
                nested=True,
                answer="logits",
            ),
            Model(
                name=f"{name}Model",
                prefixes=prefixed,
                signs=("text_projection.weight",),
                outer=projection,
                kept=("logit_scale",),
                left_out=("text_model.", "text_projection."),
                remark=TEXT,
                nested=True,
                answer="get_image_features",
                written=False,
            ),
            Model(
                name=f"{name}VisionModelWithProjection",
                prefixes=prefixed,
                signs=("visual_projection.weight",),
                outer=projection,
                answer="image_embeds",
            ),
            Model(name=f"{name}VisionModel", prefixes=any_, answer="pooler_output"),
        ),
        names={"files": TOWER},
        sign=r"\bpre_layrnorm\.",
        fields={**sizes(patch=32, one_number=True), **ATTENTION_DROPOUT, **eps(1e-5)},
        fixed={"positions.resample": "hf", "pre_norm": True, "patch_bias": False},
        activation="quick_gelu",
        words=frozenset(("projection_dim",)),
        irrelevant=frozenset(("initializer_factor", "dropout")),
        write=lambda config, extras: {"projection_dim": config.projection} if config.projection else {},
        forms=_clip_forms,
        holds=square(NOT_SQUARE),
        buffers=POSITION_IDS,
        processor="CLIPImageProcessor",
        preset="clip",
    )


CLIP = _clip("clip_vision_model", "clip", "CLIP")
METACLIP = _clip("metaclip_2_vision_model", "metaclip_2", "MetaClip2")


def _siglip_spelling(module: str, kind: str, parts: int) -> tuple[str, Form]:
    """The attention of the pooling is torch's own, whose three matrices are one."""
    packed = module in ("pool.query", "pool.key_value")
    return f"{'_' if packed else '.'}{kind}", SAME if parts == 1 else stacked(parts)


def _siglip_forms(config: ViTConfig) -> Mapping[str, Form]:
    return {"embed.positions": FLAT}


def _siglip2_forms(config: ViTConfig) -> Mapping[str, Form]:
    """Patches are flattened row by row, each pixel with its channels, and go through a Linear."""
    pixels = (*config.patch_size, config.channels)
    patches = Form(
        lambda theirs: theirs[0].reshape(-1, *pixels).permute(0, 3, 1, 2),
        lambda ours: (ours.permute(0, 2, 3, 1).flatten(1),),
    )
    return {"embed.positions": FLAT, "embed.patches.weight": patches}


def _read_siglip2(settings: Settings, values: Values) -> None:
    count = settings.whole("num_patches", 256)
    side = isqrt(max(count, 0))
    if not side or side**2 != count:
        raise WeightsError(f"config.json: num_patches must be that of a square grid; got {count}.")
    values["image_size"] = side * values["patch_size"]


def _write_siglip(config: ViTConfig, extras: Mapping[str, Tensor]) -> Mapping[str, Any]:
    return {} if config.pooling == "map" or "head.probe" in extras else {"vision_use_head": False}


def _write_siglip2(config: ViTConfig, extras: Mapping[str, Tensor]) -> Mapping[str, Any]:
    return {**_write_siglip(config, extras), "num_patches": config.grid[0] * config.grid[1]}


_POOLING: Names = {
    "pool.probe": "head.probe",
    "pool.query": "head.attention.in_proj",
    "pool.key_value": ("head.attention.in_proj", "head.attention.in_proj"),
    "pool.proj": "head.attention.out_proj",
    "pool.norm": "head.layernorm",
    "pool.mlp.fc1": "head.mlp.fc1",
    "pool.mlp.fc2": "head.mlp.fc2",
}


def _siglip(name: str, **facts: Any) -> Family:
    prefixed, any_ = ("vision_model.",), ("", "vision_model.")
    by_attention, mean = {"pooling": "map"}, {"pooling": "mean"}
    return Family(
        models=(
            Model(
                name=f"{name}ForImageClassification",
                prefixes=prefixed,
                signs=("classifier.weight",),
                outer=HEAD,
                fields=mean,
                unused=("head.",),
                remark="the attention pooling is kept but not used: the classifier reads the mean of the patches",
                nested=True,
                answer="logits",
            ),
            Model(
                name=f"{name}Model",
                prefixes=prefixed,
                signs=("logit_bias",),
                fields=by_attention,
                kept=("logit_scale", "logit_bias"),
                left_out=("text_model.",),
                remark=TEXT,
                nested=True,
                answer="get_image_features",
                written=False,
            ),
            Model(
                name=f"{name}VisionModel",
                prefixes=any_,
                signs=("head.probe",),
                fields=by_attention,
                answer="pooler_output",
            ),
            Model(
                name=f"{name}VisionModel",
                prefixes=any_,
                fields=mean,
                remark="the features are the mean of the patches, since the file has no attention pooling",
                answer="mean token",
            ),
        ),
        names={"files": {**TOWER, **_POOLING}},
        activation="gelu_pytorch_tanh",
        spelling=_siglip_spelling,
        buffers=POSITION_IDS,
        **facts,
    )


SIGLIP = _siglip(
    "Siglip",
    kind="siglip_vision_model",
    tower="siglip",
    sign=r"\bembeddings\.patch_embedding\.",
    fields={**sizes(one_number=True), **ATTENTION_DROPOUT, **eps(1e-6)},
    fixed={"positions.resample": "hf", "positions.covers": "patches", "class_token": False},
    words=frozenset(("vision_use_head",)),
    write=_write_siglip,
    forms=_siglip_forms,
    holds=square(NOT_SQUARE),
    processor="SiglipImageProcessor",
    preset="siglip",
)
SIGLIP2 = _siglip(
    "Siglip2",
    kind="siglip2_vision_model",
    tower="siglip2",
    sign=r"\bembeddings\.patch_embedding\.",
    patch_dimensions=2,
    fields={**sizes(image=None, one_number=True), **ATTENTION_DROPOUT, **eps(1e-6)},
    fixed={"positions.resample": "siglip2", "positions.covers": "patches", "class_token": False},
    words=frozenset(("vision_use_head", "num_patches")),
    read=_read_siglip2,
    write=_write_siglip2,
    forms=_siglip2_forms,
    holds=square(NOT_SQUARE),
    resamples=True,
    processor="Siglip2ImageProcessor",
)


def _read_aimv2(settings: Settings, values: Values) -> None:
    check_gate(settings, "silu")
    if settings.flag("is_native", False):
        raise WeightsError("config.json: is_native must be false; its sin-cos positions are not computed here.")
    values["block.proj_bias"] = values["block.qkv_bias"]


def _write_aimv2(config: ViTConfig, extras: Mapping[str, Tensor]) -> Mapping[str, Any]:
    return {"hidden_act": "silu", "use_head": False}


def _aimv2_bias(value: bool, config: ViTConfig) -> str:
    return "" if value == config.block.qkv_bias else "all layers of its attention have biases, or none"


_MEAN = "the features are the mean of the patches, as in timm"
_AIMV2_POOLING = (
    "its attention pooling (use_head) is not computed here, since it has a query without a projection; "
    'pass `pooling="mean"` for the mean of the patches, which timm gives'
)
AIMV2 = Family(
    kind="aimv2_vision_model",
    tower="aimv2",
    models=(
        Model(
            name="Aimv2Model",
            prefixes=("vision_model.",),
            signs=("text_projection.weight",),
            fields={"pooling": "mean"},
            unused=("head.",),
            left_out=("text_model.", "text_projection.", "visual_projection.", "logit_scale"),
            remark=f"{_MEAN}; the attention pooling is kept but not used, and the text tower was left out",
            refused=_AIMV2_POOLING,
            nested=True,
            written=False,
        ),
        Model(
            name="Aimv2VisionModel",
            signs=("head.cls_token",),
            fields={"pooling": "mean"},
            unused=("head.",),
            remark=f"{_MEAN}; the attention pooling is kept but not used",
            refused=_AIMV2_POOLING,
            answer="mean token",
            written=False,
        ),
        Model(name="Aimv2VisionModel", fields={"pooling": "mean"}, remark=_MEAN, answer="mean token"),
    ),
    names={
        "files": {
            "embed.patches": "embeddings.patch_embed",
            "embed.patch_norm": "embeddings.rms_norm",
            "embed.positions": "embeddings.position_embedding.weight",
            "norm": "rms_norm",
            **under(
                "blocks.{}",
                "encoder.layers.{}.",
                {
                    "norm1": "rms_norm1",
                    "norm2": "rms_norm2",
                    "attention.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
                    "attention.proj": "attention.out_proj",
                    "mlp.gate": "ffn.gate_proj",
                    "mlp.up": "ffn.up_proj",
                    "mlp.down": "ffn.down_proj",
                },
            ),
        }
    },
    sign=r"\brms_norm1\.",
    activation="silu",
    fields={
        **sizes(width=1024, depth=24, heads=8, hidden=2816, patch=14, one_number=True),
        **ATTENTION_DROPOUT,
        **eps(1e-5, "rms_norm_eps"),
        "qkv_bias": ("block.qkv_bias", "flag", False),
        "mlp_bias": ("block.mlp_bias", "flag", False),
    },
    fixed={
        "positions.resample": "hf",
        "positions.covers": "patches",
        "class_token": False,
        "patch_norm": True,
        "block.norm": "rms",
        "block.mlp": "swiglu",
    },
    words=frozenset(["is_native", "use_head"]),
    read=_read_aimv2,
    write=_write_aimv2,
    forms=_siglip_forms,
    holds={**square(NOT_SQUARE), "block.proj_bias": _aimv2_bias},
    buffers=POSITION_IDS,
    processor="CLIPImageProcessor",
    preset="clip",
)

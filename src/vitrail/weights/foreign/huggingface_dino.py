"""transformers' DINOv2, with and without registers, and DINOv3."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import ViTConfig
from vitrail.weights.foreign.huggingface_family import (
    ATTENTION_DROPOUT,
    DROPOUT,
    QKV_BIAS,
    Family,
    Fields,
    Model,
    Values,
    check_gate,
    eps,
    sizes,
    square,
)
from vitrail.weights.foreign.huggingface_vit import ATTENTION, EMBEDDINGS, LAYERS
from vitrail.weights.formats import PERIODS, Holds, anything, only
from vitrail.weights.keys import Names, under
from vitrail.weights.sidecars import Settings

_DINO_BLOCK: Names = {
    "norm1": "norm1",
    "norm2": "norm2",
    "branch1.scale": "layer_scale1.lambda1",
    "branch2.scale": "layer_scale2.lambda1",
}
GATED: Names = {"mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj"}
_DINOV2_MLP: dict[str, Names] = {
    "files": {"mlp.gate": "mlp.weights_in", "mlp.up": "mlp.weights_in", "mlp.down": "mlp.weights_out"},
    "modules": GATED,
}
DINOV2_NAMES: dict[str, Names] = {
    generation: {
        **EMBEDDINGS,
        **under(
            "blocks.{}",
            LAYERS["files"],
            {**_DINO_BLOCK, **ATTENTION[generation], **mlp, "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"},
        ),
    }
    for generation, mlp in _DINOV2_MLP.items()
}


def hidden_width(width: int, ratio: float, gated: bool) -> int:
    """Features inside DINOv2's MLPs, as transformers computes them."""
    hidden = int(width * ratio)
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden


def mlp_ratio(width: int, hidden: int, gated: bool) -> int | None:
    """The whole number from which transformers computes the width of DINOv2's MLPs; None if there is none."""
    return next((ratio for ratio in range(1, 65) if hidden_width(width, ratio, gated) == hidden), None)


def _read_dinov2(settings: Settings, values: Values) -> None:
    gated = settings.flag("use_swiglu_ffn", False)
    values["mlp_width"] = hidden_width(values["width"], settings.number("mlp_ratio", 4), gated)
    values["block.mlp"] = "swiglu" if gated else "plain"


def _write_dinov2(config: ViTConfig, extras: Mapping[str, Tensor]) -> Mapping[str, Any]:
    gated = config.block.mlp == "swiglu"
    return {"mlp_ratio": mlp_ratio(config.width, config.hidden_width, gated), "use_swiglu_ffn": gated}


def _dinov2_width(value: int | None, config: ViTConfig) -> str:
    ratio = mlp_ratio(config.width, config.hidden_width, config.block.mlp == "swiglu")
    return "" if ratio else "the width of its MLPs is a multiple of the model's (two thirds of one if they are gated)"


def _layer_scale(value: float | None, config: ViTConfig) -> str:
    return "" if value is not None else "it always has layer scale"


LAYER_SCALE: Fields = {
    "drop_path_rate": ("rates.path", "number", 0.0),
    "layerscale_value": ("block.layer_scale", "number", 1.0),
}
DINOV2_SQUARE = "DINOv2 in transformers treats positions as those of a square, whatever the picture's shape"
DINOV2_HOLDS: Holds = {
    **square(DINOV2_SQUARE),
    "mlp_width": _dinov2_width,
    "block.mlp": anything,
    "block.layer_scale": _layer_scale,
}


def _registers(value: int, config: ViTConfig) -> str:
    return "" if value else "it always has registers"


def _save_as(name: str) -> str:
    return f"Save the backbone with transformers.{name}.from_pretrained(FOLDER).save_pretrained(ANOTHER)."


def _dinov2(kind: str, name: str, patch: int, resample: str, registers: Fields, sign: str) -> Family:
    return Family(
        kind=kind,
        models=(Model(name=name, prefixes=("", f"{kind}."), answer="pooler_output"),),
        names=DINOV2_NAMES,
        sign=sign,
        fields={
            **sizes(hidden=None, patch=patch),
            **DROPOUT,
            **QKV_BIAS,
            **LAYER_SCALE,
            **eps(1e-6),
            **registers,
        },
        fixed={"positions.resample": resample},
        words=frozenset(("mlp_ratio", "use_swiglu_ffn")),
        read=_read_dinov2,
        write=_write_dinov2,
        holds={**DINOV2_HOLDS, **({"registers": _registers} if registers else {})},
        mask_token=(1, -1),
        needs_mask_token=True,
        resamples=True,
        head_size=64,
        processor="BitImageProcessor",
        preset="dinov2",
        lookalikes="RF-DETR's backbone, which attends within windows,",
        unread=f"Its classifier reads [cls] beside the mean of the patches, which no model here does. {_save_as(name)}",
    )


_REGISTERS: Fields = {"num_register_tokens": ("registers", "whole", 4)}
DINOV2 = _dinov2("dinov2", "Dinov2Model", 14, "hf", {}, r"\bencoder\.layer\.0\.layer_scale1\.")
DINOV2_WITH_REGISTERS = _dinov2(  # it antialiases
    "dinov2_with_registers", "Dinov2WithRegistersModel", 16, "timm", _REGISTERS, r"\bembeddings\.register_tokens$"
)


def _read_dinov3(settings: Settings, values: Values) -> None:
    query, key, value = (settings.flag(f"{name}_bias", name != "key") for name in ("query", "key", "value"))
    if query != value or key > query:
        raise WeightsError(
            "config.json: queries and values must both have biases, or none of queries, keys and values."
        )
    gated = settings.flag("use_gated_mlp", False)
    if gated:
        check_gate(settings, "gelu")
    values |= {"block.qkv_bias": query, "block.key_bias": key}
    values["block.mlp"] = "swiglu" if gated else "plain"


def _write_dinov3(config: ViTConfig, extras: Mapping[str, Tensor]) -> Mapping[str, Any]:
    block = config.block
    return {
        "query_bias": block.qkv_bias,
        "key_bias": block.qkv_bias and block.key_bias,
        "value_bias": block.qkv_bias,
        "use_gated_mlp": block.mlp == "swiglu",
        **({"hidden_act": "silu"} if block.mlp == "swiglu" else {}),
    }


_DINOV3_PLAIN: Names = {"mlp.fc1": "mlp.up_proj", "mlp.fc2": "mlp.down_proj"}
DINOV3 = Family(
    kind="dinov3_vit",
    models=(Model(name="DINOv3ViTModel", answer="pooler_output"),),
    names={
        generation: {
            **EMBEDDINGS,
            "embed.patches": "embeddings.patch_embeddings",
            "norm": "norm",
            **under("blocks.{}", block, {**_DINO_BLOCK, **ATTENTION["modules"], **GATED, **_DINOV3_PLAIN}),
        }
        for generation, block in {"files": "layer.{}.", "modules": "model.layer.{}."}.items()
    },
    sign=r"\blayer\.0\.layer_scale1\.",
    fields={
        **sizes(width=384, heads=6, hidden=1536),
        **ATTENTION_DROPOUT,
        **LAYER_SCALE,
        **eps(1e-5),
        "num_register_tokens": ("registers", "whole", 0),
        "rope_theta": ("relative.base", "number", 100.0),
        "proj_bias": ("block.proj_bias", "flag", True),
        "mlp_bias": ("block.mlp_bias", "flag", True),
    },
    fixed={"positions.kind": "none", "relative.kind": "rope"},
    words=frozenset(["query_bias", "key_bias", "value_bias", "use_gated_mlp"]),
    irrelevant=frozenset(["pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale", "return_class_token"]),
    read=_read_dinov3,
    write=_write_dinov3,
    holds={
        "block.mlp": anything,
        "block.layer_scale": _layer_scale,
        "block.qkv_bias": anything,
        "block.key_bias": anything,
        "relative.frequencies": only("computed", reason=PERIODS),
    },
    mask_token=(1, 1, -1),
    needs_mask_token=True,
    needs_registers=True,
    resamples=True,
    head_size=64,
    processor="DINOv3ViTImageProcessor",
    preset="dinov3",
    unread=_save_as("DINOv3ViTModel"),
)

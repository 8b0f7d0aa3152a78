"""transformers' BEiT and data2vec: relative positions, layer scale, no biases of keys, a norm after the mean."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import ViTConfig
from vitrail.model.parts import RelativeBias
from vitrail.weights.foreign.huggingface_family import (
    DROPOUT,
    HEAD,
    NOT_SQUARE,
    TABLE,
    TABLES,
    Family,
    Model,
    Values,
    eps,
    sizes,
    square,
)
from vitrail.weights.foreign.huggingface_vit import LAYERS, VIT_NAMES
from vitrail.weights.formats import Holds, anything, only
from vitrail.weights.keys import Form, Names, under
from vitrail.weights.sidecars import Settings

ABSOLUTE = "use_absolute_position_embeddings"
RELATIVE, SHARED = "use_relative_position_bias", "use_shared_relative_position_bias"


def _read_beit(settings: Settings, values: Values) -> None:
    each, shared = settings.flag(RELATIVE, False), settings.flag(SHARED, False)
    if each and shared:
        raise WeightsError(f"config.json: {RELATIVE} and {SHARED} cannot both be true; vitrail has one or the other.")
    if each or shared:
        values |= {"relative.kind": "bias", "relative.shared": shared}
    values["positions.kind"] = "learned" if settings.flag(ABSOLUTE, False) else "none"
    values["block.layer_scale"] = settings.number("layer_scale_init_value", 0.1) or None
    mean, pools_mean = settings.flag("use_mean_pooling", True), values.get("pooling") == "mean"
    if mean != pools_mean:
        stored = "a norm after the mean of the patches" if pools_mean else "a norm of all tokens"
        raise WeightsError(f"config.json: use_mean_pooling is {str(mean).lower()}, but the weights have {stored}.")


def _write_beit(config: ViTConfig, extras: Mapping[str, Tensor]) -> Mapping[str, Any]:
    bias = config.relative if isinstance(config.relative, RelativeBias) else None
    return {
        ABSOLUTE: config.positions.kind == "learned",
        RELATIVE: bias is not None and not bias.shared,
        SHARED: bias is not None and bias.shared,
        "layer_scale_init_value": config.block.layer_scale or 0.0,
        "use_mean_pooling": config.pooling == "mean",
        "use_mask_token": "mask_token" in extras,
    }


def _beit_forms(config: ViTConfig) -> Mapping[str, Form]:
    return {TABLE: Form(torch.stack, lambda ours: ours.unbind())}


def _beit_models(name: str, prefix: str) -> tuple[Model, ...]:
    """Each class with the mean of the patches, and with [cls]; without its pooling layer there may be no last norm."""
    mean = {"pooling": "mean", "pool_norm": "after"}
    norm: Names = {"norm": "pooler.layernorm"}
    head, after = "classifier.weight", "pooler.layernorm.weight"
    classifier, bare = f"{name}ForImageClassification", f"{name}Model"
    own, any_ = (prefix,), ("", prefix)
    return (
        Model(name=classifier, prefixes=own, signs=(head, after), outer=HEAD, inner=norm, fields=mean, answer="logits"),
        Model(name=classifier, prefixes=own, signs=(head,), outer=HEAD, answer="logits"),
        Model(
            name=bare,
            prefixes=any_,
            signs=(after,),
            inner=norm,
            fields=mean,
            answer="pooler_output",
            arguments={"add_pooling_layer": True},
        ),
        Model(name=bare, prefixes=any_, signs=("layernorm.weight",)),
        Model(
            name=bare,
            prefixes=any_,
            fields={"pooling": "mean", "pool_norm": "none"},
            remark="the features are the mean of the patches, without a norm, since the file has none",
            answer="mean patch",
            arguments={"add_pooling_layer": False},
        ),
    )


_TABLE = "relative_position_bias.relative_position_bias_table"
_BEIT_BLOCK: Names = {"branch1.scale": "lambda_1", "branch2.scale": "lambda_2"}
BEIT_NAMES: dict[str, Names] = {
    "files": {
        **VIT_NAMES["files"],
        **under("blocks.{}", LAYERS["files"], _BEIT_BLOCK),
        TABLE: f"encoder.{_TABLE}",
        TABLES: f"encoder.layer.{{}}.attention.attention.{_TABLE}",
    },
    "modules": {
        **VIT_NAMES["modules"],
        **under("blocks.{}", LAYERS["modules"], _BEIT_BLOCK),
        TABLE: f"shared_position_bias.{_TABLE.partition('.')[2]}",
        TABLES: f"layers.{{}}.{_TABLE}",
    },
}
BEIT_HOLDS: Holds = {
    **square(NOT_SQUARE),
    "relative.kind": only("none", "bias", reason="its relative positions are biases of the scores"),
    "relative.shared": anything,
    "positions.kind": only("learned", "none", reason="its positions are learned"),
    "block.layer_scale": anything,
}


_SEGMENTATION = """
    vocab_size pool_scales use_auxiliary_head auxiliary_loss_weight auxiliary_channels auxiliary_num_convs
    auxiliary_concat_input semantic_loss_ignore_index add_fpn segmentation_indices
"""


def _beit(kind: str, name: str, prefix: str) -> Family:
    return Family(
        kind=kind,
        models=_beit_models(name, prefix),
        names=BEIT_NAMES,
        sign=r"\blambda_1$|\brelative_position_bias_table$",
        fields={
            **sizes(one_number=True),
            **DROPOUT,
            **eps(1e-12),
            "drop_path_rate": ("rates.path", "number", 0.1),
        },
        fixed={"positions.resample": "hf", "block.key_bias": False},
        words=frozenset((ABSOLUTE, RELATIVE, SHARED, "layer_scale_init_value", "use_mean_pooling")),
        irrelevant=frozenset(_SEGMENTATION.split()),
        read=_read_beit,
        write=_write_beit,
        forms=_beit_forms,
        holds=BEIT_HOLDS,
        mask_token=(1, 1, -1),
        buffers=r"\brelative_position_index$",
        resamples=True,
        processor="BeitImageProcessor",
    )


BEIT = _beit("beit", "Beit", "beit.")
DATA2VEC = _beit("data2vec-vision", "Data2VecVision", "data2vec_vision.")

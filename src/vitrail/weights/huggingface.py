"""Hugging Face transformers: ViT and DINOv2 models, as folders with `config.json` and one or several weight files."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import ViTConfig
from vitrail.model.config import Pair
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.dinov2 import BACKBONE, DINOV2_HEADS, mask_token, split_mask_token
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, activations, anything, positions
from vitrail.weights.huggingface_config import (
    FIELDS,
    NOT_SQUARE,
    is_dinov2,
    is_square,
    mlp_ratio,
    model_config,
    notes_of,
    read_classes,
    read_config,
)
from vitrail.weights.huggingface_preprocess import check_input_size, processor_config, read_preprocess
from vitrail.weights.infer import Hints, Raw, assumed, assumed_heads, infer_image_size, infer_sizes
from vitrail.weights.keys import Rule, layer, read_tensors, rule, stacked, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.sidecars import CONFIG, PREPROCESSOR, write_json
from vitrail.weights.tensor_files import write_safetensors
from vitrail.weights.timm import mlp_rules

PATCHES = "embeddings.patch_embeddings.projection"
MASK_TOKEN = "embeddings.mask_token"  # noqa: S105
POOLER = ("pooler.dense.weight", "pooler.dense.bias")

# The prefix of the backbone's names: none in a bare model, the family's name in one with a classifier.
PREFIXES = ("", "vit.", "dinov2.", "dinov2_with_registers.")

# Layer → its name, in the files of the hub ("files") and in the modules of transformers 5 ("modules").
VIT_BLOCK = {
    "files": {
        "block": "encoder.layer.{}",
        "norm1": "layernorm_before",
        "query": "attention.attention.query",
        "key": "attention.attention.key",
        "value": "attention.attention.value",
        "proj": "attention.output.dense",
        "norm2": "layernorm_after",
        "fc1": "intermediate.dense",
        "fc2": "output.dense",
    },
    "modules": {
        "block": "layers.{}",
        "norm1": "layernorm_before",
        "query": "attention.q_proj",
        "key": "attention.k_proj",
        "value": "attention.v_proj",
        "proj": "attention.o_proj",
        "norm2": "layernorm_after",
        "fc1": "mlp.fc1",
        "fc2": "mlp.fc2",
    },
}
_DINO = {"block": "encoder.layer.{}", "norm1": "norm1", "norm2": "norm2", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
GATED = {
    "files": ("mlp.weights_in", "mlp.weights_in", "mlp.weights_out"),
    "modules": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
}
DINOV2_BLOCK = {
    generation: {**names, **_DINO} for generation, names in VIT_BLOCK.items()
}  # its attention has the names of ViT's


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return find_prefix(tensors) is not None


def find_prefix(tensors: Mapping[str, Tensor]) -> str | None:
    return next((prefix for prefix in PREFIXES if f"{prefix}{PATCHES}.weight" in tensors), None)


def key_table(config: ViTConfig, dialect: dict[str, str]) -> list[Rule]:
    """The backbone without its prefix, then the classifier."""
    generation = dialect.get("generation", "files")
    prefix = dialect.get("prefix", default_prefix(config))
    rules = [
        rule("embed.class_token", f"{prefix}embeddings.cls_token"),
        rule("embed.positions", f"{prefix}embeddings.position_embeddings"),
        *layer("embed.patches", f"{prefix}{PATCHES}"),
        *layer("norm", f"{prefix}layernorm"),
    ]
    if config.registers:
        rules.append(rule("embed.registers", f"{prefix}embeddings.register_tokens"))
    for index in range(config.depth):
        rules += _block_rules(config, index, prefix, generation)
    if config.representation:
        rules += layer("representation", f"{prefix}pooler.dense")
    if config.num_classes:
        rules += layer("head", "classifier")
    return rules


def _block_rules(config: ViTConfig, index: int, prefix: str, generation: str) -> list[Rule]:
    names = (DINOV2_BLOCK if is_dinov2(config) else VIT_BLOCK)[generation]
    ours, theirs = f"blocks.{index}", prefix + names["block"].format(index)
    kinds = ("weight", "bias") if config.block.qkv_bias else ("weight",)
    rules = [
        rule(
            f"{ours}.attention.qkv.{kind}",
            *(f"{theirs}.{names[part]}.{kind}" for part in ("query", "key", "value")),
            form=stacked(3),
        )
        for kind in kinds
    ]
    for name, their_name in {"norm1": "norm1", "attention.proj": "proj", "norm2": "norm2"}.items():
        rules += layer(f"{ours}.{name}", f"{theirs}.{names[their_name]}")
    rules += mlp_rules(config, f"{ours}.mlp", theirs, (names["fc1"], names["fc2"]), GATED[generation])
    if config.block.layer_scale is not None:
        rules += [rule(f"{ours}.branch{i}.scale", f"{theirs}.layer_scale{i}.lambda1") for i in (1, 2)]
    return rules


def default_prefix(config: ViTConfig) -> str:
    return "vit." if config.num_classes else ""


def read(raw: Raw, hints: Hints) -> Checkpoint:
    prefix = find_prefix(raw.tensors) or ""
    new = any(".attention.q_proj." in name for name in raw.tensors)
    dialect = {"prefix": prefix, "generation": "modules" if new else "files"}
    stated = raw.sidecars.get(CONFIG)
    settings = _infer_settings(raw, prefix, dialect["generation"], hints) if stated is None else stated
    tensors, extras = split_mask_token(raw.tensors, prefix + MASK_TOKEN)
    remarks: tuple[str, ...] = ()
    if "classifier.weight" in tensors and f"{prefix}pooler.dense.weight" in tensors:
        extras |= {name: tensors.pop(f"{prefix}{name}") for name in POOLER}
        remarks = ("the pooler beside the classifier is kept but not used, as transformers does",)
    config = read_config(replace(raw, tensors=tensors), settings, prefix, hints)
    preprocess, assumed_processor = read_preprocess(raw.sidecars, settings["model_type"], config)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, dialect), tensors),
        extras=extras,
        preprocess=preprocess,
        classes=read_classes(settings, config),
        origin=Origin(format="hf", dialect=dialect),
        notes=(*(_assumptions(config, hints) if stated is None else notes_of(stated, config)), *assumed_processor),
        remarks=remarks,
    )


def _infer_settings(raw: Raw, prefix: str, generation: str, hints: Hints) -> dict[str, Any]:
    """What `config.json` would say of weights without one, as far as the keys tell; the rest has its defaults."""
    registers = raw.size(f"{prefix}embeddings.register_tokens", axis=1)
    dino = f"{prefix}encoder.layer.0.layer_scale1.lambda1" in raw.tensors
    names = (DINOV2_BLOCK if dino else VIT_BLOCK)[generation]
    first = prefix + names["block"].format(0)
    layers = re.escape(prefix + names["block"]).replace(r"\{\}", r"(\d+)") + r"\."
    gated = f"{first}.{GATED[generation][-1]}.weight" in raw.tensors
    mlp = f"{first}.{GATED[generation][-1] if gated else names['fc2']}"
    head_size = 64 if dino else None
    sizes = infer_sizes(raw, hints, patches=prefix + PATCHES, layers=layers, mlp=mlp, head_size=head_size)
    positions = raw.shape(f"{prefix}embeddings.position_embeddings", 3)[1]
    sizes["image_size"] = infer_image_size(positions, (1,), sizes["patch_size"], hints)[0]
    kind = "vit" if not dino else "dinov2_with_registers" if registers else "dinov2"
    if registers:
        sizes["registers"] = registers
    settings = {key: sizes[field] for key, (field, _, _) in FIELDS[kind].items() if field in sizes}
    settings |= {"model_type": kind, "qkv_bias": f"{first}.{names['query']}.bias" in raw.tensors}
    if dino:
        ratio = mlp_ratio(sizes["width"], sizes["mlp_width"], gated)
        settings |= {"use_swiglu_ffn": gated, "mlp_ratio": ratio}
    return settings


def _assumptions(config: ViTConfig, hints: Hints) -> tuple[str, ...]:
    """The notes on weights without their config.json."""
    eps, activation = config.block.norm_eps, config.block.activation
    return (
        *(assumed_heads(config, hints, DINOV2_HEADS) if is_dinov2(config) else assumed_heads(config, hints)),
        *assumed("GELU", activation, "activation", hints.activation if config.block.mlp == "plain" else "silu"),
        *assumed("LayerNorm epsilon", f"{eps:g}, transformers' default", "norm_eps", hints.norm_eps),
    )


def _representation(value: int | None, config: ViTConfig) -> str:
    if value is not None and config.num_classes > 0:
        return "its classifier has no representation layer before it (drop the layer or the head)"
    return ""


def _mlp_width(value: int | None, config: ViTConfig) -> str:
    ratio = mlp_ratio(config.width, config.hidden_width, config.block.mlp == "swiglu")
    return "" if ratio else "the width of its MLPs is a multiple of the model's (two thirds of one if they are gated)"


def _square(value: Pair, config: ViTConfig) -> str:
    return "" if is_square(config) else NOT_SQUARE


SHARED: Holds = {"block.activation": activations("gelu", "gelu_tanh"), "block.norm_eps": anything}
VIT: Holds = {
    **COMMON,
    **SHARED,
    **positions("learned", covers="class"),
    "representation": _representation,
    "block.qkv_bias": anything,
}
DINOV2: Holds = {**BACKBONE, **SHARED, "mlp_width": _mlp_width, "image_size": _square}


def holds(config: ViTConfig) -> Holds:
    """What the family that such a model belongs to can hold."""
    return DINOV2 if is_dinov2(config) else VIT


def write(checkpoint: Checkpoint, path: Path) -> None:
    if path.suffix:
        raise WeightsError(f"a Hugging Face model is a folder; got {path}; name a folder without a suffix.")
    config = checkpoint.config
    check_input_size(checkpoint.preprocess, config, resamples=is_dinov2(config))
    dialect = checkpoint.origin.dialect_of("hf")
    if config.num_classes and not dialect.get("prefix", "vit."):
        dialect = {**dialect, "prefix": "vit."}  # a head has been added since
    tensors = write_tensors(key_table(config, dialect), checkpoint.tensors)
    prefix = dialect.get("prefix", default_prefix(config))
    if is_dinov2(config):
        tensors[prefix + MASK_TOKEN] = mask_token(checkpoint)
    tensors |= {prefix + name: checkpoint.extras[name] for name in POOLER if name in checkpoint.extras}
    path.mkdir()
    write_safetensors(path / "model.safetensors", tensors, {"format": "pt"})
    write_json(path / CONFIG, model_config(checkpoint))
    write_json(path / PREPROCESSOR, processor_config(checkpoint.preprocess))


def how_to_load(checkpoint: Checkpoint, path: Path) -> str:
    return f'transformers.{model_config(checkpoint)["architectures"][0]}.from_pretrained("{path}")'


FORMAT = ForeignFormat(
    name="hf",
    suffixes=("",),
    holds=holds,
    write=write,
    how_to_load=how_to_load,
    self_describing=("",),
    resamples=is_dinov2,
    recognises=recognises,
    read=read,
    family="hf",
)

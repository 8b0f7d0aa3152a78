"""Hugging Face transformers: ViT and DINOv2 models, as folders with `config.json` and one or several weight files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.model.parts import Pair
from vitrail.weights import infer, keys
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.dinov2 import BACKBONE, DINOV2_HEADS, mask_token, split_mask_token
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, activations, anything, positions
from vitrail.weights.huggingface_config import (
    NOT_SQUARE,
    check_dinov2,
    is_dinov2,
    is_square,
    kind_for,
    mlp_ratio,
    model_config,
    notes_of,
    read_classes,
    read_config,
)
from vitrail.weights.huggingface_preprocess import check_input_size, processor_config, read_preprocess
from vitrail.weights.infer import Hints, Raw, assumed, assumed_heads
from vitrail.weights.keys import Names, Rule, prefix_parts, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.sidecars import CONFIG, PREPROCESSOR, write_json
from vitrail.weights.tensor_files import write_safetensors

PATCHES = "embeddings.patch_embeddings.projection"
MASK_TOKEN = "embeddings.mask_token"  # noqa: S105
POOLER = ("pooler.dense.weight", "pooler.dense.bias")

# The prefix of the backbone's names: none in a bare model, the family's name in one with a classifier.
PREFIXES = ("", "vit.", "dinov2.", "dinov2_with_registers.")

# Our modules → those of transformers. Some have one name in the files of the hub, and another one in transformers 5.
MODEL: Names = {
    "embed.class_token": "embeddings.cls_token",
    "embed.registers": "embeddings.register_tokens",
    "embed.positions": "embeddings.position_embeddings",
    "embed.patches": PATCHES,
    "norm": "layernorm",
    "representation": "pooler.dense",
}
ATTENTION: dict[str, Names] = {
    "files": {
        "attention.qkv": ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
        "attention.proj": "attention.output.dense",
    },
    "modules": {
        "attention.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        "attention.proj": "attention.o_proj",
    },
}
VIT_NORMS: Names = {"norm1": "layernorm_before", "norm2": "layernorm_after"}
VIT_BLOCK: dict[str, Names] = {
    "files": {**VIT_NORMS, "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"},
    "modules": {**VIT_NORMS, "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"},
}
DINOV2_BLOCK: Names = {
    **{name: name for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2")},
    "branch1.scale": "layer_scale1.lambda1",
    "branch2.scale": "layer_scale2.lambda1",
}
GATED: dict[str, Names] = {
    "files": {"mlp.gate": "mlp.weights_in", "mlp.up": "mlp.weights_in", "mlp.down": "mlp.weights_out"},
    "modules": {"mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj"},
}


def names_of(dino: bool, prefix: str, generation: str) -> Names:
    """The names of a ViT's or a DINOv2's modules."""
    own = {**DINOV2_BLOCK, **GATED[generation]} if dino else VIT_BLOCK[generation]
    block = "layers.{}." if generation == "modules" and not dino else "encoder.layer.{}."
    names = {**MODEL, **under("blocks.{}", block, {**ATTENTION[generation], **own})}
    return {**{ours: prefix_parts(prefix, theirs) for ours, theirs in names.items()}, "head": "classifier"}


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return find_prefix(tensors) is not None


def find_prefix(tensors: Mapping[str, Tensor]) -> str | None:
    return next((prefix for prefix in PREFIXES if f"{prefix}{PATCHES}.weight" in tensors), None)


def key_table(config: ViTConfig, dialect: Mapping[str, str]) -> list[Rule]:
    prefix, generation = dialect.get("prefix", default_prefix(config)), dialect.get("generation", "files")
    return keys.key_table(config, names_of(is_dinov2(config), prefix, generation))


def default_prefix(config: ViTConfig) -> str:
    return "vit." if config.num_classes else ""


def read(raw: Raw, hints: Hints) -> Checkpoint:
    prefix = find_prefix(raw.tensors) or ""
    new = any(".attention.q_proj." in name for name in raw.tensors)
    dialect = {"prefix": prefix, "generation": "modules" if new else "files"}
    tensors, extras = split_mask_token(raw.tensors, prefix + MASK_TOKEN)
    remarks: tuple[str, ...] = ()
    if "classifier.weight" in tensors and f"{prefix}pooler.dense.weight" in tensors:
        extras |= {name: tensors.pop(f"{prefix}{name}") for name in POOLER}
        remarks = ("the pooler beside the classifier is kept but not used, as transformers does",)
    raw, stated = replace(raw, tensors=tensors), raw.sidecars.get(CONFIG)
    config = _infer_config(raw, dialect, hints) if stated is None else read_config(raw, stated, prefix, hints)
    check_dinov2(raw, config)
    preprocess, assumed_processor = read_preprocess(raw.sidecars, kind_for(config), config)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, dialect), tensors),
        extras=extras,
        preprocess=preprocess,
        classes=None if stated is None else read_classes(stated, config),
        origin=Origin(format="hf", dialect=dialect),
        notes=(*(_assumptions(config, hints) if stated is None else notes_of(stated, config)), *assumed_processor),
        remarks=remarks,
    )


def _infer_config(raw: Raw, dialect: Mapping[str, str], hints: Hints) -> ViTConfig:
    """The model of weights without a `config.json`, as far as the keys tell; the rest has transformers' defaults."""
    prefix, dino = dialect["prefix"], f"{dialect['prefix']}encoder.layer.0.layer_scale1.lambda1" in raw.tensors
    names = names_of(dino, prefix, dialect["generation"])
    antialiased = f"{prefix}embeddings.register_tokens" in raw.tensors
    return infer.infer_config(
        raw,
        hints,
        names,
        block=BlockConfig(norm_eps=1e-6, layer_scale=1.0) if dino else BlockConfig(norm_eps=1e-12),
        positions=PositionConfig(resample="timm" if antialiased else "hf"),
        head_size=64 if dino else None,
    )


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

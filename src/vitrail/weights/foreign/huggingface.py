"""Hugging Face transformers: models in folders with `config.json` and one or several weight files, or bare weights.

What a family's files look like is a value (`huggingface_vit.py` and its neighbours); this reads and writes any of them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isqrt
from pathlib import Path

import torch
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.model.parts import RelativeBias, Rope
from vitrail.weights import infer
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.huggingface_config import (
    ACTIVATIONS,
    FAMILIES,
    check_square,
    family_for,
    family_of,
    model_config,
    notes_of,
    picture_size,
    read_classes,
    read_config,
    shown_by,
)
from vitrail.weights.foreign.huggingface_family import TABLE, Family, Model, with_values
from vitrail.weights.foreign.huggingface_preprocess import NAFLEX, check_input_size, processor_config, read_preprocess
from vitrail.weights.foreign.huggingface_vit import VIT
from vitrail.weights.foreign.mae import KEPT, read_decoder
from vitrail.weights.formats import ForeignFormat, Holds
from vitrail.weights.infer import Hints, Raw, assumed, assumed_heads
from vitrail.weights.keys import Rule, parts_of, read_tensors, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.sidecars import CONFIG, PREPROCESSOR, write_json
from vitrail.weights.tensor_files import write_safetensors

MASK_TOKEN = "embeddings.mask_token"  # noqa: S105
FAMILY = "family"  # of the dialect


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return any(family.find_prefix(tensors) is not None for family in FAMILIES)


def find_family(tensors: Mapping[str, Tensor]) -> Family:
    """The family of weights without a `config.json`, as far as their names tell; a plain ViT has nothing of its own."""
    text = "\n".join(tensors)
    for family in FAMILIES:
        prefix = family.find_prefix(tensors)
        if prefix is None or not family.sign or not re.search(family.sign, text, re.MULTILINE):
            continue
        if tensors[prefix + family.patches].ndim == family.patch_dimensions:
            return family
    return VIT


def read(raw: Raw, hints: Hints) -> Checkpoint:
    stated = raw.sidecars.get(CONFIG)
    family = find_family(raw.tensors) if stated is None else family_of(raw.path, stated)
    prefix = family.find_prefix(raw.tensors)
    if prefix is None:
        raise WeightsError(f"{raw.path} has no tensor {family.patches}, which every {family.kind} model has.")
    model = family.find_model(raw.tensors, prefix)
    tensors, extras, remarks = _separate(raw.tensors, family, model, prefix)
    for names in model.decoders:
        if decoder := read_decoder(raw.tensors, names, stated):
            extras, remarks = {**extras, **decoder}, (KEPT,)
    if model.refused and hints.pooling is None:
        raise WeightsError(f"{raw.path}: {model.refused}.")
    raw = replace(raw, tensors=tensors)
    dialect = {FAMILY: family.kind, "prefix": prefix, **family.find_blocks(tensors, prefix)}
    if stated is None:
        config = _infer_config(raw, family, model, dialect, hints)
        classes, notes, pictures = None, _assumptions(family, config, hints), config.image_size
    else:
        config = read_config(raw, family, model, stated, hints)
        classes, notes = read_classes(stated, config), notes_of(stated, config)
        pictures = picture_size(family, stated, config)
    check_square(raw, family, config)
    preprocess, assumed_processor = read_preprocess(raw.sidecars, family, config, pictures)
    return Checkpoint(
        config=config,
        tensors=read_tensors(family.key_table(config, model, dialect), tensors),
        extras=extras,
        preprocess=preprocess,
        classes=classes,
        origin=Origin(format="hf", dialect=dialect),
        notes=(*notes, *assumed_processor),
        remarks=remarks,
    )


def _separate(
    tensors: Mapping[str, Tensor], family: Family, model: Model, prefix: str
) -> tuple[dict[str, Tensor], dict[str, Tensor], tuple[str, ...]]:
    """The tensors of the model, those that are kept beside it, and remarks on both and on what is left out."""
    rest: dict[str, Tensor] = {}
    extras: dict[str, Tensor] = {}
    remarks = dict.fromkeys([model.remark] if model.remark and not model.unused else [])
    for name, tensor in tensors.items():
        own = name.removeprefix(prefix)
        if name == prefix + MASK_TOKEN:
            extras |= {"mask_token": tensor} if tensor.any() or not family.needs_mask_token else {}
        elif model.left_out and name.startswith(model.left_out):
            continue
        elif name in model.kept:
            extras[name] = tensor
        elif model.unused and name.startswith(prefix) and own.startswith(model.unused):
            extras[own] = tensor
            remarks[model.remark] = None
        elif family.buffers and re.search(family.buffers, name):
            remarks["numbers that transformers computes by itself, such as position_ids, were left out"] = None
        elif tensor.numel():  # no registers are an empty tensor
            rest[name] = tensor
    return rest, extras, tuple(remarks)


def _infer_config(raw: Raw, family: Family, model: Model, dialect: Mapping[str, str], hints: Hints) -> ViTConfig:
    """The model of weights without a `config.json`, as far as the keys tell; the rest has transformers' defaults."""
    names, tensors = family.names_of(model, dialect), dict(raw.tensors)
    patches = dialect["prefix"] + family.patches
    if family.patch_dimensions == 2:
        tensors[patches] = _as_convolution(raw, patches)
    defaults = {path: default for path, _, default in family.fields.values()}
    relative = Rope(base=defaults["relative.base"]) if "relative.base" in defaults else None
    tables = [name for name in tensors if name.endswith("relative_position_bias_table")]
    if tables:
        relative = RelativeBias(shared=len(tables) == 1 and tables[0] == parts_of(names[TABLE])[0])
        side = (isqrt(raw.shape(tables[0], 2)[0] - 3) + 1) // 2 * raw.shape(patches, 4)[2]
        hints = hints if hints.image_size else replace(hints, image_size=(side, side))
    config = infer.infer_config(
        replace(raw, tensors=tensors),
        hints,
        names,
        block=BlockConfig(
            norm_eps=defaults["block.norm_eps"],
            layer_scale=defaults.get("block.layer_scale", 0.1),
            activation=ACTIVATIONS.get(family.activation, "gelu"),  # pyright: ignore[reportArgumentType]
            norm=family.fixed.get("block.norm", "layer"),
        ),
        positions=PositionConfig(
            covers=family.fixed.get("positions.covers", "class"),
            resample=family.fixed.get("positions.resample", PositionConfig().resample),
        ),
        head_size=family.head_size,
        pool_norm=model.fields.get("pool_norm", "before"),
        relative=relative,
    )
    key = f"{parts_of(names['blocks.{}.attention.qkv'])[1].format(0)}.bias"
    rates = {path: default for path, default in defaults.items() if path.startswith("rates.")}
    found = {**model.fields, **rates, **shown_by(raw, model), "block.key_bias": key in tensors}
    return with_values(config, {**found, **({"pooling": hints.pooling} if hints.pooling else {})})


def _as_convolution(raw: Raw, name: str) -> Tensor:
    """The weight of a Linear over the pixels of RGB patches, with the shape of a convolution's."""
    width, pixels = raw.shape(name, 2)
    side = isqrt(pixels // 3)
    if 3 * side**2 != pixels:
        raise WeightsError(f"{raw.path}: {name} must have the pixels of square RGB patches; got {pixels}.")
    return raw.tensors[name].new_empty(width, 3, side, side)


def _assumptions(family: Family, config: ViTConfig, hints: Hints) -> tuple[str, ...]:
    """The notes on weights without their config.json."""
    eps, activation = config.block.norm_eps, config.block.activation
    others = f"{family.lookalikes} has the keys of a {family.kind} too, and computes something else"
    like = () if family.head_size is None else (f"every {family.kind}, with {family.head_size} features each",)
    return (
        *assumed_heads(config, hints, *like),
        *assumed("GELU", activation, "activation", hints.activation if config.block.mlp == "plain" else "silu"),
        *assumed("LayerNorm epsilon", f"{eps:g}, transformers' default", "norm_eps", hints.norm_eps),
        *((others,) if family.lookalikes else ()),
    )


def key_table(config: ViTConfig, dialect: Mapping[str, str]) -> list[Rule]:
    """The rules for a model in the family that it is written as."""
    family = family_for(config, dialect.get(FAMILY, ""))
    return family.key_table(config, family.model_for(config), dialect)


def key_tables(config: ViTConfig) -> Iterator[list[Rule]]:
    """The rules for a model in every family that can hold it, with each of its prefixes and generations of names."""
    for family in FAMILIES:
        if family.refusals(config):
            continue
        model = family.model_for(config)
        for prefix in model.prefixes:
            for generation in reversed(list(family.names)):
                yield family.key_table(config, model, {"prefix": prefix, "generation": generation})


def holds(config: ViTConfig) -> Holds:
    """What the family that such a model belongs to can hold."""
    return family_for(config).holding()


def resamples(config: ViTConfig) -> bool:
    return family_for(config).resamples


def write(checkpoint: Checkpoint, path: Path) -> None:
    if path.suffix:
        raise WeightsError(f"a Hugging Face model is a folder; got {path}; name a folder without a suffix.")
    config, dialect = checkpoint.config, checkpoint.origin.dialect_of("hf")
    family = family_of_checkpoint(checkpoint)
    model = family.model_for(config)
    check_input_size(checkpoint.preprocess, config, resamples=family.resamples)
    if dialect.get(FAMILY, family.kind) != family.kind or dialect.get("prefix") not in model.prefixes:
        dialect = {}  # another family or class than the file's: a head has been added since
    prefix = dialect.get("prefix", model.prefixes[0])
    tensors = write_tensors(family.key_table(config, model, dialect), checkpoint.tensors)
    tensors |= {prefix + name: tensor for name, tensor in _beside(checkpoint, family, model).items()}
    path.mkdir()
    write_safetensors(path / "model.safetensors", tensors, {"format": "pt"})
    write_json(path / CONFIG, model_config(checkpoint, family))
    naflex = config.patch_size[0] if family.processor == NAFLEX else None
    write_json(path / PREPROCESSOR, processor_config(checkpoint.preprocess, naflex))


def family_of_checkpoint(checkpoint: Checkpoint) -> Family:
    """The family that a checkpoint is written as: the one that it came from, as long as that can hold it."""
    return family_for(checkpoint.config, checkpoint.origin.dialect_of("hf").get(FAMILY, ""))


def _beside(checkpoint: Checkpoint, family: Family, model: Model) -> dict[str, Tensor]:
    """What such a file holds beside our model: tokens of pre-training, and what its class stores and does not read."""
    config, like = checkpoint.config, checkpoint.tensors["embed.patches.weight"]
    extras = {name: tensor for name, tensor in checkpoint.extras.items() if name.startswith(model.unused or "\n")}
    if "post_layernorm." in model.unused and not extras:
        ones, zeros = torch.ones(config.width, dtype=like.dtype), torch.zeros(config.width, dtype=like.dtype)
        extras = {"post_layernorm.weight": ones, "post_layernorm.bias": zeros}
    token = checkpoint.extras.get("mask_token")
    if family.mask_token and (token is not None or family.needs_mask_token):
        token = like.new_zeros(config.width) if token is None else token
        extras[MASK_TOKEN] = token.reshape(family.mask_token)
    if family.needs_registers and not config.registers:
        extras["embeddings.register_tokens"] = like.new_empty(1, 0, config.width)
    return extras


def how_to_load(checkpoint: Checkpoint, path: Path) -> str:
    model = family_of_checkpoint(checkpoint).model_for(checkpoint.config)
    return f'transformers.{model.name}.from_pretrained("{path}")'


FORMAT = ForeignFormat(
    name="hf",
    suffixes=("",),
    holds=holds,
    write=write,
    how_to_load=how_to_load,
    self_describing=("",),
    resamples=resamples,
    recognises=recognises,
    read=read,
    family="hf",
)

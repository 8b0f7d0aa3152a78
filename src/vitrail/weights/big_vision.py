"""google-research/big_vision: `.npz` files, with one entry per layer or all layers stacked ("scanned")."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.weights import flax
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, activations, anything, epsilon, positions, stems
from vitrail.weights.infer import Hints, Raw, infer_image_size
from vitrail.weights.keys import Rule, read_tensors, rule, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_npz

ACTIVATION, NORM_EPS = "gelu_tanh", 1e-6
NUMBERING = "separate"
SCANNED = "Transformer/encoderblock/"
MAP = "MAPHead_0"


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    prefix = flax.find_prefix(tensors)
    return prefix is not None and not flax.is_original(tensors, prefix)


def key_table(config: ViTConfig) -> list[Rule]:
    rules = [*flax.convolution("embed.patches", "embedding"), *flax.norm("norm", "Transformer/encoder_norm")]
    if config.positions.kind == "learned":
        rules.append(rule("embed.positions", "pos_embedding"))
    for index in range(config.depth):
        rules += flax.block(config, index, NUMBERING)
    if config.class_token:
        rules.append(rule("embed.class_token", "cls"))
    if config.pooling == "map":
        parts = {"pool.query": ("query",), "pool.key_value": ("key", "value")}
        rules.append(rule("pool.probe", f"{MAP}/probe"))
        rules += flax.attention(config, parts, "pool.proj", f"{MAP}/MultiHeadDotProductAttention_0")
        rules += flax.norm("pool.norm", f"{MAP}/LayerNorm_0")
        rules += flax.dense("pool.mlp.fc1", f"{MAP}/MlpBlock_0/Dense_0")
        rules += flax.dense("pool.mlp.fc2", f"{MAP}/MlpBlock_0/Dense_1")
    if config.representation:
        rules += flax.dense("representation", "pre_logits")
    if config.num_classes:
        rules += flax.dense("head", "head")
    return rules


def read(raw: Raw, hints: Hints) -> Checkpoint:
    prefix, left_out = flax.strip_prefix(raw)
    scanned = any(name.startswith(SCANNED) for name in raw.tensors)
    dialect = {"prefix": prefix, "layers": "scanned" if scanned else "listed"}
    if scanned:
        raw = Raw(path=raw.path, tensors=unstack_layers(raw), sidecars=raw.sidecars)
    config = infer_config(raw, hints)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config), raw.tensors),
        preprocess=preset("google", config.image_size, config.channels),
        origin=Origin(format="big_vision", dialect=dialect),
        notes=_assumed(config, hints),
        remarks=(*left_out, *flax.implied(hints)),
    )


def _assumed(config: ViTConfig, hints: Hints) -> tuple[str, ...]:
    """What the keys leave open."""
    notes: tuple[str, ...] = ()
    if config.positions.kind == "sincos":
        size = f"; pictures of {config.image_size[0]}×{config.image_size[1]}, or pass image_size"
        notes += (
            "the file has no positions: assumed the fixed ones of big_vision's sincos2d"
            f"{size if hints.image_size is None else ''}; a model of vision_transformer without positions is read with "
            "the format google",
        )
    else:
        notes += flax.assumed_square(config.image_size, config.stride, hints)
    if config.pooling == "mean" and hints.pooling is None:
        notes += (
            'the file does not state its pooling: assumed the mean of the patches (pool_type "gap"); a model that was '
            'trained with pool_type "0" needs another',
        )
    if config.representation:
        notes += ("assumed tanh after pre_logits, which early versions of big_vision did not have",)
    return notes


def unstack_layers(raw: Raw) -> dict[str, Tensor]:
    """Scanned layers, (layers, …) under one name, as one entry per layer."""
    stacked = {name: tensor for name, tensor in raw.tensors.items() if name.startswith(SCANNED)}
    depths = {tensor.shape[0] if tensor.ndim else 0 for tensor in stacked.values()}
    if len(depths) != 1 or 0 in depths:
        raise WeightsError(f"{raw.path}: all of {SCANNED} must have the same number of layers; got {sorted(depths)}.")
    tensors = {name: tensor for name, tensor in raw.tensors.items() if name not in stacked}
    for name, tensor in stacked.items():
        for index, layer in enumerate(tensor):
            tensors[name.replace("encoderblock/", f"encoderblock_{index}/")] = layer
    return tensors


def stack_layers(tensors: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """The opposite: one entry with a leading axis of layers."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = re.match(r"(.*/encoderblock)_(\d+)(/.*)", name)
        if match is None:
            result[name] = tensor
        elif match[2] == "0":
            result[match[1] + match[3]] = torch.stack([tensors[f"{match[1]}_{i}{match[3]}"] for i in range(depth)])
    return result


def infer_config(raw: Raw, hints: Hints) -> ViTConfig:
    sizes = flax.infer_sizes(raw, NUMBERING)
    class_token, learned = "cls" in raw.tensors, "pos_embedding" in raw.tensors
    if hints.pooling == "cls" and not class_token:
        raise WeightsError(
            "pooling cls needs a [cls] token, which this file does not have; our ViT cannot pool the first patch "
            'instead, as big_vision does with pool_type "0".'
        )
    pooling = "map" if f"{MAP}/probe" in raw.tensors else "cls" if class_token else "mean"
    if learned:
        image_size, _ = infer_image_size(raw.shape("pos_embedding", 3)[1], (0,), sizes.patch_size, hints)
    else:  # fixed positions exist for any size: 224, or the next size of whole patches
        rows, columns = (max(224 // side, 1) * side for side in sizes.patch_size)
        image_size = hints.image_size or (rows, columns)
    return ViTConfig(
        image_size=image_size,
        patch_size=sizes.patch_size,
        channels=sizes.channels,
        width=sizes.width,
        depth=sizes.depth,
        heads=sizes.heads,
        mlp_width=sizes.mlp_width,
        num_classes=sizes.num_classes,
        class_token=class_token,
        pooling=hints.pooling or pooling,
        representation=sizes.representation,
        block=BlockConfig(
            activation=hints.activation or ACTIVATION,
            norm_eps=hints.norm_eps or NORM_EPS,
            attention_scale=hints.attention_scale,
        ),
        positions=PositionConfig(kind="learned" if learned else "sincos", covers="patches", resample="google"),
    )


def _pooling(value: str, config: ViTConfig) -> str:
    if value not in ("cls", "mean", "map"):
        return f"it has no pooling {value!r}"
    return "it has a [cls] token only to pool it" if value != "cls" and config.class_token else ""


HOLDS: Holds = {
    **COMMON,
    **positions("learned", "sincos", covers="patches"),
    "stem.kind": stems("patch", hint="google has"),
    "class_token": anything,
    "pooling": _pooling,
    "representation": anything,
    "block.activation": activations(ACTIVATION),
    "block.norm_eps": epsilon(NORM_EPS),
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    dialect = checkpoint.origin.dialect if checkpoint.origin.format == "big_vision" else {}
    tensors = write_tensors(key_table(checkpoint.config), checkpoint.tensors)
    if dialect.get("layers") == "scanned":
        tensors = stack_layers(tensors, checkpoint.config.depth)
    prefix = dialect.get("prefix", "params/")
    write_npz(path, {prefix + name: tensor for name, tensor in tensors.items()})


FORMAT = ForeignFormat(
    name="big_vision",
    suffixes=(".npz",),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
    family="google",
)

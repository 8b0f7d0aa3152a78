"""google-research/big_vision: `.npz` files, with one entry per layer or all layers stacked ("scanned")."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.errors import WeightsError
from vitrail.model import ViTConfig
from vitrail.weights.checkpoint import LOGIT_BIAS, LOGIT_SCALE, Checkpoint
from vitrail.weights.foreign import flax
from vitrail.weights.formats import ForeignFormat, Holds, positions, stems
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.keys import Rule, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_npz

NUMBERING, POSITIONS = "separate", "pos_embedding"
IMAGE = "img/"  # the end of the prefix, where the file has a tower for texts beside the ViT (SigLIP, LiT)
SCALES = {LOGIT_SCALE: "t", LOGIT_BIAS: "b"}  # beside the towers
SCANNED = "Transformer/encoderblock/"
ATTENTION = "MultiHeadDotProductAttention_0"
POOL = {
    "probe": "probe",
    "query": f"{ATTENTION}/query",
    "key_value": (f"{ATTENTION}/key", f"{ATTENTION}/value"),
    "proj": f"{ATTENTION}/out",
    "norm": "LayerNorm_0",
    "mlp.fc1": "MlpBlock_0/Dense_0",
    "mlp.fc2": "MlpBlock_0/Dense_1",
}
NAMES = {**flax.names_of(NUMBERING, POSITIONS), **under("pool", f"{flax.MAP}/", POOL)}


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    prefix = flax.find_prefix(tensors)
    return prefix is not None and not flax.is_original(tensors, prefix)


def key_table(config: ViTConfig) -> list[Rule]:
    return flax.key_table(config, NAMES)


def read(raw: Raw, hints: Hints) -> Checkpoint:
    extras = split_scales(raw)
    prefix, left_out = flax.strip_prefix(raw)
    scanned = any(name.startswith(SCANNED) for name in raw.tensors)
    if scanned:
        raw = replace(raw, tensors=unstack_layers(raw))
    if hints.pooling == "cls" and "cls" not in raw.tensors:
        raise WeightsError(
            "pooling cls needs a [cls] token, which this file does not have; our ViT cannot pool the first patch "
            'instead, as big_vision does with pool_type "0".'
        )
    config = flax.infer_config(raw, hints, NUMBERING, POSITIONS, covers="patches", unlearned="sincos")
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config), raw.tensors),
        extras=extras,
        preprocess=preset("google", config.image_size, config.channels),
        origin=Origin(format="big_vision", dialect={"prefix": prefix, "layers": "scanned" if scanned else "listed"}),
        notes=_assumed(config, hints),
        remarks=(*left_out, *flax.implied(hints)),
    )


def split_scales(raw: Raw) -> dict[str, Tensor]:
    """Take out the scale and the bias of the similarity of pictures and texts, if the ViT is one of two towers."""
    prefix = flax.find_prefix(raw.tensors) or ""
    root = prefix.removesuffix(IMAGE)
    if root == prefix:
        return {}
    return {ours: raw.tensors.pop(root + name) for ours, name in SCALES.items() if root + name in raw.tensors}


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
        notes += flax.assumed_square(config, hints)
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


HOLDS: Holds = {
    **flax.HOLDS,
    **positions("learned", "sincos", covers="patches"),
    "stem.kind": stems("patch", hint="google has"),
    "pooling": flax.pooling("cls", "mean", "map", reason="it pools [cls], the mean of the patches or by attention"),
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    dialect = checkpoint.origin.dialect_of("big_vision")
    tensors = write_tensors(key_table(checkpoint.config), checkpoint.tensors)
    if dialect.get("layers") == "scanned":
        tensors = stack_layers(tensors, checkpoint.config.depth)
    prefix = dialect.get("prefix", f"params/{IMAGE}" if LOGIT_SCALE in checkpoint.extras else "params/")
    arrays = {prefix + name: tensor for name, tensor in tensors.items()}
    if prefix.endswith(IMAGE):
        scales = {name: checkpoint.extras[ours] for ours, name in SCALES.items() if ours in checkpoint.extras}
        arrays |= {prefix.removesuffix(IMAGE) + name: tensor for name, tensor in scales.items()}
    write_npz(path, arrays)


FORMAT = ForeignFormat(
    name="big_vision",
    suffixes=(".npz",),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
    family="google",
)

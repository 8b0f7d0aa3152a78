"""What Google's two repositories share: Flax's kernel layouts, the names inside a block, and reading the sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import cast

import torch
from torch import Tensor

from vitrail.model import ViTConfig
from vitrail.model.config import Pair
from vitrail.weights.infer import Hints, Raw, count_layers
from vitrail.weights.keys import HWIO, TRANSPOSED, Form, Rule, Tensors, rule

# The prefixes that different releases add to all names of the model.
PREFIXES = ("", "opt/target/", "params/", "params/img/", "img/")

POSITIONS = "Transformer/posembed_input/pos_embedding"  # of vision_transformer; big_vision has them at the top level

# Numbering → names of attention, second norm and MLP in a block: Flax once numbered all submodules together, and now
# numbers each kind by itself.
BLOCK_NAMES = {
    "joint": ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
    "separate": ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
}
RELEASED = "joint"  # what the files of google-research/vision_transformer have


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the shapes of an npz show."""

    patch_size: Pair
    channels: int
    width: int
    depth: int
    heads: int
    mlp_width: int
    num_classes: int
    representation: int | None


def find_prefix(tensors: Mapping[str, Tensor]) -> str | None:
    """The prefix of all names of the model, or None if there is no such model."""
    return next((prefix for prefix in PREFIXES if f"{prefix}embedding/kernel" in tensors), None)


def strip_prefix(raw: Raw) -> tuple[str, tuple[str, ...]]:
    """Keep only the model's tensors, without their prefix; notes state how many others were left out."""
    tensors, prefix = raw.tensors, find_prefix(raw.tensors) or ""
    others = [name for name in tensors if not name.startswith(prefix)]
    for name in others:
        del tensors[name]
    for name in list(tensors) if prefix else ():
        tensors[name.removeprefix(prefix)] = tensors.pop(name)
    counted = "1 tensor that does" if len(others) == 1 else f"{len(others)} tensors that do"
    return prefix, (f"left out {counted} not start with {prefix}",) if others else ()


def is_original(tensors: Mapping[str, Tensor], prefix: str) -> bool:
    """Whether a model is from google-research/vision_transformer, judging by its positions, numbering or ResNet."""
    if f"{prefix}{POSITIONS}" in tensors or f"{prefix}conv_root/kernel" in tensors:
        return True
    return f"{prefix}pos_embedding" not in tensors and numbering(tensors) == "joint"


def assumed_square(image_size: Pair, stride: Pair, hints: Hints) -> tuple[str, ...]:
    """The note for a grid of which only the number of positions is known."""
    patches = image_size[0] // stride[0] * (image_size[1] // stride[1])
    if hints.image_size is not None or not any(patches % side == 0 for side in range(2, isqrt(patches))):
        return ()  # it is known, or only one grid has this many patches
    return (
        f"the file does not state the shape of its grid of {patches} patches: assumed square, pictures of "
        f"{image_size[0]}×{image_size[1]}; pass image_size if they were not",
    )


def implied(hints: Hints) -> tuple[str, ...]:
    """What is not in the file but fixed in the code that it comes from."""
    names = [name for name in ("activation", "norm_eps") if getattr(hints, name) is None]
    facts = {"activation": "the tanh form of GELU", "norm_eps": "a LayerNorm epsilon of 1e-6"}
    if not names:
        return ()
    return (
        f"{' and '.join(facts[name] for name in names)} {'is' if len(names) == 1 else 'are'} not in the file but in "
        f"Google's code; pass {' or '.join(names)} if the weights were trained differently",
    )


def numbering(tensors: Mapping[str, Tensor]) -> str:
    """How the submodules of the first block are numbered."""
    names = BLOCK_NAMES["joint"]
    return "joint" if any(f"/{names[0]}/" in name for name in tensors) else "separate"


def infer_sizes(raw: Raw, numbering: str) -> Sizes:
    """Read the sizes off the shapes of an unscanned npz without prefix."""
    attention, _, mlp = BLOCK_NAMES[numbering]
    block = "Transformer/encoderblock_0"
    rows, columns, channels, width = raw.shape("embedding/kernel", 4)
    return Sizes(
        patch_size=(rows, columns),
        channels=channels,
        width=width,
        depth=count_layers(raw.tensors, r"Transformer/encoderblock_(\d+)/"),
        heads=raw.shape(f"{block}/{attention}/query/kernel", 3)[1],
        mlp_width=raw.shape(f"{block}/{mlp}/Dense_0/kernel", 2)[1],
        num_classes=raw.shape("head/kernel", 2)[1] if "head/kernel" in raw.tensors else 0,
        representation=raw.shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in raw.tensors else None,
    )


def heads_in(config: ViTConfig, parts: int) -> Form:
    """Kernels (D, H, K) of `parts` projections, side by side ↔ one (parts · D, D) matrix."""

    def read(theirs: Tensors) -> Tensor:
        return torch.cat([kernel.flatten(1).T for kernel in theirs])

    def write(ours: Tensor) -> Tensors:
        return tuple(_split_heads(matrix.T, 1, config) for matrix in ours.chunk(parts))

    return Form(read, write)


def bias_in(config: ViTConfig, parts: int) -> Form:
    """Biases (H, K) of `parts` projections ↔ one (parts · D)."""

    def read(theirs: Tensors) -> Tensor:
        return torch.cat([bias.flatten() for bias in theirs])

    def write(ours: Tensor) -> Tensors:
        return tuple(_split_heads(bias, 0, config) for bias in ours.chunk(parts))

    return Form(read, write)


def heads_out(config: ViTConfig) -> Form:
    """The output kernel (H, K, D) ↔ (D, D)."""

    def read(theirs: Tensors) -> Tensor:
        return theirs[0].flatten(0, 1).T

    def write(ours: Tensor) -> Tensors:
        return (_split_heads(ours.T, 0, config),)

    return Form(read, write)


def _split_heads(tensor: Tensor, axis: int, config: ViTConfig) -> Tensor:
    return cast("Tensor", tensor.unflatten(axis, (config.heads, config.head_size)))


def norm(ours: str, theirs: str) -> list[Rule]:
    return [rule(f"{ours}.weight", f"{theirs}/scale"), rule(f"{ours}.bias", f"{theirs}/bias")]


def dense(ours: str, theirs: str) -> list[Rule]:
    return [rule(f"{ours}.weight", f"{theirs}/kernel", form=TRANSPOSED), rule(f"{ours}.bias", f"{theirs}/bias")]


def convolution(ours: str, theirs: str) -> list[Rule]:
    return [rule(f"{ours}.weight", f"{theirs}/kernel", form=HWIO), rule(f"{ours}.bias", f"{theirs}/bias")]


def attention(config: ViTConfig, ours: dict[str, tuple[str, ...]], out: str, theirs: str) -> list[Rule]:
    """Projections: our stacked layer → which of query, key and value it holds; then the output layer."""
    rules: list[Rule] = []
    for name, parts in ours.items():
        kernels, biases = ([f"{theirs}/{part}/{kind}" for part in parts] for kind in ("kernel", "bias"))
        rules.append(rule(f"{name}.weight", *kernels, form=heads_in(config, len(parts))))
        rules.append(rule(f"{name}.bias", *biases, form=bias_in(config, len(parts))))
    rules.append(rule(f"{out}.weight", f"{theirs}/out/kernel", form=heads_out(config)))
    rules.append(rule(f"{out}.bias", f"{theirs}/out/bias"))
    return rules


def block(config: ViTConfig, index: int, numbering: str) -> list[Rule]:
    """One encoder block."""
    attention_name, norm_name, mlp_name = BLOCK_NAMES[numbering]
    ours, theirs = f"blocks.{index}", f"Transformer/encoderblock_{index}"
    qkv = {f"{ours}.attention.qkv": ("query", "key", "value")}
    return [
        *norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0"),
        *attention(config, qkv, f"{ours}.attention.proj", f"{theirs}/{attention_name}"),
        *norm(f"{ours}.norm2", f"{theirs}/{norm_name}"),
        *dense(f"{ours}.mlp.fc1", f"{theirs}/{mlp_name}/Dense_0"),
        *dense(f"{ours}.mlp.fc2", f"{theirs}/{mlp_name}/Dense_1"),
    ]

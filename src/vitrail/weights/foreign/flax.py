"""What Google's two repositories share: Flax's kernel layouts, the names of layers, and inferring the config."""

from collections.abc import Mapping
from math import isqrt
from typing import Any, Literal, cast

import torch
from torch import Tensor

from vitrail.model import BlockConfig, PatchStem, PositionConfig, ViTConfig
from vitrail.model.parts import Pair, Stem
from vitrail.weights import keys
from vitrail.weights.formats import COMMON, Check, Holds, anything, computes
from vitrail.weights.infer import Hints, Raw, infer_image_size, usual_size
from vitrail.weights.keys import HWIO, SAME, TRANSPOSED, Form, Names, Rule, under

BLOCK = BlockConfig(activation="gelu_tanh", norm_eps=1e-6)  # what Google's code computes

# The prefixes that different releases add to all names of the model.
PREFIXES = ("", "opt/target/", "params/", "params/img/", "img/")

POSITIONS = "Transformer/posembed_input/pos_embedding"  # of vision_transformer; big_vision has them at the top level
ROOT = "conv_root/kernel"  # of a hybrid's ResNet
MAP = "MAPHead_0"

# Numbering → names of attention, second norm and MLP in a block: Flax once numbered all submodules together, and now
# numbers each kind by itself.
BLOCK_NAMES = {
    "joint": ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
    "separate": ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
}


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
    if f"{prefix}{POSITIONS}" in tensors or f"{prefix}{ROOT}" in tensors:
        return True
    return f"{prefix}pos_embedding" not in tensors and numbering(tensors) == "joint"


def numbering(tensors: Mapping[str, Tensor]) -> str:
    """How the submodules of the first block are numbered."""
    return "joint" if any(f"/{BLOCK_NAMES['joint'][0]}/" in name for name in tensors) else "separate"


def infer_config(
    raw: Raw,
    hints: Hints,
    numbering: str,
    positions: str,
    *,
    covers: Literal["class", "patches"],
    unlearned: Literal["none", "sincos"],
    stem: Stem | None = None,
) -> ViTConfig:
    """The model of an unscanned npz without prefix.

    Args:
        positions: the name of learned positions.
        covers: which tokens those belong to.
        unlearned: the kind of positions of a model without learned ones.
    """
    attention, _, mlp = BLOCK_NAMES[numbering]
    block, stem = "Transformer/encoderblock_0", stem or PatchStem()
    rows, columns, channels, width = raw.shape("embedding/kernel", 4)
    stride = rows * stem.stride, columns * stem.stride
    class_token, learned = "cls" in raw.tensors, positions in raw.tensors
    if learned:
        prefix = int(class_token) if covers == "class" else 0
        image_size, _ = infer_image_size(raw.shape(positions, 3)[1], (prefix,), stride, hints)
    else:
        image_size = hints.image_size or usual_size(stride)
    pooling = "map" if f"{MAP}/probe" in raw.tensors else "cls" if class_token else "mean"
    return ViTConfig(
        image_size=image_size,
        patch_size=(rows, columns),
        channels=raw.shape(ROOT, 4)[2] if stem.kind == "resnet" else channels,
        width=width,
        depth=raw.count_layers(r"Transformer/encoderblock_(\d+)/"),
        heads=raw.shape(f"{block}/{attention}/query/kernel", 3)[1],
        mlp_width=raw.shape(f"{block}/{mlp}/Dense_0/kernel", 2)[1],
        num_classes=raw.shape("head/kernel", 2)[1] if "head/kernel" in raw.tensors else 0,
        class_token=class_token,
        pooling=hints.pooling or pooling,
        representation=raw.shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in raw.tensors else None,
        block=hints.override(BLOCK),
        positions=PositionConfig(kind="learned" if learned else unlearned, covers=covers, resample="google"),
        stem=stem,
    )


def assumed_square(config: ViTConfig, hints: Hints) -> tuple[str, ...]:
    """The note for a grid of which only the number of positions is known."""
    patches = config.grid[0] * config.grid[1]
    if hints.image_size is not None or not any(patches % side == 0 for side in range(2, isqrt(patches))):
        return ()  # it is known, or only one grid has this many patches
    return (
        f"the file does not state the shape of its grid of {patches} patches: assumed square, pictures of "
        f"{_shown(config.image_size)}; pass image_size if they were not",
    )


def _shown(size: Pair) -> str:
    return f"{size[0]}×{size[1]}"


def implied(hints: Hints) -> tuple[str, ...]:
    """What is not in the file but fixed in the code that it comes from."""
    facts = {"activation": "the tanh form of GELU", "norm_eps": "a LayerNorm epsilon of 1e-6"}
    names = [name for name in facts if getattr(hints, name) is None]
    if not names:
        return ()
    return (
        f"{' and '.join(facts[name] for name in names)} {'is' if len(names) == 1 else 'are'} not in the file but in "
        f"Google's code; pass {' or '.join(names)} if the weights were trained differently",
    )


def pooling(*kinds: str, reason: str) -> Check:
    """One of these kinds of pooling."""

    def check(value: Any, config: ViTConfig) -> str:
        if value not in kinds:
            return reason
        return "it has a [cls] token only to pool it" if value != "cls" and config.class_token else ""

    return check


HOLDS: Holds = {
    **COMMON,
    "class_token": anything,
    "representation": anything,
    **computes(BLOCK),
}


def key_table(config: ViTConfig, names: Names, group_norm: Form = SAME) -> list[Rule]:
    """The rules of a model; `group_norm` is the layout of a hybrid's norms."""

    def spelling(module: str, kind: str, parts: int) -> tuple[str, Form]:
        if module.endswith((".qkv", ".query", ".key_value")):
            return ("/kernel", heads_in(config, parts)) if kind == "weight" else ("/bias", bias_in(config, parts))
        if "norm" in module:
            name = "/scale" if kind == "weight" else "/bias"
            return name, group_norm if module.startswith("embed.stem.") else SAME
        if kind == "bias":
            return "/bias", SAME
        if module.endswith(".proj"):
            return "/kernel", heads_out(config)
        return "/kernel", HWIO if module.startswith("embed.") else TRANSPOSED

    return keys.key_table(config, names, spelling)


def names_of(numbering: str, positions: str) -> Names:
    """Our modules → Flax's."""
    attention, norm, mlp = BLOCK_NAMES[numbering]
    block = {
        "norm1": "LayerNorm_0",
        "attention.qkv": (f"{attention}/query", f"{attention}/key", f"{attention}/value"),
        "attention.proj": f"{attention}/out",
        "norm2": norm,
        "mlp.fc1": f"{mlp}/Dense_0",
        "mlp.fc2": f"{mlp}/Dense_1",
    }
    return {
        "embed.class_token": "cls",
        "embed.positions": positions,
        "embed.patches": "embedding",
        **under("blocks.{}", "Transformer/encoderblock_{}/", block),
        "norm": "Transformer/encoder_norm",
        "representation": "pre_logits",
        "head": "head",
    }


def heads_in(config: ViTConfig, parts: int) -> Form:
    """Kernels (D, H, K) of `parts` projections, side by side ↔ one (parts · D, D) matrix."""
    return Form(
        lambda theirs: torch.cat([kernel.flatten(1).T for kernel in theirs]),
        lambda ours: tuple(_split_heads(matrix.T, 1, config) for matrix in ours.chunk(parts)),
    )


def bias_in(config: ViTConfig, parts: int) -> Form:
    """Biases (H, K) of `parts` projections ↔ one (parts · D)."""
    return Form(
        lambda theirs: torch.cat([bias.flatten() for bias in theirs]),
        lambda ours: tuple(_split_heads(bias, 0, config) for bias in ours.chunk(parts)),
    )


def heads_out(config: ViTConfig) -> Form:
    """The output kernel (H, K, D) ↔ (D, D)."""
    return Form(lambda theirs: theirs[0].flatten(0, 1).T, lambda ours: (_split_heads(ours.T, 0, config),))


def _split_heads(tensor: Tensor, axis: int, config: ViTConfig) -> Tensor:
    return cast("Tensor", tensor.unflatten(axis, (config.heads, config.head_size)))

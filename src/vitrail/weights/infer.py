"""What the keys and shapes of a foreign file reveal about the model, and what they leave open.

If a fact cannot be inferred, the user passes it as a hint; we never guess: the error names the choices.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, inf, isqrt, nextafter
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model.config import ViTConfig
from vitrail.model.parts import BlockConfig, NoRelative, Pair, PatchStem, PositionConfig, Relative, Stem
from vitrail.model.variants import SIZES
from vitrail.weights.hints import Hints
from vitrail.weights.keys import Names, rule_of
from vitrail.wording import counted

Notes = tuple[str, ...]
PoolNorm = Literal["before", "after", "none"]


@dataclass(frozen=True, kw_only=True)
class Raw:
    """A foreign file as read: tensors, and the JSON files beside it by name."""

    path: Path
    tensors: dict[str, Tensor]
    sidecars: Mapping[str, Any]

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """The shape of a tensor that every model of the format has."""
        if name not in self.tensors:
            raise WeightsError(f"{self.path} has no tensor {name}, which every such checkpoint has.")
        shape = tuple(self.tensors[name].shape)
        if len(shape) != dimensions or 0 in shape:
            raise WeightsError(f"{self.path}: {name} must have {dimensions} dimensions, none empty; got {shape}.")
        return shape

    def size(self, name: str, axis: int = 0) -> int | None:
        """The size of a tensor that not every model has, along one axis."""
        if name not in self.tensors:
            return None
        shape = tuple(self.tensors[name].shape)
        if len(shape) <= axis or 0 in shape:
            raise WeightsError(f"{self.path}: {name} must have more than {axis} dimensions, none empty; got {shape}.")
        return shape[axis]

    def count_layers(self, pattern: str) -> int:
        """How many layers there are, from the numbers that `pattern` finds in the names."""
        numbers = {int(match[1]) for name in self.tensors if (match := re.match(pattern, name))}
        if not numbers or numbers != set(range(len(numbers))):
            raise WeightsError(f"layers must be numbered from 0 without a gap; found {sorted(numbers)[:20]}.")
        return len(numbers)

    def count_units(self, pattern: str) -> tuple[int, ...]:
        """How many units each stage of a ResNet has, from the (stage, unit) numbers that `pattern` finds."""
        found = {(int(match[1]), int(match[2])) for name in self.tensors if (match := re.match(pattern, name))}
        stages = sorted({stage for stage, _ in found})
        return tuple(sum(stage == other for other, _ in found) for stage in stages)


def infer_heads(width: int, depth: int, hints: Hints, head_size: int | None = None) -> int:
    """The number of heads: from a head's size, or from the published models of this width and depth."""
    if hints.heads is not None:
        return hints.heads
    if head_size and width % head_size == 0:
        return width // head_size
    published = {(numbers[0], numbers[1]): numbers[2] for numbers in SIZES.values()}
    if (width, depth) in published:
        return published[width, depth]
    choices = [heads for heads in range(1, width + 1) if width % heads == 0 and width // heads >= 8]
    raise WeightsError(
        f"the file does not state how many heads it has, and no published model has width {width} and depth {depth}; "
        f"pass `heads=`, one of {', '.join(map(str, choices))}."
    )


def infer_config(
    raw: Raw,
    hints: Hints,
    names: Names,
    *,
    block: BlockConfig,
    positions: PositionConfig,
    head_size: int | None = None,
    stem: Stem | None = None,
    pool_norm: PoolNorm = "before",
    pool_heads: int | None = None,
    attention_width: int | None = None,
    relative: Relative | None = None,
) -> ViTConfig:
    """The model of a PyTorch library with these names, as its keys and shapes show it.

    Args:
        block: what the library computes where no key shows it.
        positions: what they cover is found out if they may cover all tokens.
        head_size: of all its models; otherwise heads are those of published models.
        pool_heads: of its attention pooling; None for as many as the blocks have.
        attention_width: of all heads together, where that may differ from the width.
    """

    def key(ours: str) -> str:
        rule = rule_of(ours, names)
        return "" if rule is None else rule.theirs[0]

    def has(ours: str) -> bool:
        return key(ours) in raw.tensors

    stem = stem or PatchStem()
    width, channels, rows, columns = raw.shape(key("embed.patches.weight"), 4)
    depth = raw.count_layers(re.escape(key("blocks.0.norm1").partition("0")[0]) + r"(\d+)\.")
    gate, up, down = (key(f"blocks.0.mlp.{layer}.weight") for layer in ("gate", "up", "down"))
    gated = {gate, down} <= raw.tensors.keys() and (gate != up or raw.shape(gate, 2)[0] == 2 * raw.shape(down, 2)[1])
    head_size = raw.size(key("blocks.0.attention.query_norm.weight")) or head_size or (64 if gated else None)
    class_token, registers = has("embed.class_token"), raw.size(key("embed.registers"), axis=1) or 0
    stride = (rows * stem.stride, columns * stem.stride)
    if has("embed.positions"):
        prefixes = {int(class_token)} if positions.covers == "class" else {0, int(class_token) + registers}
        dimensions = max(raw.tensors[key("embed.positions")].ndim, 2)  # with or without one for the batch
        count = raw.shape(key("embed.positions"), dimensions)[-2]
        image_size, covered = infer_image_size(count, tuple(prefixes), stride, hints)
        if not covered:
            positions = replace(positions, covers="patches")
    else:
        image_size, positions = hints.image_size or usual_size(stride), replace(positions, kind="none")
    pooled = "mean" if pool_norm == "after" or not class_token else "cls"
    distilled = has("distilled_head.weight")
    return ViTConfig(
        image_size=image_size,
        patch_size=(rows, columns),
        channels=raw.shape(key("embed.stem.conv_root.weight"), 4)[1] if stem.kind == "resnet" else channels,
        width=width,
        depth=depth,
        heads=infer_heads(attention_width or width, depth, hints, head_size),
        mlp_width=raw.shape(down if gated else key("blocks.0.mlp.fc2.weight"), 2)[1],
        num_classes=raw.size(key("head.weight")) or 0,
        class_token=class_token,
        registers=registers,
        pooling=hints.pooling or ("map" if has("pool.probe") else pooled),
        pool_norm=pool_norm,
        representation=raw.size(key("representation.weight")),
        patch_bias=has("embed.patches.bias"),
        pixel_norm=has("embed.pixel_norm.weight"),
        patch_norm=has("embed.patch_norm.weight"),
        pre_norm=has("pre_norm.weight"),
        pool_heads=pool_heads,
        pool_mlp_width=raw.size(key("pool.mlp.fc1.weight")),
        attention_width=attention_width,
        relative=relative or NoRelative(),
        block=hints.override(
            replace(
                block,
                qkv_bias=has("blocks.0.attention.qkv.bias"),
                qk_norm=has("blocks.0.attention.query_norm.weight"),
                layer_scale=block.layer_scale if has("blocks.0.branch1.scale") else None,
                mlp="swiglu" if gated else "plain",
                attention_norm=has("blocks.0.attention.norm.weight"),
                mlp_norm=has("blocks.0.mlp.norm.weight"),
                proj_bias=has("blocks.0.attention.proj.bias"),
                mlp_bias=has("blocks.0.mlp.gate.bias" if gated else "blocks.0.mlp.fc1.bias"),
            )
        ),
        positions=positions,
        stem=stem,
        projection=raw.size(key("projection.weight")),
        distilled=distilled,
        summary_tokens=2 if distilled else 1,
    )


def leave_out(tensors: dict[str, Tensor], pattern: str, what: str) -> tuple[dict[str, Tensor], Notes]:
    """Without the tensors whose names begin with the pattern, and a remark that counts them."""
    rest = {name: tensor for name, tensor in tensors.items() if not re.match(pattern, name)}
    left = len(tensors) - len(rest)
    return rest, (f"left out {counted(left, 'tensor')} of {what}",) if left else ()


def assumed(what: str, value: str, argument: str, hint: object) -> Notes:
    """The note on what a file does not state, unless the user passed it as a hint."""
    note = f"the file does not state its {what}: assumed {value}; `{argument}=` changes that"
    return () if hint is not None else (note,)


def assumed_heads(config: ViTConfig, hints: Hints, like: str = "the published model of its width and depth") -> Notes:
    """The note on heads that were inferred only from the width and depth."""
    if config.block.qk_norm:
        return ()
    return assumed("heads", f"{config.heads}, as in {like}", "heads", hints.heads)


def exact_ratio(width: int, hidden: int) -> float:
    """The MLP's ratio for libraries that compute int(width × ratio), rounding included."""
    ratio = hidden / width
    while int(width * ratio) < hidden:
        ratio = nextafter(ratio, inf)
    return int(ratio) if ratio.is_integer() else ratio


def exact_share(parts: Sequence[int], wholes: Sequence[int]) -> float | None:
    """The share of which the parts are, ⌊part / share⌋ being each whole, rounding included; None if there is none."""
    share = min(part / whole for part, whole in zip(parts, wholes, strict=True))
    for _ in range(4):
        if all(floor(part / share) == whole for part, whole in zip(parts, wholes, strict=True)):
            return share
        share = nextafter(share, 0.0)
    return None


def infer_image_size(positions: int, prefixes: tuple[int, ...], stride: Pair, hints: Hints) -> tuple[Pair, int]:
    """The picture size, and how many of the positions belong to prefix tokens (one of `prefixes`)."""
    if hints.image_size is not None:
        patches = hints.image_size[0] // stride[0] * (hints.image_size[1] // stride[1])
        if positions - patches not in prefixes:
            raise WeightsError(
                f"image_size {hints.image_size[0]}×{hints.image_size[1]} has {patches} patches; the file has positions "
                f"for {' or '.join(str(positions - prefix) for prefix in prefixes)}."
            )
        return hints.image_size, positions - patches
    squares = [prefix for prefix in prefixes if isqrt(max(positions - prefix, 0)) ** 2 == positions - prefix > 0]
    if len(squares) != 1:
        raise WeightsError(
            f"{positions} positions do not determine the picture's size ({_sizes(positions, prefixes, stride)}); "
            "pass `image_size=`, the height and width."
        )
    side = isqrt(positions - squares[0])
    return (side * stride[0], side * stride[1]), squares[0]


def usual_size(stride: Pair) -> Pair:
    """For a model that is bound to no size: 224, or the nearest size of whole patches."""
    rows, columns = (max(224 // side, 1) * side for side in stride)
    return rows, columns


def _sizes(positions: int, prefixes: tuple[int, ...], stride: Pair) -> str:
    grids = [
        (rows, (positions - prefix) // rows)
        for prefix in prefixes
        for rows in range(2, isqrt(max(positions - prefix, 0)) + 1)
        if (positions - prefix) % rows == 0
    ]
    sizes = [f"{rows * stride[0]}×{columns * stride[1]}" for rows, columns in grids[-4:]]
    return f"possible: {', '.join(sizes)}, or transposed" if sizes else "no grid of patches fits"

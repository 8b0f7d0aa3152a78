"""What the keys and shapes of a foreign file reveal about the model, and what they leave open.

If a fact cannot be inferred, the user passes it as a hint; we never guess: the error names the choices.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isqrt, nextafter
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from vitrail.errors import ConfigError, WeightsError
from vitrail.model.config import BlockConfig, Pair, ViTConfig
from vitrail.model.variants import SIZES
from vitrail.schema import validate

Notes = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What the user knows about the file: each hint overrides what would be inferred."""

    ema: bool | None = None  # for a torch file with both: the moving average of the weights, or the weights themselves
    heads: int | None = None  # number of heads
    image_size: Pair | None = None  # of the source's pictures, where they are not square
    pooling: Literal["cls", "mean", "map"] | None = None  # instead of what the keys suggest
    activation: Literal["gelu", "gelu_tanh"] | None = None  # instead of the format's own
    norm_eps: float | None = None  # of LayerNorm, instead of the format's own
    attention_scale: float | None = None  # what scores are multiplied by, instead of 1 / √(head size)

    def __post_init__(self) -> None:
        validate(self)
        for name in ("heads", "norm_eps", "attention_scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise ConfigError(f"{name} must be positive; got {value}.")

    def override(self, block: BlockConfig) -> BlockConfig:
        """The format's own block with what the user knows better."""
        given = {name: getattr(self, name) for name in ("activation", "norm_eps", "attention_scale")}
        return replace(block, **{name: value for name, value in given.items() if value is not None})


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


def infer_sizes(
    raw: Raw, hints: Hints, *, patches: str, layers: str, mlp: str, head_size: int | None = None
) -> dict[str, Any]:
    """The sizes that torch's layers show: the patch projection, the last layer of the first MLP, and the names."""
    width, channels, *patch = raw.shape(f"{patches}.weight", 4)
    depth = raw.count_layers(layers)
    heads = infer_heads(width, depth, hints, head_size)
    sizes = {"width": width, "depth": depth, "heads": heads, "mlp_width": raw.shape(f"{mlp}.weight", 2)[1]}
    return {**sizes, "patch_size": tuple(patch), "channels": channels}


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

"""What a checkpoint format is: a value that recognises, reads and writes its files, and says what they hold.

A format names the fields of `ViTConfig` that it holds, each with a check. Every other field must have its plain value,
the default of its dataclass: an option that is added to the model is refused by name until a format declares that it
holds it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.model import BlockConfig, ResNetStem, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.resolve import FormatName

Check = Callable[[Any, ViTConfig], str]  # the value of a field, the model → why it cannot be held, or ""
Holds = Mapping[str, Check]  # field, such as `block.norm_eps` → its check

# Field → the reason of a format that supports only the plain value.
PLAIN = {
    "attention_width": "its heads divide the width of the tokens among them",
    "block.attention_scale": "it has no attention scale of its own",
    "block.layer_scale": "it has no layer scale",
    "block.qk_norm": "it has no qk-norm",
    "block.qkv_bias": "its queries, keys and values have biases",
    "class_token": "it always has a [cls] token",
    "merge": "it has no token merging",
    "pool_norm": "its last LayerNorm comes before the pooling",
    "pooling": "it pools the [cls] token",
    "registers": "it has no registers",
    "representation": "it has no representation layer",
}
PERIODS = "it computes the periods of its rotary positions in float32 (`compute_periods=True` accepts that)"
STEMS = {"conv": "it has no convolutional stem", "resnet": "it has no ResNet stem"}


def walk(config: Any, plain: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every field of a config, nested ones by their path, with its value and its plain value."""
    for field in fields(config):
        path, value, usual = prefix + field.name, getattr(config, field.name), getattr(plain, field.name)
        if not is_dataclass(value):
            yield path, value, usual
        elif type(value) is type(usual):
            yield from walk(value, usual, f"{path}.")
        else:
            kind = getattr(value, "kind", None)
            yield f"{path}.kind", kind, getattr(usual, "kind", None)
            yield from (each for each in walk(value, type(value)(), f"{path}.") if each[0] != f"{path}.kind")  # pyright: ignore


def anything(value: Any, config: ViTConfig) -> str:
    """Any value is held."""
    return ""


def only(*values: Any, reason: str) -> Check:
    """One of these values."""
    return lambda value, config: "" if value in values else reason


def activations(*names: str) -> Check:
    """A GELU of one of these forms."""
    accepts = f' (`activation="{names[0]}"` accepts that)' if len(names) == 1 else ""
    return only(*names, reason=f"its GELU is {' or '.join(names)}{accepts}")


def epsilons(*held: float) -> Check:
    """One of these epsilons of all norms."""
    known = " or ".join(f"{eps:g}" for eps in held)
    return lambda value, config: (
        "" if value in held else f"its norms have epsilon {known}, not {value:g} (`norm_eps={held[0]:g}` accepts that)"
    )


def computes(block: BlockConfig) -> Holds:
    """One GELU and one epsilon of all LayerNorms, fixed in the library's code."""

    def check(value: Any, config: ViTConfig) -> str:
        eps = block.norm_eps
        return "" if value == eps else f"its LayerNorm epsilon is {eps}, not {value} (`norm_eps={eps}` accepts that)"

    return {"block.activation": activations(block.activation), "block.norm_eps": check}


def positions(*kinds: str, covers: str) -> Holds:
    """Positions of these kinds; learned ones belong to exactly these tokens."""

    def check_covers(value: Any, config: ViTConfig) -> str:
        if config.positions.kind != "learned" or not config.prefix or value == covers:
            return ""
        return f"its positions cover {'[cls] too' if covers == 'class' else 'patches only'}"

    kind = only(*kinds, reason="its positions are learned")
    return {"positions.kind": kind, "positions.covers": check_covers}


def resnet_stem(stem: ResNetStem, reason: str) -> Holds:
    """No stem, or a ResNet of any depth and width that computes like this one."""
    fixed = ("groups", "norm_eps", "ws_eps", "ws_form")
    checks = {f"stem.{name}": only(getattr(stem, name), reason=reason) for name in fixed}
    return {"stem.kind": stems("patch", "resnet"), "stem.blocks": anything, "stem.width_factor": anything, **checks}


def stems(*kinds: str, hint: str = "") -> Check:
    """Stems of these kinds; the hint follows the reason for a ResNet."""

    def check(value: Any, config: ViTConfig) -> str:
        if value in kinds:
            return ""
        reason = STEMS.get(value, f"it has no stem of the kind {value!r}")
        return f"{reason} ({hint})" if hint and value == "resnet" else reason

    return check


# What every format holds: sizes; and what changes nothing at inference, or only at other sizes, which a note mentions.
SIZES = ("image_size", "patch_size", "channels", "width", "depth", "heads", "mlp_width", "num_classes")
SILENT = ("positions.resample", "rates.dropout", "rates.attention", "rates.path", "rates.patch")
COMMON: Holds = {**dict.fromkeys((*SIZES, *SILENT), anything), "stem.kind": stems("patch")}


def refusals(holds: Holds, config: ViTConfig) -> list[str]:
    """Why what holds this cannot hold a model, a reason for each field in question; empty if it can."""
    reasons = dict[str, None]()
    refused: set[str] = set()  # parts of another kind, whose fields need no reasons of their own
    for path, value, plain in walk(config, type(config)()):
        part, _, name = path.rpartition(".")
        if part in refused:
            continue
        if path in holds:
            reason = holds[path](value, config)
        else:
            always = PLAIN.get(path, f"its {path} is always {plain!r}, here it is {value!r}")
            reason = "" if value == plain else always
        if reason:
            reasons[reason] = None
            refused |= {part} if name == "kind" else set()
    return list(reasons)


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format that we write.

    Attributes:
        suffixes: of its files, the usual one first; "" is a folder.
        holds: what it can hold of a model like this one; None for everything.
        write: writes to a temporary path, once everything is known to fit.
        how_to_load: the line of code with which users of its own library load the result.
        self_describing: the suffixes of files that hold their preprocessing too.
        resamples: whether its own library accepts pictures of another size than the model's positions.
    """

    name: FormatName
    suffixes: tuple[str, ...]
    holds: Callable[[ViTConfig], Holds] | None
    write: Callable[[Checkpoint, Path], None]
    how_to_load: Callable[[Checkpoint, Path], str] = lambda checkpoint, path: ""
    self_describing: tuple[str, ...] = ()
    resamples: Callable[[ViTConfig], bool] = lambda config: True

    def refusals(self, config: ViTConfig) -> list[str]:
        """Why the format cannot hold a model, a reason for each field in question; empty if it can."""
        return [] if self.holds is None else refusals(self.holds(config), config)


@dataclass(frozen=True, kw_only=True)
class ForeignFormat(Format):
    """Another project's format.

    Attributes:
        recognises: whether these are the keys of its files.
        read: the checkpoint in a file whose keys it recognises; hints settle what the file leaves open.
        family: whose mean and std its models were trained with (`data/preprocess.py`); None if they vary.
    """

    recognises: Callable[[Mapping[str, Tensor]], bool]
    read: Callable[[Raw, Hints], Checkpoint]
    family: str | None = None

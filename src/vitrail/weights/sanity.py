"""Likely problems of a checkpoint, found before it is trained or served."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.errors import WeightsError
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.huggingface import family_of_checkpoint
from vitrail.weights.read import FOREIGN

IMAGENET_21K = (21841, 21843)
Severity = Literal["note", "warning", "error"]


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """One thing that the user should know; an `error` makes the model useless as it is, a `note` changes nothing."""

    severity: Severity
    message: str


def diagnose(checkpoint: Checkpoint) -> list[Diagnostic]:
    """Everything that can be found without data."""
    problems = [*_broken_numbers(checkpoint), *_head(checkpoint), *_representation(checkpoint), *_types(checkpoint)]
    assumed = [_warn(note) for note in checkpoint.notes]
    return [*problems, *_normalisation(checkpoint), *assumed, *(_warn(remark, "note") for remark in checkpoint.remarks)]


def _warn(message: str, severity: Severity = "warning") -> Diagnostic:
    return Diagnostic(severity=severity, message=message)


def check_numbers(checkpoint: Checkpoint, name: str) -> None:
    """Raise for weights that can only give answers which are no numbers."""
    for finding in _broken_numbers(checkpoint):
        raise WeightsError(f"{name}: {finding.message}; the file is damaged or its training diverged: use another one.")


def _broken_numbers(checkpoint: Checkpoint) -> list[Diagnostic]:
    broken = [
        name for name, tensor in checkpoint.tensors.items() if tensor.is_floating_point() and not _is_finite(tensor)
    ]
    if not broken:
        return []
    shown = ", ".join(broken[:5]) + (f" and {len(broken) - 5} more" if len(broken) > 5 else "")
    return [_warn(f"NaN or infinite numbers in {shown}", "error")]


def _is_finite(tensor: Tensor) -> bool:
    """By the sum, which costs a fraction of looking at each number; where that overflows, by each."""
    return bool(tensor.sum().isfinite()) or bool(torch.isfinite(tensor).all())


def _head(checkpoint: Checkpoint) -> list[Diagnostic]:
    config = checkpoint.config
    if not config.num_classes:
        return [_warn("there is no head, so the model only gives features; fine-tune it, or use probes")]
    if not checkpoint.tensors["head.weight"].any():
        return [_warn("the head is all zeros: every class gets the same score until the head is trained")]
    if checkpoint.classes is None:
        return [_warn(f"the {config.num_classes} classes have no names; predictions will show numbers")]
    return []


def _representation(checkpoint: Checkpoint) -> list[Diagnostic]:
    config = checkpoint.config
    if config.representation and _looks_untrained(checkpoint):
        return [
            _warn(
                "the representation layer (pooler) looks random: its bias is 0 and its weights are a normal of 0.02, "
                "as transformers initialises it; convert it with `drop_representation=` to remove it"
            )
        ]
    if not config.representation and config.num_classes in IMAGENET_21K:
        return [_warn("an ImageNet-21k head without the representation layer that pre-training puts before it")]
    return []


def _looks_untrained(checkpoint: Checkpoint) -> bool:
    weight, bias = (checkpoint.tensors[f"representation.{name}"].float() for name in ("weight", "bias"))
    if bias.any() or weight.numel() < 100:
        return False
    deviation = weight.std().item()
    beyond = (weight.abs() > 2 * deviation).float().mean().item()  # 4.6 % of a normal, fewer if truncated
    return abs(deviation - 0.02) < 0.001 and abs(weight.mean().item()) < 0.002 and beyond < 0.055


def _types(checkpoint: Checkpoint) -> list[Diagnostic]:
    kinds = sorted({str(tensor.dtype) for tensor in checkpoint.tensors.values() if tensor.is_floating_point()})
    return [_warn(f"a mix of number types: {', '.join(kinds)}")] if len(kinds) > 1 else []


def _normalisation(checkpoint: Checkpoint) -> list[Diagnostic]:
    spec, origin = checkpoint.preprocess, checkpoint.origin.format
    family = getattr(FOREIGN.get(origin), "family", None)
    if origin == "hf":
        family = family_of_checkpoint(checkpoint).preset
    if family is None:
        return []
    usual = preset(family, channels=spec.channels)
    if spec.mean == usual.mean and spec.std == usual.std:
        return []
    return [
        _warn(
            f"mean {_shown(spec.mean)} and std {_shown(spec.std)} are not those of its family ({family}: "
            f"{_shown(usual.mean)} and {_shown(usual.std)}); wrong unless the weights were trained with them"
        )
    ]


def _shown(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.3g}" for value in dict.fromkeys(values))

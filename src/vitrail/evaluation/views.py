"""Test-time augmentation: several views of each prepared picture, whose probabilities are averaged."""

from typing import get_args

import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError, suggest
from vitrail.evaluation.names import ViewName

SHIFT = 16  # a shift moves the picture by 1/16 of its side


def views(images: Tensor, kind: ViewName | None) -> list[Tensor]:
    """Views of (B, C, H, W), the picture as it is first: mirrored, moved towards four corners, or both."""
    if kind is None:
        return [images]
    check_view(kind)
    moved = [images] if kind == "flip" else [images, *_shifts(images)]
    return moved if kind == "shift" else [*moved, *(view.flip(-1) for view in moved)]


def check_view(kind: ViewName | None) -> None:
    """Refuse an unknown kind of test-time augmentation."""
    if kind is not None and kind not in get_args(ViewName):
        raise ConfigError(f"tta= has no {kind!r}; {suggest(str(kind), get_args(ViewName))}")


def _shifts(images: Tensor) -> list[Tensor]:
    height, width = images.shape[-2:]
    down, right = max(height // SHIFT, 1), max(width // SHIFT, 1)
    padded = F.pad(images, (right, right, down, down), mode="replicate")
    corners = [(top, left) for top in (0, 2 * down) for left in (0, 2 * right)]
    return [padded[..., top : top + height, left : left + width] for top, left in corners]

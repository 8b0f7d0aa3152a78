"""mixup (Zhang et al., 2018) and cutmix (Yun et al., 2019), with soft targets.

The partner of a sample is its neighbour in the epoch's order (0 with 1, 2 with 3, …), whatever the batch size and the
number of ranks; each of the two has its own share and its own box.
"""

from importlib import import_module
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.config import Augment
from vitrail.draws import Draws

_special = cast("Any", import_module("scipy.special"))  # scipy ships no types
Floats = np.ndarray[Any, np.dtype[np.float64]]


def one_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Targets (B, classes) as floats."""
    return torch.nn.functional.one_hot(labels, num_classes).to(torch.float32)


def mix(images: Tensor, targets: Tensor, augment: Augment, draws: Draws) -> tuple[Tensor, Tensor]:
    """Mix neighbours: images (B, C, H, W) and soft targets (B, classes), both floats."""
    partner = torch.as_tensor(neighbours(len(images)))
    share, cut = _shares(augment, draws)
    inside, share = _boxes(share, cut, draws, images.shape[-2], images.shape[-1])
    weight = torch.as_tensor(share, dtype=torch.float32)
    blend = torch.where(torch.as_tensor(cut), 1.0, weight).view(-1, 1, 1, 1)
    others = images[partner]
    mixed = images * blend + others * (1 - blend)
    mixed = torch.where(inside, others, mixed)
    weight = weight.view(-1, 1)
    return mixed, targets * weight + targets[partner] * (1 - weight)


def neighbours(count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """1, 0, 3, 2, …; the last of an odd number is its own partner."""
    return np.minimum(np.arange(count) ^ 1, count - 1)


def _shares(augment: Augment, draws: Draws) -> tuple[Floats, np.ndarray[Any, np.dtype[np.bool_]]]:
    """How much of each sample stays (1 if it is not mixed), and whether the rest is cut or blended."""
    both = augment.mixup > 0 and augment.cutmix > 0
    cut = draws.one("mix-switch") < augment.switch_rate if both else np.full(len(draws), augment.cutmix > 0)
    number = draws.one("mix-share")
    share = np.where(cut, _beta(number, augment.cutmix), _beta(number, augment.mixup))
    off = draws.one("mix-rate") >= augment.mix_rate
    return np.where(off, 1.0, share), cut & ~off


def _beta(number: Floats, alpha: float) -> Floats:
    """Numbers of [0, 1) as draws from Beta(alpha, alpha)."""
    if alpha <= 0:
        return np.ones_like(number)
    return number if alpha == 1 else np.asarray(_special.betaincinv(alpha, alpha, number))


def _boxes(
    share: Floats, cut: np.ndarray[Any, np.dtype[np.bool_]], draws: Draws, height: int, width: int
) -> tuple[Tensor, Floats]:
    """The boxes that are cut, as masks (B, 1, H, W), and the shares that really remain around them."""
    side = np.sqrt(1 - share)
    center = draws.uniform("mix-center", 2) * (height, width)
    size = np.array((height, width))
    start = np.clip(np.round(center - side[:, None] * size / 2), 0, size)  # (B, 2)
    stop = np.clip(np.round(center + side[:, None] * size / 2), 0, size)
    rows, columns = np.arange(height), np.arange(width)
    down = (rows >= start[:, :1]) & (rows < stop[:, :1]) & cut[:, None]  # (B, H)
    across = (columns >= start[:, 1:]) & (columns < stop[:, 1:])  # (B, W)
    inside = down[:, :, None] & across[:, None]
    remains = 1 - inside.mean((1, 2))
    return torch.as_tensor(inside)[:, None], np.where(cut, remains, share)

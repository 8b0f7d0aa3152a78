"""An `Augment` spec on a batch: flips, policies, random erasing (Zhong et al., 2020), mixup (Zhang et al., 2018) and
cutmix (Yun et al., 2019), the latter two with soft targets.

The partner of a sample is its neighbour in the epoch's order (0 with 1, 2 with 3, …), whatever the batch size and the
number of ranks; each of the two has its own share and its own box.
"""

import math
from typing import Any

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from vitrail.data.augment.ops import apply_ops, put, take
from vitrail.data.augment.policies import steps
from vitrail.data.config import Augment
from vitrail.data.preprocess import Preprocess
from vitrail.rng import Draws, Floats, Integers

AREA, RATIO = (0.02, 1 / 3), (0.3, 1 / 0.3)  # of the boxes that random erasing erases
Flags = np.ndarray[Any, np.dtype[np.bool_]]


def augment_batch(images: Tensor, spec: Preprocess, augment: Augment, draws: Draws) -> None:
    """Flip, apply the policy, jitter and erase pixels (B, C, H, W) in place."""
    for flips, axis in ((mirrored(augment, draws), 3), (draws.one("flip-down") < augment.vertical_flip_rate, 2)):
        if (rows := np.flatnonzero(flips)).size:
            put(images, rows, take(images, rows).flip(axis))
    for ops, values in steps(augment, draws, spec.size):
        apply_ops(images, ops, values)
    if augment.erase_rate > 0:
        erase(images, spec, augment, draws)


def mirrored(augment: Augment, draws: Draws) -> Flags:
    """Which samples are flipped left to right: at random in each epoch, or only in the first, and then alternately."""
    if not augment.alternate_flip:
        return draws.one("flip") < augment.flip_rate
    return (draws.in_epoch(0).one("flip") < augment.flip_rate) ^ (draws.epochs % 2 == 1)


def erase(images: Tensor, spec: Preprocess, augment: Augment, draws: Draws) -> None:
    """Overwrite a random box of some samples, in place, with the mean colour or with noise."""
    numbers = draws.uniform("erase", 5)
    height, width = images.shape[-2:]
    mean = torch.tensor([round(255 * value) for value in spec.mean], dtype=torch.uint8).view(-1, 1, 1)
    for row in np.flatnonzero(numbers[:, 0] < augment.erase_rate):
        top, left, down, across = erased_box(height, width, numbers[row])
        box = images[row, :, top : top + down, left : left + across]
        if augment.erase_fill == "mean":
            box.copy_(mean.expand_as(box))
        else:
            noise = draws[row : row + 1].words("erase-noise", box.numel()).astype(np.uint8)
            box.copy_(torch.as_tensor(noise).view_as(box))


def erased_box(height: int, width: int, numbers: Floats) -> tuple[int, int, int, int]:
    """Top, left, height and width of the box, cut to the picture."""
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * numbers[1])
    ratio = math.exp(math.log(RATIO[0]) + math.log(RATIO[1] / RATIO[0]) * numbers[2])
    down = min(max(round(math.sqrt(area * ratio)), 1), height)
    across = min(max(round(math.sqrt(area / ratio)), 1), width)
    return int(numbers[3] * (height - down + 1)), int(numbers[4] * (width - across + 1)), down, across


def soft_targets(targets: Tensor, num_classes: int) -> Tensor:
    """Targets that can be mixed: the shares of classes (B, classes), of labels or the values themselves, as floats."""
    if targets.ndim == 1:
        targets = torch.nn.functional.one_hot(targets, num_classes)
    return targets.to(torch.float32)


def without_label(labels: Any, num_classes: int) -> float:
    """The soft target of a picture that shows nothing: any class is as likely as the others; no label applies."""
    return 1 / num_classes if labels.ndim == 1 else 0.0


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


def neighbours(count: int) -> Integers:
    """1, 0, 3, 2, …; the last of an odd number is its own partner."""
    return np.minimum(np.arange(count) ^ 1, count - 1)


def _shares(augment: Augment, draws: Draws) -> tuple[Floats, Flags]:
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
    return number if alpha == 1 else np.asarray(betaincinv(alpha, alpha, number))


def _boxes(share: Floats, cut: Flags, draws: Draws, height: int, width: int) -> tuple[Tensor, Floats]:
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

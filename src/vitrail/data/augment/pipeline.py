"""The whole of an `Augment` spec on a batch of cropped pictures."""

import numpy as np
from torch import Tensor

from vitrail.data.augment.config import Augment
from vitrail.data.augment.erasing import erase
from vitrail.data.augment.ops import apply_ops, put, take
from vitrail.data.augment.policies import steps
from vitrail.data.preprocess import Preprocess
from vitrail.draws import Draws


def augment_batch(images: Tensor, spec: Preprocess, augment: Augment, draws: Draws) -> None:
    """Flip, apply the policy, jitter and erase bytes (B, C, H, W) in place."""
    for stream, rate, axis in (("flip", augment.flip_rate, 3), ("flip-down", augment.vertical_flip_rate, 2)):
        if rate > 0:
            rows = np.flatnonzero(draws.one(stream) < rate)
            put(images, rows, take(images, rows).flip(axis))
    for ops, values in steps(augment, draws, spec.size):
        apply_ops(images, ops, values)
    if augment.erase_rate > 0:
        erase(images, spec, augment, draws)

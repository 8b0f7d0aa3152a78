"""Random erasing (Zhong et al., 2020)."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.config import Augment
from vitrail.data.preprocess import Preprocess
from vitrail.draws import Draws

AREA = (0.02, 1 / 3)
RATIO = (0.3, 1 / 0.3)


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


def erased_box(height: int, width: int, numbers: np.ndarray[Any, Any]) -> tuple[int, int, int, int]:
    """Top, left, height and width of the box, cut to the picture."""
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * numbers[1])
    ratio = math.exp(math.log(RATIO[0]) + math.log(RATIO[1] / RATIO[0]) * numbers[2])
    down = min(max(round(math.sqrt(area * ratio)), 1), height)
    across = min(max(round(math.sqrt(area / ratio)), 1), width)
    return int(numbers[3] * (height - down + 1)), int(numbers[4] * (width - across + 1)), down, across

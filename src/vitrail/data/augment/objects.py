"""Objects to be pasted onto a ground: food, plants, insects, sea animals, clothes, tools, furniture, buildings, signs.

They are shaded drawings, 543 of the Fluent Emoji (`objects.txt` has their source and licence), without mammals, birds
and most vehicles, the usual classes of small data sets. At the size of thumbnails they look like photographs.
"""

from functools import cache
from importlib.resources import files

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitrail.rng import Draws, Floats

SIDE = 48  # of an object in the sheet
NUM_OBJECTS = 543
REACH = (0.45, 1.15)  # the side of the square that an object fills, as a share of the picture's shorter side
TILT = np.pi / 6
MOST_OFFSET = 0.35  # at most, from the centre, where the picture's shorter side reaches from -1 to 1


@cache
def sheet() -> Tensor:
    """Colours times opacity, and the opacity: (NUM_OBJECTS, 4, SIDE, SIDE), all in [0, 1]."""
    with files("vitrail.data.augment").joinpath("objects.webp").open("rb") as file, Image.open(file) as image:
        pixels = torch.as_tensor(np.array(image.convert("RGBA")), dtype=torch.float32) / 255
    tiles = pixels.unfold(0, SIDE, SIDE).unfold(1, SIDE, SIDE).flatten(0, 1)[:NUM_OBJECTS]
    tiles[:, :3] *= tiles[:, 3:]
    return tiles


def paste_objects(grounds: Tensor, draws: Draws) -> Tensor:
    """One object on each ground (n, C, H, W), numbers for [0, 255]: near the centre, tilted, recoloured."""
    channels, height, width = grounds.shape[1:]
    which, size, tilt, mirror, x, y, colour, gain, bias = draws.uniform("outlier-object", 9).T
    objects = sheet()[torch.as_tensor((which * NUM_OBJECTS).astype(np.int64))]
    colours, opacity = objects[:, :3], objects[:, 3:]
    grey = colours.mean(dim=1, keepdim=True).expand_as(colours)
    colours = torch.lerp(grey, colours, _each(np.minimum(1.2 * colour, 1)))
    colours = _each(0.6 + 0.5 * gain) * colours + _each(0.25 * (bias - 0.5)) * opacity
    if channels != 3:
        colours = colours.mean(dim=1, keepdim=True).expand(-1, channels, -1, -1)
    factor = 2 if max(height, width) <= SIDE else 1  # drawn twice as large, so that edges are smooth
    affine = _affine(size, tilt, mirror, np.stack([x, y], axis=1), np.array([width, height]))
    places = F.affine_grid(affine, [len(grounds), 1, factor * height, factor * width], align_corners=False)
    shown = F.grid_sample(torch.cat([colours, opacity], dim=1), places, align_corners=False)
    shown = F.avg_pool2d(shown, factor)
    return grounds * (1 - shown[:, -1:]) + 255 * shown[:, :-1]


def _affine(size: Floats, tilt: Floats, mirror: Floats, centre: Floats, sides: Floats) -> Tensor:
    """From places in pictures to places in objects, both from -1 to 1: (n, 2, 3)."""
    angle = TILT * (2 * tilt - 1)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])  # (2, 2, n)
    turn /= REACH[0] * (REACH[1] / REACH[0]) ** size
    turn[0] *= np.where(mirror < 0.5, -1, 1)
    turn = turn.transpose(2, 0, 1)
    offset = MOST_OFFSET * (2 * centre[..., None] - 1)  # (n, 2, 1)
    matrix = np.concatenate([turn * sides / sides.min(), -turn @ offset], axis=2)
    return torch.as_tensor(matrix, dtype=torch.float32)


def _each(numbers: Floats) -> Tensor:
    return torch.as_tensor(numbers, dtype=torch.float32).view(-1, 1, 1, 1)

"""Outliers: pictures of nothing that the model knows, on which it learns to be unsure.

Outlier exposure (Hendrycks et al., 2019) without a collection of other pictures. A collage is cut into leaves that lie
on each other ("dead leaves", Lee et al., 2001) or into a grid; each part shows a piece of one of two pictures: turned,
shrunk or enlarged, mirrored and recoloured; or one colour. It has the colours, textures and edges of photographs, but
shows no object. Other outliers are drawings of objects on a ground, pictures that are turned, or scrambled so that only
their spectrum is left, noise, and crops of the few photographs that come with scikit-learn and matplotlib.

Like mixup, an outlier is made of its sample and the neighbour in the epoch's order, whatever the batch.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitrail.data.augment.objects import paste_objects
from vitrail.data.augment.ops import take
from vitrail.data.augment.pipeline import neighbours
from vitrail.data.config import Augment
from vitrail.rng import Draws, Floats

KINDS = {
    "leaves": 0.2,
    "grid": 0.06,
    "photograph": 0.15,
    "object": 0.3,
    "turned": 0.2,
    "scrambled": 0.05,
    "noise": 0.04,
}  # kind → share
PARTS = 16  # of a collage: leaves, the first of which is the ground, or cells of a grid of up to 4 × 4
RADIUS = (0.2, 1.2)  # of leaves, where a picture reaches from -1 to 1
ZOOM = (0.5, 1.6)  # of the pieces in leaves
FOREIGN_RATE = 0.5  # of collages, that use a photograph in place of the neighbour
PAINTED_RATE = 0.1  # of collages, whose parts have one colour each
FLAT_RATE = 0.1  # the same of the parts of other collages
SOFT_RATE, PLAIN_RATE = 0.4, 0.15  # of the grounds of objects: a picture's colours in SOFT × SOFT cells, one colour
SOFT = 4
SMALL = 64  # pixels
SIZES = 6  # at which photographs are cropped
Names = np.ndarray[Any, np.dtype[np.str_]]


def pick_outliers(images: Tensor, augment: Augment, draws: Draws) -> tuple[Tensor, Tensor]:
    """Which samples become outliers (n,), and these (n, C, H, W), of pixels (B, C, H, W)."""
    rows = np.flatnonzero(draws.one("outlier") < augment.outlier_rate)
    if not len(rows):
        return torch.empty(0, dtype=torch.long), images[:0]
    others = take(images, neighbours(len(images))[rows])
    return torch.as_tensor(rows), make_outliers(
        take(images, rows), others, draws[rows], upright=not augment.vertical_flip_rate
    )


def make_outliers(images: Tensor, others: Tensor, draws: Draws, *, upright: bool = True) -> Tensor:
    """An outlier of each picture and another one: (n, C, H, W), all of them, bytes or floats in [0, 255].

    Where pictures need not be upright, none of them is an outlier because it is turned.
    """
    bounds = np.cumsum(list(KINDS.values()))
    kinds = np.array(list(KINDS))[np.searchsorted(bounds[:-1], draws.one("outlier-kind"), side="right")]
    if not upright:
        kinds = np.where(kinds == "turned", "leaves", kinds)
    made = crop_photographs(images, draws)
    rows = np.flatnonzero(np.isin(kinds, ("leaves", "grid", "photograph")))
    if len(rows):
        crops, whole = take(made, rows), kinds[rows] == "photograph"
        foreign = whole | (draws.one("outlier-foreign")[rows] < FOREIGN_RATE)
        first, second = (
            torch.where(torch.as_tensor(replaced).view(-1, 1, 1, 1), crops, take(some, rows))
            for some, replaced in ((images, whole), (others, foreign))
        )
        made[rows] = _collages(first, second, kinds[rows], draws[rows])
    rows = np.flatnonzero(kinds == "object")
    if len(rows):
        grounds = _grounds(take(made, rows), take(others, rows), draws[rows])
        made[rows] = _as(images, paste_objects(grounds, draws[rows]))
    turns = 1 + draws.choice("outlier-turns", 3)
    for row in np.flatnonzero(kinds == "turned"):
        made[row] = _turn(images[row], int(turns[row]))
    for row in np.flatnonzero(kinds == "scrambled"):
        made[row] = _as(images, scramble(images[row].float(), draws[row : row + 1]))
    for row in np.flatnonzero(kinds == "noise"):
        made[row] = _as(images, coloured_noise(tuple(images.shape[1:]), draws[row : row + 1]))
    return made


def _turn(image: Tensor, turns: int) -> Tensor:
    """By quarters of a circle; a picture that is not square, by two of them."""
    return image.rot90(turns if image.shape[1] == image.shape[2] else 2, (1, 2))


def _as(images: Tensor, changed: Tensor) -> Tensor:
    """Pixels of the kind that the pictures have."""
    changed = changed.clamp(0, 255)
    return changed if images.is_floating_point() else changed.round().to(images.dtype)


# Collages -----------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """How each part of each collage shows its picture: (n, PARTS) numbers each."""

    angle: Floats
    zoom: Floats
    mirror: Floats  # -1 or 1
    x: Floats  # the place of the picture that is at the centre of the collage
    y: Floats
    second: Floats  # 1: it shows the second picture
    gain: Floats  # of the contrast; 0 is one colour, below 0 a negative
    bias: Floats  # (n, PARTS, C), what is added to the colours, where black to white is 1


def _collages(first: Tensor, second: Tensor, kinds: Names, draws: Draws) -> Tensor:
    """Collages of pairs; small ones are drawn twice as large, so that their edges are smooth, as in photographs."""
    channels, height, width = first.shape[1:]
    factor = 2 if max(height, width) <= SMALL else 1
    index = parts_of(kinds, factor * height, factor * width, draws)  # (n, H, W)
    parts = _draw_parts(kinds, channels, draws)
    places = _places(parts, index)
    shown = [_sample(some, places) for some in (first, second)]
    made = torch.where(_spread(parts.second, index)[:, None] > 0, shown[1], shown[0])
    bias = torch.stack([_spread(parts.bias[..., channel], index) for channel in range(channels)], dim=1)
    made = (made - 127.5) * _spread(parts.gain, index)[:, None] + 127.5 + 255 * bias
    return _as(first, F.avg_pool2d(made.clamp_(0, 255), factor))


def _sample(images: Tensor, places: Tensor) -> Tensor:
    """What is at these places (n, H, W, 2) of pictures that are mirrored at their borders."""
    return F.grid_sample(images.float(), places, padding_mode="reflection", align_corners=False)


def parts_of(kinds: Names, height: int, width: int, draws: Draws) -> Tensor:
    """Which part of its collage each pixel belongs to: (n, H, W)."""
    y, x = _centres(height), _centres(width)
    cells = torch.as_tensor(2 + draws.choice("outlier-cells", 3), dtype=torch.float32).view(-1, 1)
    down, across = (((some + 1) / 2 * cells).long() for some in (y, x))
    index = down[:, :, None] * cells[..., None].long() + across[:, None]
    rows = np.flatnonzero(kinds == "leaves")
    if len(rows):
        numbers = draws[rows].uniform("outlier-leaves", 6 * PARTS).reshape(-1, 6, PARTS)
        index[rows] = _leaves(numbers, 3 + draws[rows].choice("outlier-count", PARTS - 2), y, x)
    index[kinds == "photograph"] = 0
    return index


def _centres(size: int) -> Tensor:
    """The centres of pixels along one side, from -1 to 1."""
    return torch.arange(size) * 2.0 / size + (1 / size - 1)


def _leaves(numbers: Floats, counts: Any, y: Tensor, x: Tensor) -> Tensor:  # (n, 6, PARTS), (n,) → (n, H, W)
    """Ellipses and rectangles that fall on each other, few of them large and many small."""
    low, high = RADIUS
    radius = low * high / (high - numbers[:, 2] * (high - low))  # a density of radius⁻²
    stretch, angle = 2 ** (2 * numbers[:, 3] - 1), np.pi * numbers[:, 4]
    radii = np.stack([radius * stretch, radius / stretch])
    across, down = np.stack([np.cos(angle), -np.sin(angle)]) / radii, np.stack([np.sin(angle), np.cos(angle)]) / radii
    offsets = -across * (2 * numbers[:, 0] - 1) - down * (2 * numbers[:, 1] - 1)
    terms = torch.as_tensor(np.stack([across, down, offsets]), dtype=torch.float32)[..., None, None]
    round_ = torch.as_tensor(numbers[:, 5] < 0.5)[..., None, None]
    there = torch.as_tensor(np.arange(PARTS) < counts[:, None])[..., None, None]
    index = torch.zeros(len(numbers), len(y), len(x), dtype=torch.long)
    for leaf in range(1, PARTS):  # one after another, which stays in the cache
        right, below, start = terms[:, :, :, leaf]  # (2, n, 1, 1) each
        first, second = (right * x + (below * y[:, None] + start)).square_()  # (n, H, W) each
        inside = torch.where(round_[:, leaf], first + second, torch.maximum(first, second)) < 1
        index.masked_fill_(inside & there[:, leaf], leaf)
    return index


def _draw_parts(kinds: Names, channels: int, draws: Draws) -> Parts:
    numbers = draws.uniform("outlier-parts", (9 + channels) * PARTS).reshape(len(draws), 9 + channels, PARTS)
    angle, zoom, mirror, x, y, second, contrast, flat, tint = (numbers[:, place] for place in range(9))
    grid, whole = ((kinds == name)[:, None] for name in ("grid", "photograph"))
    painted = draws.one("outlier-painted")[:, None] < PAINTED_RATE
    plain = (painted | (flat < FLAT_RATE)) & ~whole
    strength = np.where(plain, 1.0, 0.4 * (tint < 0.3))
    return Parts(
        angle=np.where(grid, np.pi / 2 * np.floor(4 * angle), 2 * np.pi * angle) * ~whole,
        zoom=np.where(grid, 1.0, ZOOM[0] * (ZOOM[1] / ZOOM[0]) ** zoom),
        mirror=np.where(mirror < 0.5, -1.0, 1.0),
        x=(2 * x - 1) * ~whole,
        y=(2 * y - 1) * ~whole,
        second=np.where(second < 0.5, 1.0, 0.0),
        gain=np.where(plain, 0.0, np.where(contrast < 0.7, 1.0, 2.4 * contrast - 1.4)),
        bias=(np.moveaxis(numbers[:, 9:], 1, 2) - 0.5) * strength[..., None],
    )


def _places(parts: Parts, index: Tensor) -> Tensor:
    """The place in its picture that each pixel of a collage shows: (n, H, W, 2)."""
    y, x = _centres(index.shape[1])[:, None], _centres(index.shape[2])
    cosine, sine = (_spread(turn(parts.angle) / parts.zoom, index) for turn in (np.cos, np.sin))
    right = (x * cosine - y * sine) * _spread(parts.mirror, index) + _spread(parts.x, index)
    return torch.stack([right, x * sine + y * cosine + _spread(parts.y, index)], dim=-1)


def _spread(values: Floats, index: Tensor) -> Tensor:  # (n, PARTS), (n, H, W) → (n, H, W)
    """The number of each pixel's part."""
    numbers = torch.as_tensor(values, dtype=torch.float32)
    return numbers.gather(1, index.flatten(1)).view(index.shape)


# Objects ------------------------------------------------------------------------------------------------------------


def _grounds(crops: Tensor, others: Tensor, draws: Draws) -> Tensor:
    """What objects lie on: crops of photographs, the soft colours of another picture, or one colour."""
    kind, *colour = draws.uniform("outlier-ground", 1 + crops.shape[1]).T
    size = crops.shape[2:]
    soft = F.interpolate(F.adaptive_avg_pool2d(others.float(), SOFT), size, mode="bilinear", align_corners=False)
    plain = 255 * torch.as_tensor(np.stack(colour, axis=1), dtype=torch.float32)[..., None, None].expand(crops.shape)
    grounds = torch.where(torch.as_tensor(kind < SOFT_RATE).view(-1, 1, 1, 1), soft, crops.float())
    return torch.where(torch.as_tensor(kind > 1 - PLAIN_RATE).view(-1, 1, 1, 1), plain, grounds)


# Others -------------------------------------------------------------------------------------------------------------


def scramble(image: Tensor, draws: Draws) -> Tensor:  # (C, H, W)
    """The same spectrum in each channel, with the phases of noise added: textures and colours without shapes."""
    height, width = image.shape[-2:]
    noise = np.fft.fft2(draws.uniform("outlier-noise", height * width).reshape(height, width) - 0.5)
    phases = noise / np.maximum(np.abs(noise), 1e-12)
    phases[0, 0] = 1  # the mean colour stays
    return torch.as_tensor(np.fft.ifft2(np.fft.fft2(image.numpy()) * phases).real, dtype=torch.float32)


def coloured_noise(shape: tuple[int, ...], draws: Draws) -> Tensor:  # (C, H, W)
    """From white noise to soft clouds: amplitudes that fall with the frequency, from not at all to its square."""
    _, height, width = shape
    (steepness, contrast, brightness) = draws.uniform("outlier-noise-kind", 3)[0]
    white = draws.uniform("outlier-noise-pixels", int(np.prod(shape))).reshape(shape) - 0.5
    frequency = np.hypot(np.fft.fftfreq(height)[:, None] * height, np.fft.fftfreq(width) * width)
    falling = np.maximum(frequency, 1.0) ** (-2 * steepness)
    noise = np.fft.ifft2(np.fft.fft2(white) * falling).real
    noise *= (20 + 80 * contrast) / max(float(noise.std()), 1e-9)
    return torch.as_tensor(noise + 64 + 127 * brightness, dtype=torch.float32)


@cache
def photographs(channels: int, height: int, width: int) -> tuple[Tensor, ...]:
    """The few photographs that there are, at several sizes, from that of a crop up: bytes (C, H, W)."""
    from matplotlib.cbook import get_sample_data  # both are slow to load, and most runs need neither
    from sklearn.datasets import load_sample_images

    portrait = np.asarray(Image.open(get_sample_data("grace_hopper.jpg", asfileobj=False)))
    sizes: list[Tensor] = []
    for image in (*load_sample_images().images, portrait):
        pixels = torch.as_tensor(np.array(image)).permute(2, 0, 1)[None]
        if channels != 3:
            pixels = pixels.float().mean(dim=1, keepdim=True).round().to(torch.uint8).expand(-1, channels, -1, -1)
        least = max(height / pixels.shape[2], width / pixels.shape[3])
        for factor in np.geomspace(least, max(1.0, 2 * least), SIZES):
            shape = [max(round(pixels.shape[2] * factor), height), max(round(pixels.shape[3] * factor), width)]
            sizes.append(F.interpolate(pixels, shape, mode="bilinear", antialias=True)[0])
    return tuple(sizes)


def crop_photographs(images: Tensor, draws: Draws) -> Tensor:
    """Random crops of photographs, as many and as large as the pictures."""
    channels, height, width = images.shape[1:]
    known = photographs(channels, height, width)
    crops = torch.empty_like(images)
    for row, (which, down, across, mirror) in enumerate(draws.uniform("outlier-crop", 4)):
        picture = known[int(which * len(known))]
        top, left = int(down * (picture.shape[1] - height + 1)), int(across * (picture.shape[2] - width + 1))
        crop = picture[:, top : top + height, left : left + width]
        crops[row] = crop.flip(2) if mirror < 0.5 else crop
    return crops

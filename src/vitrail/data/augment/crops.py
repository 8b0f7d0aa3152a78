"""Random crops: of one encoded picture, decoding no more pixels than needed, and of a batch in memory."""

import math
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.config import Augment
from vitrail.data.pixels import Picture, decode, fetched, opened, orientation, read_raster
from vitrail.data.preprocess import Preprocess
from vitrail.data.rasters import to_pixels
from vitrail.data.transform import pixels, resize, to_tensor
from vitrail.rng import Draws, Floats

TRIES = 10  # as torchvision does before it falls back to the centre
Box = tuple[int, int, int, int]  # top, left, height, width


def resized_crop_box(height: int, width: int, augment: Augment, numbers: Floats) -> Box:
    """RandomResizedCrop's box (Szegedy et al., 2015) from the sample's 2 × TRIES + 2 numbers."""
    low, high = augment.scale
    log_low, log_high = math.log(augment.ratio[0]), math.log(augment.ratio[1])
    for attempt in range(TRIES):
        area = height * width * (low + (high - low) * numbers[2 * attempt])
        ratio = math.exp(log_low + (log_high - log_low) * numbers[2 * attempt + 1])
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(numbers[-2] * (height - crop_height + 1))
            left = int(numbers[-1] * (width - crop_width + 1))
            return top, left, crop_height, crop_width
    ratio = min(max(width / height, augment.ratio[0]), augment.ratio[1])
    crop_width = min(width, max(round(height * ratio), 1))
    crop_height = min(height, max(round(width / ratio), 1))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def resized_crop_numbers(draws: Draws) -> Floats:
    """What `resized_crop_box` needs for each sample, (B, 2 × TRIES + 2)."""
    return draws.uniform("resized-crop", 2 * TRIES + 2)


def crop_picture(picture: Picture, spec: Preprocess, augment: Augment, numbers: Floats, name: str) -> Tensor:
    """A resized random crop of one picture: (C, H, W) of the spec's size, bytes or floats as of `pixels`."""
    if isinstance(picture, np.ndarray | Tensor) or spec.value_range is not None or spec.channels not in (1, 3):
        return crop_tensor(pixels(picture, spec, name), spec, augment, numbers)
    picture = fetched(picture)
    if (raster := read_raster(picture, name, spec.channels)) is not None:
        return crop_tensor(torch.as_tensor(to_pixels(raster, spec, name)), spec, augment, numbers)
    with opened(picture, name) as image:
        turned = spec.orient and orientation(image) != 1
        if image.format == "JPEG" and not turned:
            width, height = image.size
            top, left, down, across = resized_crop_box(height, width, augment, numbers)
            shrink_jpeg(image, min(down / spec.size[0], across / spec.size[1]), "L" if spec.channels == 1 else "RGB")
            image = decode(image, spec, name)
            x, y = image.width / width, image.height / height
            box = (round(left * x), round(top * y), round((left + across) * x), round((top + down) * y))
        else:
            image = decode(image, spec, name)
            top, left, down, across = resized_crop_box(image.height, image.width, augment, numbers)
            box = (left, top, left + across, top + down)
        return resize(to_tensor(image.crop(box))[None], spec, *spec.size)[0]


def shrink_jpeg(image: Image.Image, factor: float, mode: str) -> None:
    """Let the JPEG decoder shrink by the largest of 2, 4, 8 that leaves `factor` at 1 or above; no other format can."""
    power = min(8, 2 ** int(math.log2(max(factor, 1))))
    if power > 1:
        image.draft(mode, (max(image.width // power, 1), max(image.height // power, 1)))


def crop_tensor(image: Tensor, spec: Preprocess, augment: Augment, numbers: Floats) -> Tensor:
    """A resized random crop of one picture in memory, (C, H, W)."""
    top, left, height, width = resized_crop_box(image.shape[-2], image.shape[-1], augment, numbers)
    return resize(image[None, :, top : top + height, left : left + width], spec, *spec.size)[0]


def fit_for_shift(images: Tensor, spec: Preprocess) -> Tensor:
    """What `shift_batch` crops from: whole pictures, resized to cover the spec's size (B, C, h, w)."""
    whole = replace(spec, crop=1.0, resize_to=None)
    return resize(images, spec, *whole.resized(images.shape[-2], images.shape[-1]))


def shift_batch(images: Tensor, spec: Preprocess, augment: Augment, draws: Draws) -> Tensor:
    """Pixels (B, C, h, w), at least of the spec's size → a crop of each, moved at random within a border."""
    height, width = spec.size
    if augment.pad_fill == "reflect":
        border = ((0, 0), (0, 0), (augment.pad, augment.pad), (augment.pad, augment.pad))
        padded = np.pad(images.numpy(), border, mode="reflect")
    else:
        batch, channels, inner_height, inner_width = images.shape
        shape = (batch, channels, inner_height + 2 * augment.pad, inner_width + 2 * augment.pad)
        padded = np.zeros(shape, dtype=images.numpy().dtype)
        padded[:, :, augment.pad : augment.pad + inner_height, augment.pad : augment.pad + inner_width] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    down, across = draws.uniform("shift", 2).T
    top = (down * windows.shape[2]).astype(np.int64)
    left = (across * windows.shape[3]).astype(np.int64)
    return torch.as_tensor(windows[np.arange(len(padded)), :, top, left])  # (B, C, H, W)

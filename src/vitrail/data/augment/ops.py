"""The pixel operations of the policies, batched over pixels (B, C, H, W), each sample with its own strength.

Grey levels, blends and tables follow Pillow's arithmetic, which the policies' authors used. Products and sums are
separate steps and sums over pixels are integers, so a sample's result does not depend on the batch around it. Pictures
of more than 8 bits are floats in [0, 255]: the same formulas without the rounding.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.pixels import Array

Kernel = Callable[[Tensor, Tensor], Tensor]


WARPS = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
BLUR_RADIUS = 6  # three times the largest sigma, 2


def apply_ops(images: Tensor, ops: Array, values: Array) -> None:
    """Change each sample in place by its operation (a name of `KERNELS` or `WARPS`, "" for none) and its strength."""
    warped = np.flatnonzero(np.isin(ops, WARPS))
    if len(warped):
        maps = _inverse_maps(ops[warped], values[warped], *images.shape[-2:])
        put(images, warped, warp(take(images, warped), maps))
    for name, kernel in KERNELS.items():
        chosen = np.flatnonzero(ops == name)
        if len(chosen):
            strength = torch.as_tensor(values[chosen], dtype=torch.float32).view(-1, 1, 1, 1)
            put(images, chosen, kernel(take(images, chosen), strength))


def take(images: Tensor, rows: Array) -> Tensor:
    """A copy of some samples; `images[rows]` would copy byte by byte."""
    return images.index_select(0, torch.as_tensor(rows))


def put(images: Tensor, rows: Array, changed: Tensor) -> None:
    """Write samples back; numpy copies them whole."""
    images.numpy()[rows] = changed.numpy()


def _inverse_maps(ops: Array, values: Array, height: int, width: int) -> Array:
    """Output pixel → source pixel, in coordinates from the centre: (B, 2, 3)."""
    maps = np.zeros((len(ops), 2, 3))
    maps[:, 0, 0] = maps[:, 1, 1] = 1
    for name in np.unique(ops):
        rows = np.flatnonzero(ops == name)
        some = values[rows]
        if name == "shear_x":
            maps[rows, 0, 1], maps[rows, 0, 2] = some, some * height / 2
        elif name == "shear_y":
            maps[rows, 1, 0], maps[rows, 1, 2] = some, some * width / 2
        elif name == "translate_x":
            maps[rows, 0, 2] = -np.trunc(some)
        elif name == "translate_y":
            maps[rows, 1, 2] = -np.trunc(some)
        else:
            angle = np.deg2rad(some)
            maps[rows, 0, 0], maps[rows, 0, 1] = np.cos(angle), -np.sin(angle)
            maps[rows, 1, 0], maps[rows, 1, 1] = np.sin(angle), np.cos(angle)
    return maps


def warp(images: Tensor, maps: Array) -> Tensor:
    """Nearest-neighbour affine maps, black outside."""
    batch, channels, height, width = images.shape
    matrix = torch.as_tensor(maps, dtype=torch.float32)[..., None]  # (B, 2, 3, 1)
    x = (torch.arange(width) - (width - 1) / 2).repeat(height)  # (H·W,)
    y = (torch.arange(height) - (height - 1) / 2).repeat_interleave(width)
    column = (matrix[:, 0, 0] * x).add_(matrix[:, 0, 1] * y).add_(matrix[:, 0, 2] + (width - 1) / 2).round_()
    row = (matrix[:, 1, 0] * x).add_(matrix[:, 1, 1] * y).add_(matrix[:, 1, 2] + (height - 1) / 2).round_()
    outside = (column < 0).logical_or_(column > width - 1).logical_or_(row < 0).logical_or_(row > height - 1)
    row.clamp_(0, height - 1).mul_(width).add_(column.clamp_(0, width - 1))
    offsets = row.long()  # (B, H·W), exact below 2²⁴
    pixels = images.flatten(2).gather(2, offsets[:, None].expand(-1, channels, -1))
    return pixels.masked_fill_(outside[:, None], 0).view(batch, channels, height, width)


def grey(images: Tensor) -> Tensor:
    """Luma (B, 1, H, W), as integers for bytes, by Pillow's ITU-R 601 weights; one channel is its own, of other numbers
    it is the mean."""
    if images.shape[1] != 3:
        mean = images.to(torch.float32).mean(1, keepdim=True)
        return mean if images.is_floating_point() else mean.round().to(torch.int32)
    if images.is_floating_point():
        red, green, blue = images.unbind(1)
        return ((red * 19595 + green * 38470 + blue * 7471) / 65536)[:, None]
    red, green, blue = images.to(torch.int32).unbind(1)
    return ((red * 19595).add_(green * 38470).add_(blue * 7471).add_(0x8000) >> 16)[:, None]


def _blend(images: Tensor, towards: Tensor, factor: Tensor) -> Tensor:
    """`towards` where the factor is 0, the picture where it is 1, beyond it above."""
    base = towards.to(torch.float32)
    return (images - base).mul_(factor).add_(base).clamp_(0, 255).to(images.dtype)


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    if images.is_floating_point():
        return _blend(images, grey(images).double().mean((1, 2, 3), keepdim=True), factor)
    pixels = images.shape[-2] * images.shape[-1]
    mean = (2 * grey(images).sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)  # rounded
    return _blend(images, mean, factor)


def _sharpness(images: Tensor, factor: Tensor) -> Tensor:
    if min(images.shape[-2:]) < 3:
        return images
    whole = images if images.is_floating_point() else images.to(torch.int32)
    rows = whole[:, :, :-2] + whole[:, :, 1:-1] + whole[:, :, 2:]  # (B, C, H - 2, W)
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * whole[:, :, 1:-1, 1:-1]
    smooth = whole.clone()
    smooth[:, :, 1:-1, 1:-1] = (
        total / 13 if images.is_floating_point() else (2 * total + 13) // 26
    )  # Pillow's SMOOTH: weights 1 and 5 over 13, the border as it is
    return _blend(images, smooth, factor)


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    if images.is_floating_point():
        return torch.where(high > low, (images - low) * 255 / (high - low), images)
    low, high = low.int(), high.int()
    stretched = (images - low) * 255 // (high - low).clamp(min=1)
    return torch.where(high > low, stretched, images).to(torch.uint8)


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    levels = images.flatten(2).long()  # (B, C, H·W); floats are counted by their whole part
    counts = torch.zeros(*levels.shape[:2], 256, dtype=torch.long).scatter_add_(2, levels, torch.ones_like(levels))
    last = counts.gather(2, levels.amax(2, keepdim=True))  # of the brightest level that occurs
    step = (levels.shape[2] - last) // 255
    table = (counts.cumsum(2) - counts + step // 2) // step.clamp(min=1)
    table = torch.where(step > 0, table.clamp(max=255), torch.arange(256))
    if images.is_floating_point():  # between two levels, between their new ones
        here, above = table.float().gather(2, levels), table.float().gather(2, (levels + 1).clamp(max=255))
        return (here + (above - here) * (images.flatten(2) - levels)).view_as(images)
    return table.to(torch.uint8).gather(2, levels).view_as(images)


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    batch, channels, height, width = images.shape
    offsets = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1)
    weights = torch.exp(-0.5 * (offsets / sigma.view(-1, 1)) ** 2)  # (B, taps)
    weights = weights / weights.sum(1, keepdim=True)
    padded = F.pad(images.to(torch.float32), (BLUR_RADIUS,) * 4, mode="replicate")
    rows = torch.zeros(batch, channels, height + 2 * BLUR_RADIUS, width)
    for tap in range(len(offsets)):
        rows += padded[..., tap : tap + width] * weights[:, tap].view(-1, 1, 1, 1)
    total = torch.zeros(batch, channels, height, width)
    for tap in range(len(offsets)):
        total += rows[:, :, tap : tap + height] * weights[:, tap].view(-1, 1, 1, 1)
    return total if images.is_floating_point() else total.round_().clamp_(0, 255).to(torch.uint8)


def _hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by `shift` of a full circle."""
    if images.shape[1] != 3:
        return images
    rgb = images.to(torch.float32) / 255
    value, largest = rgb.max(1)  # (B, H, W)
    chroma = value - rgb.amin(1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    red, green, blue = rgb.unbind(1)
    sectors = torch.stack(((green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe))
    hue = sectors.gather(0, largest[None])[0] + 6 * shift.view(-1, 1, 1)
    result = [value - chroma * _ramp(hue, offset) for offset in (5, 3, 1)]
    turned = torch.stack(result, 1) * 255
    return turned.clamp_(0, 255) if images.is_floating_point() else turned.round_().clamp_(0, 255).to(torch.uint8)


def _posterize(images: Tensor, bits: Tensor) -> Tensor:
    step = 2 ** (8 - bits.to(torch.int32))
    return (images / step).floor() * step if images.is_floating_point() else images & (256 - step).to(torch.uint8)


def _ramp(hue: Tensor, offset: int) -> Tensor:
    position = (hue + offset) % 6
    return torch.minimum(position, 4 - position).clamp(0, 1)


KERNELS: dict[str, Kernel] = {
    "brightness": lambda images, factor: (images * factor).clamp_(0, 255).to(images.dtype),
    "saturation": lambda images, factor: _blend(images, grey(images), factor) if images.shape[1] == 3 else images,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "posterize": _posterize,
    "solarize": lambda images, threshold: torch.where(images >= threshold, 255 - images, images),
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": lambda images, _: 255 - images,
    "grayscale": lambda images, _: grey(images).to(images.dtype).expand_as(images) if images.shape[1] == 3 else images,
    "blur": _blur,
    "hue": _hue,
}

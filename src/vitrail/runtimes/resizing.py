"""Resizing inside an exported graph: two matrix products whose matrices are made from the picture's size.

ONNX's own Resize rounds, widens its filters and places its corners in other ways than Pillow or torch. Written with
plain operations, the graph gives the same pixels as `data/pixels.py` up to the last bit of a byte, in every runtime,
for pictures of any size; the crop is part of the matrices, so that nothing outside it is computed.
"""

import math

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError

# Interpolation → how far its filter reaches, in pixels of the smaller picture.
REACH = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}


def check_resizable(spec: Preprocess) -> None:
    """Raise for what the graph cannot do."""
    if spec.interpolation not in REACH:
        raise ConfigError(
            f"the preprocessing can be exported for {', '.join(REACH)}; this model's interpolation is "
            f"{spec.interpolation!r}: export without the preprocessing."
        )
    if spec.channels != 3:
        raise ConfigError(
            f"the preprocessing can be exported for RGB pictures; this model has {spec.channels} channels."
        )


def prepare_in_graph(pictures: Tensor, spec: Preprocess) -> Tensor:
    """Bytes (B, H, W, 3) of any size → what the model sees (B, 3, height, width)."""
    height, width = (torch.scalar_tensor(side, dtype=torch.int64) for side in pictures.shape[1:3])
    pixels = pictures.permute(0, 3, 1, 2).to(torch.float32)  # (B, 3, H, W)
    resized_height, resized_width = _resized(height, width, spec)
    columns = _matrix(width, resized_width, spec.size[1], pictures.shape[2], spec)  # (width, W)
    rows = _matrix(height, resized_height, spec.size[0], pictures.shape[1], spec)  # (height, H)
    pixels = _rounded(pixels @ columns.mT, spec)
    pixels = _rounded(rows @ pixels, spec).clamp(0, 255)  # bicubic filters overshoot
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (spec.mean, spec.std))
    return pixels * (1 / (255 * std)) - mean / std


def _resized(height: Tensor, width: Tensor, spec: Preprocess) -> tuple[Tensor, Tensor]:
    """`Preprocess.resized`, on whole numbers in the graph."""
    target = (math.floor(spec.size[0] / spec.crop), math.floor(spec.size[1] / spec.crop))
    if spec.resize == "squash":
        return torch.tensor(target[0]), torch.tensor(target[1])
    if spec.resize_to is not None:
        target = (spec.resize_to, spec.resize_to)
    if target[0] == target[1]:
        short = torch.minimum(height, width)
        return target[0] * height // short, target[0] * width // short
    scale = torch.minimum(height.double() / target[0], width.double() / target[1])
    return (height.double() / scale).round().to(torch.int64), (width.double() / scale).round().to(torch.int64)


def _matrix(side: Tensor, resized: Tensor, size: int, length: int, spec: Preprocess) -> Tensor:
    """What each of the `size` pixels that the crop keeps takes of each pixel of the picture's side: (size, side)."""
    margin = resized - size
    corner = margin // 2 if spec.anchor == "floor" else (margin.float() / 2).round().to(torch.int64)
    scale = side.float() / resized.float()
    center = (torch.arange(size) + corner + 0.5) * scale  # in pixels of the picture
    wide = torch.clamp(scale, min=1.0) if spec.antialias else torch.ones_like(scale)
    distance = (torch.arange(length) + 0.5 - center[:, None]) / wide
    if spec.antialias:
        weights = _filter(distance, spec.interpolation, -0.5)
        return weights / weights.sum(dim=1, keepdim=True)
    return _without_antialias(center, length, spec.interpolation)


def _without_antialias(center: Tensor, length: int, interpolation: str) -> Tensor:
    """torch's plain interpolation: pixels beyond the edge count as the edge's own."""
    reach = math.ceil(REACH[interpolation])
    first = (center - 0.5).floor()
    pixels = torch.arange(length)
    weights = torch.zeros(center.shape[0], 1)
    for offset in range(1 - reach, reach + 1):
        place = first + offset
        weight = _filter(place + 0.5 - center, interpolation, -0.75)
        weights = weights + weight[:, None] * (pixels == place.clamp(0, length - 1)[:, None])
    return weights


def _filter(distance: Tensor, interpolation: str, sharpness: float) -> Tensor:
    x = distance.abs()
    if interpolation == "bilinear":
        return (1 - x).clamp(min=0)
    if interpolation == "bicubic":
        a = sharpness
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
    return torch.where(x < 3, torch.sinc(distance) * torch.sinc(distance / 3), torch.zeros_like(x))


def _rounded(pixels: Tensor, spec: Preprocess) -> Tensor:
    """Pillow, and torch on bytes, make bytes after each direction; floats stay as they are."""
    return pixels if spec.kernel == "float" else (pixels + 0.5).floor().clamp(0, 255)

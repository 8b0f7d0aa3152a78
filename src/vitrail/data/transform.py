"""Carrying out a `Preprocess` spec with torch: any picture → the tensor that the model sees."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitrail.data.pixels import (
    RESAMPLING,
    Picture,
    decode_picture,
    fit_pillow,
    normalize_array,
    sixteen_to_eight,
    to_array,
)
from vitrail.data.preprocess import Preprocess
from vitrail.errors import InputError

PIXELS = "pixels must be bytes, 16-bit or floats in [0, 1]"


def prepare(picture: Picture, spec: Preprocess) -> Tensor:
    """What the model sees of one picture: (C, H, W), float, normalised."""
    return normalize(fit(picture, spec), spec)


def fit(picture: Picture, spec: Preprocess, name: str = "picture") -> Tensor:
    """Decode, resize and crop: (C, H, W), bytes (or floats in [0, 255] when the spec's kernel is float)."""
    if spec.kernel == "pillow" and not isinstance(picture, np.ndarray | Tensor):
        return torch.as_tensor(fit_pillow(decode_picture(picture, spec, name), spec))
    return fit_tensor(pixels(picture, spec, name), spec)


def pixels(picture: Picture, spec: Preprocess, name: str = "picture") -> Tensor:
    """All the pixels of any picture in the spec's channels, not resized: bytes (C, H, W)."""
    if isinstance(picture, np.ndarray | Tensor):
        return as_bytes(picture, spec, name)
    return to_tensor(decode_picture(picture, spec, name))


def normalize(images: Tensor, spec: Preprocess, out: Tensor | None = None) -> Tensor:
    """(…, C, H, W) in [0, 255] → float32, minus the mean, over the standard deviation; into `out` if given."""
    out = torch.empty(images.shape) if out is None else out
    normalize_array(images.numpy(), spec, out.numpy())
    return out


def denormalize(images: Tensor, spec: Preprocess) -> Tensor:
    """The inverse of `normalize`, as bytes that can be shown."""
    mean = torch.tensor(spec.mean, device=images.device).view(-1, 1, 1)
    std = torch.tensor(spec.std, device=images.device).view(-1, 1, 1)
    return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


def to_tensor(image: Image.Image) -> Tensor:
    """A PIL picture of mode L or RGB as bytes (C, H, W)."""
    return torch.as_tensor(to_array(image))


def to_pil(pixels: Tensor) -> Image.Image:
    """Bytes (C, H, W), one channel or three, as a PIL picture."""
    return Image.fromarray((pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)).contiguous().numpy())


def fit_tensor(images: Tensor, spec: Preprocess) -> Tensor:
    """Resize and crop bytes (…, C, H, W) with the spec's kernel."""
    spec.resized(*images.shape[-2:])  # refuses what is too narrow
    height, width = spec.middle(*images.shape[-2:])
    top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
    images = images[..., top : top + height, left : left + width]
    height, width = spec.resized(height, width)
    batch = images.reshape(-1, *images.shape[-3:])  # (B, C, H, W)
    images = resize(batch, spec, height, width).reshape(*images.shape[:-2], height, width)
    top, left = spec.corner(height, width)
    return images[..., top : top + spec.size[0], left : left + spec.size[1]]


def resize(batch: Tensor, spec: Preprocess, height: int, width: int) -> Tensor:
    """Bytes (B, C, h, w) → (B, C, height, width) with the spec's kernel and interpolation."""
    if batch.shape[-2:] == (height, width):
        return batch
    if spec.kernel == "pillow":
        return _resize_pillow(batch, spec, height, width)
    batch = batch.to(torch.float32) if spec.kernel == "float" else batch
    if spec.interpolation in ("nearest", "nearest_exact"):
        return F.interpolate(batch, (height, width), mode=spec.interpolation.replace("_", "-"))
    resized = F.interpolate(batch, (height, width), mode=spec.interpolation, antialias=spec.antialias)
    return resized.clamp(0, 255) if spec.interpolation == "bicubic" else resized


def _resize_pillow(batch: Tensor, spec: Preprocess, height: int, width: int) -> Tensor:
    planes = [Image.fromarray(plane.numpy()) for plane in batch.flatten(0, 1)]
    resized = [np.array(plane.resize((width, height), RESAMPLING[spec.interpolation])) for plane in planes]
    return torch.as_tensor(np.stack(resized)).view(*batch.shape[:2], height, width)


def as_bytes(picture: np.ndarray[Any, Any] | Tensor, spec: Preprocess, name: str = "picture") -> Tensor:
    """An array (H, W[, C]) or tensor ([C,] H, W) as bytes (C, H, W) with the spec's channels."""
    kind = "array (H, W) or (H, W, C)" if isinstance(picture, np.ndarray) else "tensor (H, W) or (C, H, W)"
    if picture.ndim not in (2, 3) or 0 in picture.shape:
        raise InputError(f"{name}: must be an {kind} with pixels; got shape {tuple(picture.shape)}.")
    if isinstance(picture, np.ndarray):
        pixels = torch.as_tensor(_array_bytes(picture, name))
        pixels = pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    else:
        pixels = _tensor_bytes(picture.detach().cpu(), name)
        pixels = pixels if pixels.ndim == 3 else pixels[None]
    if pixels.shape[0] == 1 and spec.channels == 3:
        return pixels.expand(3, -1, -1)
    if pixels.shape[0] != spec.channels:
        raise InputError(f"{name}: must have {spec.channels} channels as an {kind}; got shape {tuple(picture.shape)}.")
    return pixels


def _array_bytes(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array) if array.flags.writeable else array.copy()
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:  # in either byte order
        return sixteen_to_eight(array)
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise InputError(f"{name}: {PIXELS}; got {array.dtype}.")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return _tensor_bytes(torch.as_tensor(np.ascontiguousarray(array)), name).numpy()


def _tensor_bytes(tensor: Tensor, name: str) -> Tensor:
    if tensor.dtype == torch.uint8:
        return tensor
    if tensor.dtype == torch.uint16:
        return torch.as_tensor(sixteen_to_eight(tensor.numpy()))
    if not tensor.is_floating_point():
        raise InputError(f"{name}: {PIXELS}; got {tensor.dtype}.")
    low, high = tensor.min().item(), tensor.max().item()
    if not (low >= 0 and high <= 1):  # also refuses NaN
        raise InputError(f"{name}: float pixels must be in [0, 1]; got {low:.3g} to {high:.3g}.")
    return (tensor * 255).round().to(torch.uint8)

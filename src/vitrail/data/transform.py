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
    fetched,
    fit_array,
    normalize_array,
    read_raster,
    to_array,
)
from vitrail.data.preprocess import Preprocess, Range
from vitrail.data.rasters import Raster, refuse_depth, scale, to_look_at
from vitrail.errors import InputError

_COLOR = Preprocess()


def prepare(picture: Picture, spec: Preprocess) -> Tensor:
    """What the model sees of one picture: (C, H, W), float, normalised."""
    return normalize(fit(picture, spec), spec)


def fit(picture: Picture, spec: Preprocess, name: str = "picture") -> Tensor:
    """Decode, resize and crop: (C, H, W), bytes (or floats in [0, 255] when the spec's kernel is float, or it has a
    range)."""
    if spec.kernel == "pillow" and not isinstance(picture, np.ndarray | Tensor):
        return torch.as_tensor(fit_array(picture, spec, name))
    fitted = fit_tensor(pixels(picture, spec, name), spec)
    return fitted if spec.value_range is None else fitted.to(torch.float32)


def pixels(picture: Picture, spec: Preprocess, name: str = "picture") -> Tensor:
    """All the pixels of any picture in the spec's channels, not resized, (C, H, W): bytes, or floats in [0, 255] if it
    is deeper."""
    if isinstance(picture, np.ndarray | Tensor):
        return as_pixels(picture, spec, name)
    decoded = decode_picture(picture, spec, name)
    return to_tensor(decoded) if isinstance(decoded, Image.Image) else torch.as_tensor(decoded)


def look_at_picture(picture: Picture, value_range: Range | None = None, name: str = "picture") -> Image.Image:
    """What a person sees of any picture: grey or RGB, the first three of more channels; without a range, what is deeper
    than 8 bits is shown from its lowest value to its highest."""
    if isinstance(picture, np.ndarray | Tensor):
        raster: Raster | None = as_raster(picture)
    else:
        picture = fetched(picture)
        raster = read_raster(picture, name)
    return to_pil(pixels(picture, _COLOR, name)) if raster is None else look_at_raster(raster, value_range)


def look_at_raster(raster: Raster, value_range: Range | None = None) -> Image.Image:
    """The same for the values of a picture."""
    return to_pil(torch.as_tensor(to_look_at(raster, value_range)))


def normalize(images: Tensor, spec: Preprocess, out: Tensor | None = None) -> Tensor:
    """(…, C, H, W) in [0, 255] → float32, minus the mean, over the standard deviation; into `out` if given."""
    out = torch.empty(images.shape) if out is None else out
    normalize_array(images.numpy(), spec, out.numpy())
    return out


def denormalize(images: Tensor, spec: Preprocess) -> Tensor:
    """The inverse of `normalize`, as bytes that can be shown."""
    return restore_pixels(images, spec).round().to(torch.uint8)


def restore_pixels(images: Tensor, spec: Preprocess) -> Tensor:
    """The inverse of `normalize`, as floats in [0, 255]."""
    mean = torch.tensor(spec.mean, device=images.device).view(-1, 1, 1)
    std = torch.tensor(spec.std, device=images.device).view(-1, 1, 1)
    return ((images * std + mean) * 255).clamp(0, 255)


def to_tensor(image: Image.Image) -> Tensor:
    """A PIL picture of mode L or RGB as bytes (C, H, W)."""
    return torch.as_tensor(to_array(image))


def to_pil(pixels: Tensor) -> Image.Image:
    """What a person sees of pixels (C, H, W) in [0, 255], as a PIL picture: the first three of more channels."""
    pixels = pixels[: 3 if len(pixels) >= 3 else 1]
    pixels = pixels.round().clamp(0, 255).to(torch.uint8) if pixels.is_floating_point() else pixels
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
    return torch.as_tensor(np.stack(resized).clip(0, 255)).view(*batch.shape[:2], height, width)


def as_pixels(picture: np.ndarray[Any, Any] | Tensor, spec: Preprocess, name: str = "picture") -> Tensor:
    """An array (H, W[, C]) or tensor ([C,] H, W) as bytes (C, H, W), with the spec's channels; with a range, other
    numbers as floats in [0, 255]."""
    kind = "array (H, W) or (H, W, C)" if isinstance(picture, np.ndarray) else "tensor (H, W) or (C, H, W)"
    if picture.ndim not in (2, 3) or 0 in picture.shape:
        raise InputError(f"{name}: must be an {kind} with pixels; got shape {tuple(picture.shape)}.")
    array = as_raster(picture).values
    if array.dtype.kind not in "uif" or array.dtype.itemsize > 8:
        raise InputError(f"{name}: pixels must be bytes, other integers or floats; got {array.dtype}.")
    if spec.value_range is not None and array.dtype != np.uint8:
        pixels = torch.as_tensor(scale(array, spec.value_range, name))
    else:
        pixels = torch.as_tensor(_to_bytes(array, name))
    if pixels.shape[0] == 1 and spec.channels == 3:
        return pixels.expand(3, -1, -1)
    if pixels.shape[0] != spec.channels:
        raise InputError(f"{name}: must have {spec.channels} channels as an {kind}; got shape {tuple(picture.shape)}.")
    return pixels


def as_raster(picture: np.ndarray[Any, Any] | Tensor) -> Raster:
    """The values of an array (H, W[, C]) or a tensor ([C,] H, W), in memory that torch can use."""
    if isinstance(picture, np.ndarray):
        array = np.ascontiguousarray(picture) if picture.flags.writeable else picture.copy()
        return Raster(array[None] if array.ndim == 2 else array.transpose(2, 0, 1))
    picture = picture.float() if picture.dtype == torch.bfloat16 else picture  # which NumPy does not have
    array = picture.numpy(force=True)
    return Raster(array[None] if array.ndim == 2 else array)


def _to_bytes(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Pixels as bytes: floats must be in [0, 1], where the spec has no range for others."""
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise refuse_depth(Raster(array), name)
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= 1):  # also refuses NaN
        raise InputError(
            f"{name}: float pixels must be in [0, 1], or the model's preprocessing must have a `value_range`; got "
            f"{low:.3g} to {high:.3g}."
        )
    floats = array.astype(array.dtype.newbyteorder("="), copy=False)
    return np.rint(floats * floats.dtype.type(255)).astype(np.uint8)

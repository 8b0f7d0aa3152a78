"""Any picture → the array that a model sees, without torch: exports run where it is not installed.

Only what torch itself resizes (the spec's kernels "bytes" and "float") and tensors go through `transform.py`.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from PIL import Image

from vitrail.data.picture import decode, open_picture
from vitrail.data.preprocess import Preprocess
from vitrail.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

# A path, an encoded file, a PIL picture, an array (H, W) or (H, W, C), or a tensor (H, W) or (C, H, W).
# Arrays and tensors hold bytes, 16-bit integers, or floats in [0, 1].
Picture = Union[str, Path, bytes, Image.Image, np.ndarray[Any, Any], "Tensor"]
Array = np.ndarray[Any, Any]
Floats = np.ndarray[Any, np.dtype[np.float32]]

SLAB = 1 << 18  # floats that fit in the CPU cache from one step to the next
RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def prepare_array(picture: Picture, spec: Preprocess, out: Floats, name: str = "picture") -> None:
    """Write what the model sees of one picture into `out` (C, H, W), normalised."""
    normalize_array(fit_array(picture, spec, name), spec, out)


def fit_array(picture: Picture, spec: Preprocess, name: str = "picture") -> Array:
    """Decode, resize and crop: (C, H, W), bytes (or floats in [0, 255] when the spec's kernel is float)."""
    if spec.kernel == "pillow":
        if isinstance(picture, str | Path | bytes):
            name = str(picture) if isinstance(picture, str | Path) else name
            with open_picture(picture, name=name) as image:
                return fit_pillow(decode(image, spec, name), spec)
        if isinstance(picture, Image.Image):
            return fit_pillow(decode(picture, spec, name), spec)
    if not (isinstance(picture, str | Path | bytes | Image.Image | np.ndarray) or is_tensor(picture)):
        raise InputError(f"{name}: must be a path, bytes, PIL, array or tensor; got {type(picture).__name__}.")
    from vitrail.data.transform import fit

    return fit(picture, spec, name).numpy()


def fit_pillow(image: Image.Image, spec: Preprocess) -> Array:
    """Resize and crop a decoded picture as Pillow does: bytes (C, H, W)."""
    spec.resized(image.height, image.width)  # refuses what is too narrow
    height, width = spec.middle(image.height, image.width)
    if (width, height) != image.size:
        top, left = (image.height - height) // 2, (image.width - width) // 2
        image = image.crop((left, top, left + width, top + height))
    height, width = spec.resized(height, width)
    if (width, height) != image.size:
        image = image.resize((width, height), RESAMPLING[spec.interpolation])
    top, left = spec.corner(height, width)
    if (height, width) != spec.size:
        image = image.crop((left, top, left + spec.size[1], top + spec.size[0]))
    return to_array(image)


def to_array(image: Image.Image) -> Array:
    """A PIL picture of mode L or RGB as bytes (C, H, W)."""
    pixels = np.array(image)  # (H, W) or (H, W, C)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def normalize_array(images: Array, spec: Preprocess, out: Floats) -> None:
    """(…, C, H, W) in [0, 255] → float32, minus the mean, over the standard deviation, into `out`."""
    std = np.asarray(spec.std, dtype=np.float32).reshape(-1, 1, 1)
    scale = np.float32(1) / (np.float32(255) * std)
    shift = -np.asarray(spec.mean, dtype=np.float32).reshape(-1, 1, 1) / std
    pixels, floats = images.reshape(-1, *images.shape[-3:]), out.reshape(-1, *images.shape[-3:])
    step = max(1, SLAB // math.prod(images.shape[-3:]))
    for start in range(0, len(pixels), step):
        part = floats[start : start + step]
        np.multiply(pixels[start : start + step], scale, out=part, casting="same_kind")
        part += shift


def is_tensor(value: object) -> bool:
    """Whether a value is torch's, without loading torch for the question."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "is_floating_point")

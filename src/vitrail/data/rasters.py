"""Pictures that do not fit into bytes of grey or RGB: their values as they are in the file, and how they become pixels.

16 bits, integers, floats and any number of channels, read from PNG files and NumPy's `.npy` here, from others by
`tiff.py` and `dicom.py`. The spec's `value_range` says which values become black and white.
"""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from PIL import Image, PngImagePlugin

from vitrail.data.preprocess import Preprocess, Range
from vitrail.errors import InputError

Array = np.ndarray[Any, Any]

NPY_MAGIC, DICOM_MAGIC = b"\x93NUMPY", b"DICM"
TIFF_MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
START = 132  # bytes that tell the kinds apart: DICOM's name comes after 128 of anything
BYTES_OF_A_PIXEL = 3  # the limit on pixels is meant for RGB: a raster may take as many bytes once decoded
LONGEST_HEADER = 10_000  # characters of an .npy header, as NumPy's own limit
LUMA = (19595, 38470, 7471)  # of 65536: ITU-R 601, with which Pillow makes grey of RGB
# What is done to the axes (height, width) of an array that Pillow would transpose, by the orientation tag.
TURNS: dict[int, Callable[[Array], Array]] = {
    2: lambda values: values[..., ::-1],
    3: lambda values: values[..., ::-1, ::-1],
    4: lambda values: values[..., ::-1, :],
    5: lambda values: values.swapaxes(-1, -2),
    6: lambda values: values.swapaxes(-1, -2)[..., ::-1],
    7: lambda values: values[..., ::-1, ::-1].swapaxes(-1, -2),
    8: lambda values: values.swapaxes(-1, -2)[..., ::-1, :],
}


@dataclass(frozen=True)
class Raster:
    """The values of a picture, as the file has them."""

    values: Array  # (C, H, W): integers or floats
    inverted: bool = False  # the lowest value is white
    alpha: bool = False  # the last channel is how opaque the pixels are
    orientation: int = 1  # EXIF's number
    hint: str = ""  # what the file says about its range

    @property
    def depth(self) -> str:
        """What one value is: "16 bits", "float32"."""
        kind = self.values.dtype
        return f"{8 * kind.itemsize} bits" if kind.kind == "u" else str(kind)


def sniff(start: bytes) -> str:
    """The kind of a file that Pillow does not read, or does not read whole, by its first `START` bytes; or ""."""
    if start[128:START] == DICOM_MAGIC:  # what comes before may be the start of a TIFF
        return "DICOM"
    if start.startswith(NPY_MAGIC):
        return "NPY"
    return "TIFF" if start.startswith(TIFF_MAGICS) else ""


def check_size(shape: tuple[int, ...], itemsize: int, limit: int, name: str) -> None:
    """Refuse what would take more memory than an RGB picture of `limit` pixels, and what has no pixels."""
    needed = math.prod(shape) * itemsize
    if needed < 1:
        raise InputError(f"{name}: must have pixels; its shape is {shape}.")
    if needed > BYTES_OF_A_PIXEL * limit:
        raise InputError(
            f"{name}: would take {needed:,} bytes once decoded, over the limit of {BYTES_OF_A_PIXEL * limit:,} "
            f"({BYTES_OF_A_PIXEL} for each of {limit:,} pixels); shrink the picture."
        )


def read_npy(file: IO[bytes], channels: int | None, limit: int, name: str) -> Raster:
    """An array (H, W), (H, W, C) or (C, H, W) in NumPy's format; nothing is unpickled."""
    shape, fortran, kind = _npy_header(file, name)
    if kind.kind not in "uif" or kind.itemsize > 8:
        raise InputError(f"{name}: must hold integers or floats of up to 64 bits; it holds {kind}.")
    if len(shape) not in (2, 3):
        raise InputError(f"{name}: must be an array (H, W), (H, W, C) or (C, H, W); its shape is {shape}.")
    check_size(shape, kind.itemsize, limit, name)
    data = file.read(math.prod(shape) * kind.itemsize)
    if len(data) < math.prod(shape) * kind.itemsize:
        raise InputError(f"{name}: damaged or truncated ({len(data):,} bytes of values for the shape {shape}).")
    values = np.frombuffer(data, dtype=kind).reshape(shape, order="F" if fortran else "C")
    return Raster(_channels_first(values, channels, name))


def _npy_header(file: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise InputError(f"{name}: is an .npy file of version {version}; save it with numpy.save.")
        return readers[version](file, max_header_size=LONGEST_HEADER)
    except InputError:
        raise
    except Exception as error:  # of a hostile header: ValueError, SyntaxError, RecursionError, MemoryError
        raise InputError(f"{name}: damaged or truncated (its .npy header cannot be read).") from error


def _channels_first(values: Array, channels: int | None, name: str) -> Array:
    """(C, H, W), however the axes are ordered: the one that has the model's channels decides."""
    if values.ndim == 2:
        return values[None]
    first, last = values.shape[0], values.shape[2]
    if channels is None:  # to look at: channels are fewer than rows and columns
        return values if first < last else values.transpose(2, 0, 1)
    counts = {1: (1, 3), 3: (3, 1)}.get(channels, (channels,))  # grey pictures become RGB, and the reverse
    for count in counts:
        if first == last == count:
            raise InputError(
                f"{name}: either the first or the last axis of the shape {values.shape} could be the {count} channels."
            )
        if count in (first, last):
            return values if first == count else values.transpose(2, 0, 1)
    raise InputError(
        f"{name}: has the shape {values.shape}; the model expects {channels} channels, as the first or the last axis."
    )


def is_deep(image: Image.Image) -> bool:
    """Whether an opened picture has more than 8 bits per channel; Pillow would cut those of colour to 8."""
    return image.mode.startswith("I") or image.mode == "F" or any(";16" in str(tile) for tile in _tiles(image))


def _tiles(image: Image.Image) -> list[Any]:
    return getattr(image, "tile", [])


def from_pillow(image: Image.Image, limit: int, name: str) -> Raster:
    """A picture that Pillow has opened and not decoded: 16 bits, integers or floats, or RGB with alpha."""
    raw = str(_tiles(image)[0][3]) if len(_tiles(image)) == 1 else ""
    bands = len(image.getbands())
    check_size((bands, image.height, image.width), 2 if ";16" in raw else 4 if image.mode in "IF" else 1, limit, name)
    if raw.startswith(("RGB;16", "RGBA;16")) and isinstance(image, PngImagePlugin.PngImageFile):
        values = _sixteen_bits_of_colour(image)
    elif ";16" in raw and bands > 1:
        raise InputError(f"{name}: 16 bits of {image.mode} cannot be read; save it as grey, RGB or RGBA, or as a TIFF.")
    else:
        values = np.array(image)
    values = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
    return Raster(values, alpha=image.mode == "RGBA")


def _sixteen_bits_of_colour(image: PngImagePlugin.PngImageFile) -> Array:
    """(H, W, C), of which Pillow keeps one byte: the high one; the low one if it takes the file for little-endian."""
    file = image.fp
    assert file is not None  # it is open until the pixels are decoded
    position = file.tell()
    file.seek(0)
    data = file.read()
    file.seek(position)
    halves: list[Array] = []
    for order in "BL":
        half = PngImagePlugin.PngImageFile(io.BytesIO(data))
        half.tile = [tile._replace(args=str(tile.args)[:-1] + order) for tile in half.tile]
        halves.append(np.array(half))
    return halves[0].astype(np.uint16) << 8 | halves[1]


def to_pixels(raster: Raster, spec: Preprocess, name: str) -> Array:
    """A raster in the spec's channels, upright (C, H, W): bytes, or floats in [0, 255] if it is deeper."""
    values = raster.values
    if values.dtype != np.uint8:
        if spec.value_range is None:
            raise refuse_depth(raster, name)
        values = scale(values, spec.value_range, name)
    if raster.inverted:
        values = 255 - values
    values = _fit_channels(values, raster.alpha, spec, name)
    turn = TURNS.get(raster.orientation) if spec.orient else None
    return np.ascontiguousarray(values if turn is None else turn(values))


def refuse_depth(raster: Raster, name: str) -> InputError:
    """What to say where no rule says which values are black and white."""
    finite = raster.values[np.isfinite(raster.values)] if raster.values.dtype.kind == "f" else raster.values
    seen = f" from {finite.min():g} to {finite.max():g}" if finite.size else ""
    return InputError(
        f"{name}: has values of {raster.depth},{seen}{raster.hint}, and the model's preprocessing has no `value_range` "
        "to say which are black and white. Train with one, such as `value_range=(0, 4095)`, or save 8 bits."
    )


def scale(values: Array, value_range: Range, name: str) -> Array:
    """Values (C, H, W) → floats: the range becomes 0…255, and what lies outside is cut."""
    pixels = np.empty(values.shape, dtype=np.float32)
    low, high = value_range
    for channel in range(len(values)):  # one by one, since doubles take memory
        exact = values[channel].astype(np.float64)
        if values.dtype.kind == "f" and np.isnan(exact).any():
            raise InputError(f"{name}: has pixels that are no numbers (NaN); replace them, or leave the picture out.")
        pixels[channel] = np.clip((exact.clip(low, high) - low) * (255 / (high - low)), 0, 255)
    return pixels


def _fit_channels(values: Array, alpha: bool, spec: Preprocess, name: str) -> Array:
    count, wanted = len(values), spec.channels
    if alpha and count - 1 in (1, 3) and wanted in (1, 3):
        values = values[:-1] if spec.alpha == "drop" else _lay(values, spec)
        count -= 1
    if count == wanted:
        return values
    if count == 1 and wanted == 3:
        return np.broadcast_to(values, (3, *values.shape[1:]))
    if count == 3 and wanted == 1:
        grey = np.tensordot(np.array(LUMA, dtype=np.float32) / 65536, values.astype(np.float32), 1)
        return (np.floor(grey + 0.5) if values.dtype == np.uint8 else grey).astype(values.dtype)[None]
    raise InputError(f"{name}: has {count} channel{'s' * (count != 1)}; the model expects {wanted}.")


def _lay(values: Array, spec: Preprocess) -> Array:
    """The colours laid on black or white, by how opaque they are."""
    opaque = values[-1:].astype(np.float32) / 255
    laid = values[:-1] * opaque + (255 if spec.alpha == "white" else 0) * (1 - opaque)
    return (np.rint(laid) if values.dtype == np.uint8 else laid).astype(values.dtype)


def to_look_at(raster: Raster, value_range: Range | None) -> Array:
    """What a person sees: upright bytes (1 or 3, H, W), the first channels of more; without a range, from the lowest
    value to the highest."""
    count = 3 if len(raster.values) >= 3 else 1
    values = raster.values[:count]
    if values.dtype != np.uint8:
        if values.dtype.kind == "f":
            values = np.nan_to_num(values, posinf=0, neginf=0)
        low, high = value_range or (float(values.min()), float(values.max()))
        values = np.rint(scale(values, (low, high if high > low else low + 1), "")).astype(np.uint8)
    values = 255 - values if raster.inverted else values
    turn = TURNS.get(raster.orientation)
    return np.ascontiguousarray(values if turn is None else turn(values))

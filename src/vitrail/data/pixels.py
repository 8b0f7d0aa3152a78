"""From any picture to the array that a model sees, without torch: exports run where it is not installed.

Pictures are not trusted: the header is judged before a pixel is decoded. What torch itself resizes (the spec's kernels
"bytes" and "float") and tensors go through `transform.py`.
"""

import io
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, Union, cast

import numpy as np
from PIL import Image

from vitrail.data.dicom import read_dicom
from vitrail.data.preprocess import MAX_PIXELS, Preprocess
from vitrail.data.rasters import START, Array, Raster, from_pillow, is_deep, read_npy, refuse_depth, sniff, to_pixels
from vitrail.data.tiff import is_deep_tiff, read_tiff
from vitrail.errors import ConfigError, InputError
from vitrail.storage import Span, is_address, open_file_store
from vitrail.untrusted import check_regular
from vitrail.wording import reason

if TYPE_CHECKING:
    from torch import Tensor


# A path, an address in an object store, an encoded file, a PIL picture, an array (H, W) or (H, W, C), or a tensor
# (H, W) or (C, H, W). Arrays and tensors hold bytes, or floats in [0, 1]; with a spec that has a range, any numbers.
ImageLike = str | Path | bytes | Image.Image
Picture = Union[ImageLike, np.ndarray[Any, Any], "Tensor"]
Item = TypeVar("Item")
Floats = np.ndarray[Any, np.dtype[np.float32]]

# Format → the extensions that folders of pictures use for it.
FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "BMP": (".bmp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
# The same for what Pillow does not read; what it does not read whole is among its formats: deep TIFF and PNG files.
RASTERS = {"NPY": (".npy",), "DICOM": (".dcm", ".dicom")}
READERS = {"NPY": read_npy, "DICOM": read_dicom, "TIFF": read_tiff}
EXTENSIONS = {extension: name for name, extensions in (FORMATS | RASTERS).items() for extension in extensions}
_ENDINGS = tuple(EXTENSIONS)
_PILLOWS = tuple(extension for extension, name in EXTENSIONS.items() if name not in READERS)

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
LIMIT_VARIABLE = "VITRAIL_MAX_PIXELS"
MAX_HEADER = 1 << 16  # bytes until the size of a PPM picture is known
MAX_COMMENTS = 1000  # in a PPM picture in text form
SLAB = 1 << 18  # floats that fit in the CPU cache from one step to the next
RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def is_picture_name(name: str) -> bool:
    """Whether a file has the extension of a picture; the name is a text, for folders with very many files."""
    return name.lower().endswith(_ENDINGS)


def open_picture(
    source: str | Path | bytes | IO[bytes],
    *,
    formats: tuple[str, ...] = tuple(FORMATS),
    max_pixels: int | None = None,
    name: str = "picture",
) -> Image.Image:
    """Open a picture and judge its header: known format, not empty, not too large. No pixel is decoded yet.

    It may have 89 million pixels, as many as $VITRAIL_MAX_PIXELS says, or `max_pixels`. In messages a file is called by
    its path, anything else by `name`.
    """
    limit = pixel_limit() if max_pixels is None else max_pixels
    if isinstance(source, str) and is_address(source):
        name, source = source, read_address(source)
    hint = f"shrink the picture{'' if max_pixels else f', or set {LIMIT_VARIABLE} to a higher number'}"
    name = str(source) if isinstance(source, str | Path) else name
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    start = b""
    try:
        if isinstance(source, str | Path):
            check_regular(source, InputError)
        start = _refuse_comments(stream, name)
        image = _open(stream, start, formats)
    except Image.DecompressionBombError as error:
        raise InputError(f"{name}: too many pixels to decode safely ({error}); {hint}.") from None
    except Image.UnidentifiedImageError:
        what = f"not a picture of a known format ({', '.join(formats)}); it starts with {start!r}"
        raise InputError(f"{name}: {what if start else 'the file is empty (0 bytes)'}.") from None
    except InputError:
        raise
    except Exception as error:  # decoders may raise anything on hostile bytes
        raise InputError(f"{name}: cannot be read as a picture ({reason(error)}).") from error
    if (pixels := image.width * image.height) > limit:
        size = f"{image.width}×{image.height}"
        image.close()
        hint = hint.replace("a higher number", f"{pixels} or more")
        raise InputError(f"{name}: {size} pixels are over the limit of {limit:,}; {hint}.")
    return image


def read_address(address: str) -> bytes:
    """The content of one picture in an object store."""
    store, name = open_file_store(address)
    content = store.read([Span(name)])[0]
    if isinstance(content, OSError):
        raise InputError(f"{store.path(name)}: cannot be read ({reason(content)}).")
    return content


def pixel_limit() -> int:
    """How many pixels the user's own pictures may have; a higher limit than Pillow's is set in Pillow too."""
    asked = os.environ.get(LIMIT_VARIABLE)
    if not asked:
        return MAX_PIXELS
    if not (asked.isdecimal() and 0 < int(asked) < 2**63):
        raise ConfigError(f"{LIMIT_VARIABLE} must be a number of pixels, such as {2 * MAX_PIXELS}; got {asked[:50]!r}.")
    if Image.MAX_IMAGE_PIXELS is not None:
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, int(asked))
    return int(asked)


def _open(source: str | Path | IO[bytes], start: bytes, formats: tuple[str, ...]) -> Image.Image:
    """As `Image.open`, which warns of pictures that are beyond the limit before we can refuse them."""
    for name in formats:
        if name not in Image.OPEN:
            Image.init()
        factory, accepts = Image.OPEN[name]
        accepted = accepts is None or accepts(start)  # a text says what is missing to read it
        if accepted and not isinstance(accepted, str):
            try:
                return factory(str(source) if isinstance(source, Path) else source, "")  # pyright: ignore[reportArgumentType]
            except (SyntaxError, IndexError, TypeError, struct.error):
                break  # not of this format after all
    raise Image.UnidentifiedImageError


def _refuse_comments(source: str | Path | IO[bytes], name: str) -> bytes:
    """The first bytes of a file, unless it has too many comments.

    PPM pictures may have comments of any length, which Pillow reads byte by byte, or many, each of which costs it a
    copy of all that follows: five megabytes of them take minutes.
    """
    with Path(source).open("rb") if isinstance(source, str | Path) else nullcontext(source) as file:
        position = file.tell()
        start = file.read(16)
        if start[:1] == b"P":
            start += file.read(MAX_HEADER)
        needed = 3 if start[1:2] in b"14" else 4  # the magic number, width, height, and the largest value
        endless = len(start) > MAX_HEADER and len(re.sub(rb"#[^\r\n]*", b"", start).split(None, needed)) < needed
        comments = start.count(b"#")
        while start[:2] in (b"P1", b"P2", b"P3") and comments <= MAX_COMMENTS and (piece := file.read(1 << 20)):
            comments += piece.count(b"#")
        file.seek(position)
    if endless or (start[:2] in (b"P1", b"P2", b"P3") and comments > MAX_COMMENTS):
        raise InputError(f"{name}: has too many or too long comments; save the picture without them.")
    return start[:16]


def opened(picture: ImageLike, name: str = "picture") -> AbstractContextManager[Image.Image]:
    """A picture for a `with` block, at whose end it is closed if it was opened here."""
    return nullcontext(picture) if isinstance(picture, Image.Image) else open_picture(picture, name=name)


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, or else that of XMP, 1 (upright) to 8; a damaged tag counts as upright."""
    if image.format in ("JPEG", "MPO", "WEBP") and not {"exif", "xmp"} & image.info.keys():
        return 1
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # a broken tag must not make the picture unusable
        return 1
    return value if value in _TURNS else 1


def upright(image: Image.Image) -> Image.Image:
    """The picture rotated as its orientation tag says."""
    turn = _TURNS.get(orientation(image))
    return image if turn is None else image.transpose(turn)


def decode(image: Image.Image, spec: Preprocess, name: str = "picture") -> Image.Image:
    """All the pixels of an opened picture, upright, 8 bits, in the spec's channels (mode L or RGB)."""
    if spec.channels not in (1, 3):
        raise InputError(f"{name}: has {len(image.getbands())} channels; the model expects {spec.channels}.")
    if is_deep(image):
        raise refuse_depth(_read_deep(image, name), name)
    try:
        if spec.animated == "error" and getattr(image, "n_frames", 1) > 1:
            raise InputError(f"{name}: has several frames, and `animated='error'`.")
        image.load()
        image = upright(image) if spec.orient else image
        return _convert(image, spec, name)
    except InputError:
        raise
    except Exception as error:  # decoders may raise anything on hostile bytes
        raise InputError(f"{name}: damaged or truncated ({reason(error)}).") from error


def decode_picture(picture: ImageLike, spec: Preprocess, name: str = "picture") -> Image.Image | Array:
    """All the pixels of any picture, upright, in the spec's channels: of mode L or RGB; or, without a mode of Pillow's,
    an array (C, H, W) of bytes, or of floats in [0, 255]."""
    name = str(picture) if isinstance(picture, str | Path) else name
    picture = fetched(picture)
    is_pillows = isinstance(picture, str | Path) and str(picture).lower().endswith(_PILLOWS)  # need not be opened twice
    raster = None if is_pillows else read_raster(picture, name, spec.channels)
    if raster is not None:
        return to_pixels(raster, spec, name)
    with opened(picture, name) as image:
        if is_deep(image):
            return to_pixels(_read_deep(image, name), spec, name)
        if spec.channels == 4 and has_alpha(image) and len(image.getbands()) != 2:
            try:
                raster = Raster(to_array(image.convert("RGBA")), alpha=True, orientation=orientation(image))
            except Exception as error:  # decoders may raise anything on hostile bytes
                raise InputError(f"{name}: damaged or truncated ({reason(error)}).") from error
            return to_pixels(raster, spec, name)
        return decode(image, spec, name)


def fetched(picture: ImageLike) -> ImageLike:
    """The content of a picture in an object store; any other as it is."""
    return read_address(picture) if isinstance(picture, str) and is_address(picture) else picture


def read_raster(picture: ImageLike, name: str, channels: int | None = None) -> Raster | None:
    """The values of a picture that bytes of grey or RGB cannot hold, or None: of 16 bits, floats, more channels.

    `channels` are those of the model, which decide about axes and pages; None: to look at it.
    """
    if isinstance(picture, Image.Image):
        return _read_deep(picture, name) if is_deep(picture) else None
    try:
        if isinstance(picture, str | Path):
            check_regular(picture, InputError)
        with io.BytesIO(picture) if isinstance(picture, bytes) else Path(picture).open("rb") as file:
            start = file.read(START)
            kind = sniff(start)
            if kind == "TIFF" and channels in (None, 1, 3) and not is_deep_tiff(file, name):
                return None
            if kind:
                file.seek(0)
                return READERS[kind](file, channels, pixel_limit(), name)
    except OSError as error:
        raise InputError(f"{name}: cannot be read as a picture ({reason(error)}).") from error
    if not start.startswith(PNG_MAGIC) or start[24:25] != b"\x10":  # the bits of a channel
        return None
    with open_picture(picture, name=name) as image:
        return _read_deep(image, name) if is_deep(image) else None


def _read_deep(image: Image.Image, name: str) -> Raster:
    try:
        raster = from_pillow(image, pixel_limit(), name)
        return replace(raster, orientation=orientation(image))  # after its pixels: it may decode the picture to 8 bits
    except InputError:
        raise
    except Exception as error:  # decoders may raise anything on hostile bytes
        raise InputError(f"{name}: damaged or truncated ({reason(error)}).") from error


def _convert(image: Image.Image, spec: Preprocess, name: str) -> Image.Image:
    mode = "L" if spec.channels == 1 else "RGB"
    if image.mode == mode and "transparency" not in image.info:
        return image
    if has_alpha(image):
        image = image.convert("RGBA")
        if spec.alpha != "drop":
            image = Image.alpha_composite(Image.new("RGBA", image.size, spec.alpha), image)
    return image.convert(mode)


def has_alpha(image: Image.Image) -> bool:
    """Whether the picture has transparent pixels or could have them."""
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def prepare_array(picture: Picture, spec: Preprocess, out: Floats, name: str = "picture") -> None:
    """Write what the model sees of one picture into `out` (C, H, W), normalised."""
    normalize_array(fit_array(picture, spec, name), spec, out)


def prepare_arrays(
    items: Sequence[Item],
    spec: Preprocess,
    prepare: Callable[[Item, Floats], None],
    caught: tuple[type[Exception], ...] = (InputError, OSError),
) -> tuple[Floats, dict[int, Exception]]:
    """What the model sees of the items that can be read, without gaps (B, C, H, W); and why the others cannot be.

    `prepare` writes one item's (C, H, W); exceptions of the `caught` kinds are returned by the item's index.
    """
    images = np.empty((len(items), spec.channels, *spec.size), dtype=np.float32)
    broken: dict[int, Exception] = {}
    for index, item in enumerate(items):
        try:
            prepare(item, images[index - len(broken)])
        except caught as error:
            broken[index] = error
    return images[: len(items) - len(broken)], broken


def prepare_named(pictures: Sequence[tuple[str, Picture]], spec: Preprocess) -> tuple[Floats, dict[int, Exception]]:
    """The same for pictures with their names."""
    return prepare_arrays(pictures, spec, lambda named, out: prepare_array(named[1], spec, out, named[0]))


def fit_array(picture: Picture, spec: Preprocess, name: str = "picture") -> Array:
    """Decode, resize and crop: (C, H, W), bytes (or floats in [0, 255]: with a range, or the kernel "float")."""
    if spec.kernel == "pillow" and isinstance(picture, str | Path | bytes | Image.Image):
        decoded = decode_picture(picture, spec, name)
        fitted = fit_pillow(decoded, spec) if isinstance(decoded, Image.Image) else fit_planes(decoded, spec)
        return fitted if spec.value_range is None else fitted.astype(np.float32, copy=False)
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


def fit_planes(pixels: Array, spec: Preprocess) -> Array:
    """The same for pixels (C, H, W), bytes or floats in [0, 255], one channel after the other."""
    return np.concatenate([fit_pillow(Image.fromarray(plane), spec) for plane in pixels]).clip(0, 255)


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


def is_one(pictures: object) -> bool:
    """Whether an argument is one picture, rather than several."""
    if isinstance(pictures, np.ndarray) or is_tensor(pictures):
        return cast("Any", pictures).ndim < 4
    if not isinstance(pictures, str | Path | bytes | Image.Image | Iterable):
        raise InputError(f"a picture is a path, bytes, a PIL picture, an array or a tensor; got {pictures!r}.")
    return isinstance(pictures, str | Path | bytes | Image.Image)

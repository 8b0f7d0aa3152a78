"""TIFF files that Pillow has no mode for: any number of samples, integers and floats of 8 to 64 bits, several pages."""

import io
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from PIL import TiffImagePlugin

from vitrail.data.rasters import Array, Raster, check_size
from vitrail.errors import InputError
from vitrail.wording import reason

MAX_PAGES, MAX_ENTRIES, MAX_SEGMENTS = 4096, 4096, 1 << 17  # a picture has one page per channel at most
RAW, DEFLATE = 1, (8, 32946)
BY_PILLOW = {5: "LZW", 32773: "PackBits", 34925: "LZMA", 50000: "Zstandard"}  # decoded by its libtiff
REDUCED_OR_MASK = 1 | 4  # pages that are a thumbnail, or say which pixels count
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB = 0, 1, 2
KINDS = {1: "u", 2: "i", 3: "f"}  # of the tag SampleFormat
CODES = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q", 18: "Q"}  # the types of the numbers that we read


@dataclass(frozen=True, kw_only=True)
class Page:
    """The tags of one page that say where its samples are."""

    order: str  # of bytes: "<" or ">"
    tags: dict[int, tuple[int, ...]]

    def one(self, tag: int, default: int) -> int:
        return self.tags.get(tag, (default,))[0]

    @property
    def samples(self) -> int:
        return self.one(277, 1)

    @property
    def bits(self) -> tuple[int, ...]:
        return self.tags.get(258, (1,))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.samples, self.one(257, 0), self.one(256, 0)

    @property
    def is_deep(self) -> bool:
        """Whether Pillow would not give all of it."""
        return max(self.bits) > 8 or self.samples > 4 or self.one(339, 1) != 1

    def dtype(self, name: str) -> np.dtype[Any]:
        """What a sample is."""
        kinds, bits = set(self.tags.get(339, (1,))), set(self.bits)
        if len(bits) > 1 or len(kinds) > 1:
            raise InputError(f"{name}: its channels differ in bits ({self.bits}) or in kind; save them alike.")
        size, kind = bits.pop(), KINDS.get(kinds.pop())
        if kind is None or size not in ((16, 32, 64) if kind == "f" else (8, 16, 32, 64)):
            raise InputError(f"{name}: samples of {size} bits cannot be read; save them with 8, 16, 32 or 64.")
        return np.dtype(f"{self.order}{kind}{size // 8}")


def is_deep_tiff(file: IO[bytes], name: str) -> bool:
    """Whether Pillow would not give all of a file's first page; the file stays where it was."""
    position = file.tell()
    try:
        return next(_pages(file, name)).is_deep
    except (InputError, StopIteration):
        return False  # for Pillow to say why
    finally:
        file.seek(position)


def read_tiff(file: IO[bytes], channels: int | None, limit: int, name: str) -> Raster:
    """The first page, or all of them as channels if each has one, all are alike, and the first is not enough."""
    pages = [page for page in _pages(file, name) if not page.one(254, 0) & REDUCED_OR_MASK]
    if not pages:
        raise InputError(f"{name}: has no page with a picture.")
    first = pages[0]
    alike = all((page.shape, page.bits) == (first.shape, first.bits) for page in pages)
    if first.samples > 1 or channels == 1 or not alike or (channels == 3 and len(pages) != 3):
        pages = pages[:1]
    kind = first.dtype(name)
    check_size((len(pages), *first.shape), kind.itemsize, limit, name)
    colours = first.one(262, BLACK_IS_ZERO)
    if colours not in (WHITE_IS_ZERO, BLACK_IS_ZERO, RGB):
        raise InputError(f"{name}: its colours (TIFF photometric {colours}) cannot be read; save it as grey or RGB.")
    values = [_read_page(file, page, kind, name) for page in pages]
    extra = first.tags.get(338, ())
    return Raster(
        np.concatenate(values),
        inverted=colours == WHITE_IS_ZERO,
        alpha=len(extra) == 1 and extra[0] in (1, 2),
        orientation=first.one(274, 1),
    )


def _pages(file: IO[bytes], name: str) -> Iterator[Page]:
    """The pages in order; a chain of them that comes back to itself is refused."""
    file.seek(0)
    start = file.read(16)
    order = "<" if start[:2] == b"II" else ">"
    try:
        big = struct.unpack(order + "H", start[2:4])[0] == 43
        at = struct.unpack(order + ("Q" if big else "I"), start[8:16] if big else start[4:8])[0]
        seen: set[int] = set()
        while at:
            if at in seen or len(seen) >= MAX_PAGES:
                raise InputError(f"{name}: its pages never end, or are more than {MAX_PAGES:,}.")
            seen.add(at)
            tags, at = _read_tags(file, at, order, big, name)
            yield Page(order=order, tags=tags)
    except (struct.error, OverflowError, OSError, ValueError) as error:
        raise InputError(f"{name}: damaged or truncated ({reason(error)}).") from error


def _read_tags(file: IO[bytes], at: int, order: str, big: bool, name: str) -> tuple[dict[int, tuple[int, ...]], int]:
    """The numbers of one page's tags, and where the next page is."""
    file.seek(at)
    count = struct.unpack(order + ("Q" if big else "H"), file.read(8 if big else 2))[0]
    if count > MAX_ENTRIES:
        raise InputError(f"{name}: a page with {count:,} tags; at most {MAX_ENTRIES:,} are read.")
    width, offset = (20, "Q") if big else (12, "I")
    table = file.read(count * width)
    following = struct.unpack(order + offset, file.read(8 if big else 4))[0]
    tags: dict[int, tuple[int, ...]] = {}
    for entry in range(count):
        tag, kind, number = struct.unpack_from(f"{order}HH{offset}", table, entry * width)
        value = table[entry * width + (12 if big else 8) : (entry + 1) * width]
        if kind not in CODES or not 0 < number <= 2 * MAX_SEGMENTS:
            continue
        size = struct.calcsize("=" + CODES[kind]) * number
        if size > len(value):
            file.seek(struct.unpack(order + offset, value)[0])
            value = file.read(size)
        tags[tag] = struct.unpack(f"{order}{number}{CODES[kind]}", value[:size])
    return tags, following


def _read_page(file: IO[bytes], page: Page, kind: np.dtype[Any], name: str) -> Array:
    """The samples of one page, (C, H, W), put together from its strips or tiles."""
    samples, height, width = page.shape
    tiled = 322 in page.tags
    rows = page.one(323, 0) if tiled else min(page.one(278, height), height)
    columns = page.one(322, 0) if tiled else width
    offsets, sizes = (page.tags.get(tag, ()) for tag in ((324, 325) if tiled else (273, 279)))
    if min(rows, columns) < 1 or rows * columns > 16 * height * width + (1 << 20):
        raise InputError(f"{name}: damaged or truncated (parts of {columns}×{rows} pixels in {width}×{height}).")
    down, across = -(-height // rows), -(-width // columns)
    planes = samples if page.one(284, 1) == 2 else 1
    if not len(offsets) == len(sizes) == down * across * planes <= MAX_SEGMENTS:
        raise InputError(
            f"{name}: damaged or truncated (needs {down * across * planes:,} parts; lists {len(offsets):,})."
        )
    each = samples // planes  # samples of one pixel in one part
    values = np.empty((samples, height, width), dtype=kind.newbyteorder("="))
    for number, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        plane, place = divmod(number, down * across)
        top, left = place // across * rows, place % across * columns
        deep = rows if tiled else min(rows, height - top)
        part = _read_part(file, page, kind, (offset, size), (deep, columns, each), name)
        part = part[: height - top, : width - left].transpose(2, 0, 1)
        values[plane * each : (plane + 1) * each, top : top + part.shape[1], left : left + part.shape[2]] = part
    return values


def _read_part(
    file: IO[bytes], page: Page, kind: np.dtype[Any], where: tuple[int, int], shape: tuple[int, int, int], name: str
) -> Array:
    """One strip or tile, (rows, columns, samples)."""
    needed = shape[0] * shape[1] * shape[2] * kind.itemsize
    try:
        file.seek(where[0])
        data = _unpack(file.read(min(where[1], 2 * needed + 1024)), page, needed, shape[0], name)
    except InputError:
        raise
    except Exception as error:  # decoders may raise anything on hostile bytes
        raise InputError(f"{name}: damaged or truncated ({reason(error)}).") from error
    if len(data) < needed:
        raise InputError(f"{name}: damaged or truncated ({len(data):,} bytes where {needed:,} should be).")
    predictor = page.one(317, 1)
    if predictor == 3 and kind.kind == "f":
        return _undo_float_differences(np.frombuffer(data, np.uint8, needed), kind, shape)
    values = np.frombuffer(data, kind, needed // kind.itemsize).reshape(shape).astype(kind.newbyteorder("="))
    if predictor == 2:
        unsigned = values.view(f"u{kind.itemsize}")
        return np.cumsum(unsigned, axis=1, dtype=unsigned.dtype).view(values.dtype)
    if predictor != 1:
        raise InputError(f"{name}: its predictor {predictor} cannot be undone; save it without compression.")
    return values


def _unpack(data: bytes, page: Page, needed: int, rows: int, name: str) -> bytes:
    """At most `needed` bytes of a strip or tile."""
    compression = page.one(259, RAW)
    if page.one(266, 1) != 1:
        raise InputError(f"{name}: has its bits in reverse (TIFF fill order 2); save it in the usual order.")
    if compression == RAW:
        return data
    if compression in DEFLATE:
        return zlib.decompressobj().decompress(data, needed)
    if compression not in BY_PILLOW:
        known = ", ".join(("none", "deflate", *BY_PILLOW.values()))
        raise InputError(f"{name}: its compression (TIFF number {compression}) is none of {known}.")
    # To libtiff, any part is a grey picture of 8 bits that is as wide as its rows have bytes.
    numbers = {256: needed // rows, 257: rows, 258: 8, 259: compression, 262: 1, 273: 8, 277: 1, 278: rows}
    numbers |= {273: 8 + 2 + 12 * 9 + 4, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, number) for tag, number in sorted(numbers.items()))
    whole = b"II*\0" + struct.pack("<IH", 8, len(numbers)) + entries + bytes(4) + data
    return np.array(TiffImagePlugin.TiffImageFile(io.BytesIO(whole))).tobytes()


def _undo_float_differences(data: Array, kind: np.dtype[Any], shape: tuple[int, int, int]) -> Array:
    """Adobe's floating-point predictor: rows of bytes by significance, each as its difference to the pixel before."""
    rows, columns, samples = shape
    differences = data.reshape(rows, -1, samples)  # (rows, columns × bytes, samples)
    summed = np.cumsum(differences, axis=1, dtype=np.uint8).reshape(rows, kind.itemsize, columns * samples)
    floats = np.ascontiguousarray(summed.swapaxes(1, 2)).view(kind.newbyteorder(">"))
    return floats.reshape(shape).astype(kind.newbyteorder("="))

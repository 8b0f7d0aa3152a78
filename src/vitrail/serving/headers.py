"""What a picture says about itself in its first bytes: format and size, read without decoding anything. Needs no torch.

Each reading is bounded, so that no file can keep the front process busy; the worker opens the picture with Pillow,
within the same limits, and its word is the last.
"""

import re

from vitrail.serving.problems import Problem
from vitrail.wording import counted

FORMATS = ("JPEG", "PNG", "WEBP")
MOST_SEGMENTS = 1000  # before the size of a JPEG, or the pixels of a PNG, are reached
MOST_SCANS = 64  # of a progressive JPEG, each of which costs a pass over all its pixels; encoders make about ten
_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # JPEG's markers that give a size
_MARKER = re.compile(rb"\xff[\x02-\xcf\xd9-\xfe]")  # JPEG's markers that stand neither within a scan nor for nothing
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # JPEG's markers without a length

_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_OTHERS = {
    "a GIF": (b"GIF8",),
    "a TIFF": (b"II*\0", b"MM\0*"),
    "a BMP": (b"BM",),
    "an AVIF": (b"avif", b"avis"),
    "a JPEG XL": (b"\xff\x0a", b"\0\0\0\x0cJXL "),
    "a JPEG 2000": (b"\0\0\0\x0cjP  ",),
}
_CONVERT_HEIC = (
    "Save it as JPEG first; an iPhone takes JPEG photos if Settings > Camera > Formats is set to Most Compatible."
)
_CONVERT_PDF = "Export the page that you mean as PNG or JPEG, or take a screenshot of it."


def check_header(data: bytes, max_pixels: int, name: str) -> int:
    """The number of pixels; what is no JPEG, PNG or WebP, has no size, or too many pixels is refused."""
    width, height = size_of(data, name)
    if not width or not height:
        raise Problem("unreadable_picture", f"{name}: the header gives a size of {width}×{height} pixels.")
    if width * height > max_pixels:
        raise Problem(
            "too_large", f"{name}: {width}×{height} pixels are over the limit of {max_pixels:,}; shrink the picture."
        )
    return width * height


def size_of(data: bytes, name: str) -> tuple[int, int]:
    """Width and height, by what the bytes are and not by what they are called."""
    if data[:3] == b"\xff\xd8\xff":
        return _size_of_jpeg(data, name)
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return _size_of_png(data, name)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _size_of_webp(data, name)
    if not data:
        raise Problem("unreadable_picture", f"{name} is empty (0 bytes).")
    raise Problem("unsupported_format", *_recognise(data, name))


def _recognise(data: bytes, name: str) -> tuple[str, str]:
    """What people take for a picture that we can read, in their words, and what they can do."""
    brand = data[8:12] if data[4:8] == b"ftyp" else b""
    if brand in _HEIC:
        return f"{name} is a HEIC picture, which is not accepted.", _CONVERT_HEIC
    if data[:5] == b"%PDF-":
        return f"{name} is a PDF document, not a picture.", _CONVERT_PDF
    if b"<svg" in data[:1000] and data[:1000].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<":
        return f"{name} is an SVG drawing, which has no pixels.", "Export it as PNG."
    for kind, starts in _OTHERS.items():
        if data.startswith(starts) or brand in starts:
            return f"{name} is {kind} picture, which is not accepted.", "Save it as JPEG, PNG or WebP first."
    start = ascii(data[:8].decode("latin-1"))
    return f"{name} is not a JPEG, PNG or WebP; it starts with {start}.", "Send a JPEG, PNG or WebP file."


def _size_of_jpeg(data: bytes, name: str) -> tuple[int, int]:
    position = 2
    for _ in range(MOST_SEGMENTS):
        while data[position : position + 2] == b"\xff\xff":  # fill bytes; a run of them costs no segment …
            position = position + 1 if data[position + 2 : position + 3] != b"\xff" else _after_fill(data, position)
        if position + 4 > len(data) or data[position] != 0xFF:
            break
        marker = data[position + 1]
        if marker in _SIZES:
            sides = data[position + 5 : position + 9]
            if len(sides) < 4:
                break
            _check_scans(data, position, name)
            return int.from_bytes(sides[2:]), int.from_bytes(sides[:2])
        position += 2 if marker in _BARE else 2 + int.from_bytes(data[position + 2 : position + 4])
    raise Problem("unreadable_picture", f"{name} is a JPEG without a readable size; it is damaged or truncated.")


def _check_scans(data: bytes, position: int, name: str) -> None:
    """Refuse a JPEG with too many scans before its end; phones append whole videos to it."""
    if data.count(b"\xff\xda") <= MOST_SCANS:
        return
    scans = 0
    for _ in range(MOST_SEGMENTS):
        found = _MARKER.search(data, position)
        if found is None or found[0] == b"\xff\xd9":
            return
        scans += found[0] == b"\xff\xda"
        if scans > MOST_SCANS:
            raise Problem("unreadable_picture", f"{name} has more than {counted(MOST_SCANS, 'scan')}; save it again.")
        position = found.end() + int.from_bytes(data[found.end() : found.end() + 2])
    raise Problem("unreadable_picture", f"{name} has too many parts between its scans; save it again.")


def _after_fill(data: bytes, position: int) -> int:
    """The last of a run of 0xff bytes, found without a loop of our own."""
    rest = data[position : position + 65536]
    return position + len(rest) - len(rest.lstrip(b"\xff")) - 1


def _size_of_png(data: bytes, name: str) -> tuple[int, int]:
    if data[12:16] != b"IHDR" or len(data) < 33:
        raise Problem("unreadable_picture", f"{name} is a PNG without a readable header; it is damaged or truncated.")
    size = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    position = 8
    for _ in range(MOST_SEGMENTS):
        kind = data[position + 4 : position + 8]
        if kind == b"IDAT" or len(kind) < 4:
            return size
        position += 12 + int.from_bytes(data[position : position + 4])
    raise Problem("unreadable_picture", f"{name} has too much metadata before its pixels; save it again without it.")


def _size_of_webp(data: bytes, name: str) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L" and len(data) >= 25 and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and len(data) >= 30 and data[23:26] == b"\x9d\x01\x2a":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    raise Problem("unreadable_picture", f"{name} is a WebP without a readable size; it is damaged or truncated.")

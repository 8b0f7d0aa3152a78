"""The pictures of a request: read within limits, taken out of whatever carries them, and checked by their headers."""

import asyncio
import binascii
import re
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, NamedTuple, cast

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from vitrail.serving.dispatch import BODY, Call, read_value
from vitrail.serving.exchange import CLOSE, ClientGoneError, Problem, exchange_of, invalid
from vitrail.serving.settings import ServeSettings
from vitrail.untrusted import parse_json
from vitrail.wording import counted, plain

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
LONGEST_NAME = 200  # characters of a file name that are sent back
SLOWEST = 10_000  # bytes per second below which a client is taken to be holding a connection, not using it
DRAINED = 100_000_000  # bytes over a limit that are thrown away, so that the client can hear why
DRAIN_SECONDS = 2.0
MOST_VALUES = 1_000_000  # of a JSON text: parsing more would keep all others waiting for over a tenth of a second
UNPACKED = 1 << 20  # bytes of a compressed body that are unpacked at once
FEW = 1000  # values that a JSON text may have beyond those that the request needs
_NO_ENCODING = "Send the body as it is, or compressed with gzip or deflate."


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


class Picture(NamedTuple):
    """One picture as it was sent."""

    name: str
    data: bytes


async def read_body(request: Request, settings: ServeSettings) -> bytes:
    """The whole body, unpacked if it is compressed, and refused as soon as it is too large or too slow."""
    limit = settings.max_body
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise Problem(
            "unsupported_format", f"content-encoding must be gzip or deflate; got {encoding[:50]!r}.", _NO_ENCODING
        )
    unpacker = None if encoding == "identity" else zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)  # either has a header
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        await _drain(request)
        raise _over(limit)
    chunks: list[bytes] = []
    size = received = 0
    more = True
    exchange = exchange_of(request)
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(settings.client_timeout) as deadline:
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                more = message.get("more_body", False)
                received += len(message.get("body", b""))
                async for chunk in _unpack(message.get("body", b""), unpacker):
                    size += len(chunk)
                    if size > limit:
                        raise _over(limit)
                    exchange.receive(len(chunk))
                    chunks.append(chunk)
                if more:
                    latest = began + 2 * settings.client_timeout + received / SLOWEST
                    deadline.reschedule(min(loop.time() + settings.client_timeout, latest))
    except TimeoutError:
        message = f"the body stopped after {counted(received, 'byte')}."
        raise Problem("request_timeout", message, headers=CLOSE) from None
    except Problem:
        if more:
            await _drain(request)
        raise
    if unpacker is not None and not (unpacker.eof or received == 0):
        raise Problem("unreadable_body", f"the body is truncated: its {encoding} data has no end.")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _unpack(data: bytes, unpacker: Any) -> AsyncIterator[bytes]:
    """A piece of the body as it is, or unpacked step by step: a few bytes can stand for millions."""
    if unpacker is None and data:
        yield data
    while unpacker is not None and data:
        try:
            chunk = unpacker.decompress(data, UNPACKED)
        except zlib.error:
            raise Problem("unreadable_body", "the compressed body is damaged.") from None
        if unpacker.unused_data:
            raise Problem("unreadable_body", "the compressed body goes on after its end.")
        data = unpacker.unconsumed_tail
        if chunk:
            yield chunk
        await asyncio.sleep(0)  # others are waiting, too


async def _drain(request: Request) -> None:
    """Throw away some of what is still coming: a client that cannot send does not listen either."""
    if request.headers.get("expect", "").lower() == "100-continue":
        return
    size, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while more and size < DRAINED:
                message = await request.receive()
                size += len(message.get("body", b""))
                more = message.get("more_body", False)  # false also if the client has gone


def _over(limit: int) -> Problem:
    return Problem("too_large", f"the body is over the limit of {limit:,} bytes.", headers=CLOSE)


async def read_pictures(call: Call) -> tuple[list[Picture], dict[str, Any]]:
    """The pictures of a request in any of the three forms, and what JSON holds beside them."""
    body = await read_body(call.request, call.settings)
    kind, options = parse_options_header(call.request.headers.get("content-type", ""))
    fields: dict[str, Any] = {}
    if kind == b"multipart/form-data":
        pictures = read_multipart(body, options.get(b"boundary", b""), call.settings.max_pictures)
    elif kind == b"application/json":
        content = read_json(body, call.settings.max_pictures + FEW)
        assert call.endpoint.body is not None  # it takes pictures
        fields = read_value(BODY, call.endpoint.body(call.settings)["application/json"]["schema"], content)
        texts = enumerate(fields.pop("pictures"))
        pictures = [Picture(str(index), decode_base64(text, describe(str(index)))) for index, text in texts]
    else:  # by what it is, not by what it is called
        pictures = [Picture("0", body)]
    if not pictures:
        raise Problem("unreadable_body", "the request contains no picture.")
    return pictures, fields


def check_pictures(pictures: list[Picture], settings: ServeSettings) -> list[Problem | int]:
    """The pixels of each picture, or what is wrong with it, by its header; the only one's problem is the request's."""
    entries: list[Problem | int] = []
    for picture in pictures:
        try:
            entries.append(check_header(picture.data, settings.max_pixels, describe(picture.name)))
        except Problem as problem:
            if len(pictures) == 1:
                raise
            entries.append(problem)
    pixels, limit = sum(entry for entry in entries if isinstance(entry, int)), settings.max_request_pixels
    if pixels > limit:
        raise Problem("too_large", f"the pictures have {pixels:,} pixels together, over the limit of {limit:,}.")
    return entries


def describe(name: str) -> str:
    """A picture's name in messages."""
    return f"picture {name}"


def read_json(body: bytes, most: int) -> Any:
    """What a client sends as JSON; a text with far more values than a request can need is not even parsed."""
    values = sum(map(body.count, (b",", b"[", b"{")))
    if values > most:
        raise Problem("unreadable_body", "the body has far more values than a request of this kind can need.")
    if values > MOST_VALUES:
        raise Problem(
            "too_large",
            f"a JSON body may have at most {MOST_VALUES:,} values.",
            "Send large tensors in binary: binary_data_size, and the numbers behind the JSON.",
        )
    if body.count(b"\\") > FEW + len(body) // 32:  # some programs escape the two signs of base64, a 32nd of its text
        raise Problem("unreadable_body", "the body has far more escaped characters than base64 can need.")
    try:
        return parse_json(body)
    except ValueError as error:
        raise Problem("unreadable_body", f"the body is not JSON: {plain(str(error))[:200]}") from None


def decode_base64(text: Any, name: str) -> bytes:
    """The bytes that a text stands for."""
    if not isinstance(text, str):
        raise invalid(f"{name} must be a base64 string; got {type(text).__name__}.")
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Problem(
            "unreadable_picture", f"{name} is not base64.", "Send plain base64 without line breaks."
        ) from None


def read_multipart(body: bytes, boundary: bytes, limit: int) -> list[Picture]:
    """The files of a form."""
    form = _Form(limit)
    try:
        parser = MultipartParser(boundary, cast("Any", form.callbacks()))
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Problem("unreadable_body", f"the form is damaged: {plain(str(error))[:200]}") from None
    if not form.ended:
        raise Problem("unreadable_body", "the form is truncated: its closing boundary is missing.")
    return form.pictures


class _Form:
    """Collects the parts of a form while a parser finds them: python_multipart's own takes 15 µs more for a picture."""

    def __init__(self, limit: int) -> None:
        self.pictures: list[Picture] = []
        self.ended = False
        self._limit = limit
        self._headers: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._chunks: list[bytes] = []

    def callbacks(self) -> dict[str, Callable[..., None]]:
        names = ("part_begin", "part_data", "part_end", "header_field", "header_value", "header_end", "end")
        return {f"on_{name}": getattr(self, name) for name in names}

    def part_begin(self) -> None:
        if len(self.pictures) == self._limit:
            limited = counted(self._limit, "picture")
            raise invalid(f"a request may have at most {limited}; got {self._limit + 1:,} or more.")
        self._headers, self._chunks = {}, []

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def part_data(self, data: bytes, start: int, end: int) -> None:
        self._chunks.append(data[start:end])

    def part_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if b"filename" not in options:
            name = options.get(b"name", b"").decode("utf-8", "replace")[:50]
            raise invalid(f"every part of the form must be a file; {name!r} is not.")
        name = plain(options[b"filename"].decode("utf-8", "replace"))[:LONGEST_NAME]
        self.pictures.append(Picture(name or str(len(self.pictures)), b"".join(self._chunks)))

    def end(self) -> None:
        self.ended = True

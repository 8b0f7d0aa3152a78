"""The pictures of a request: read while the limits hold, taken out of whatever carries them, and judged."""

import asyncio
import binascii
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from vitrail.reading import parse_json
from vitrail.serving.exchange import exchange_of
from vitrail.serving.headers import check_header
from vitrail.serving.problems import Problem
from vitrail.serving.settings import ServeSettings
from vitrail.wording import counted, plain

LONGEST_NAME = 200  # characters of a file name that are sent back
SLOWEST = 10_000  # bytes per second below which a client is taken to be holding a connection, not using it
DRAINED = 100_000_000  # bytes over a limit that are thrown away, so that the client can hear why
DRAIN_SECONDS = 2.0
MOST_VALUES = 1_000_000  # of a JSON text: parsing so many keeps everybody else waiting for a tenth of a second
UNPACKED = 1 << 20  # bytes of a compressed body that are unpacked at once
FEW = 1000  # values of a JSON text that nobody has to account for
_NO_ENCODING = "Send the body as it is, or compressed with gzip or deflate."


class Picture(NamedTuple):
    """One picture as it was sent."""

    name: str
    data: bytes


@dataclass
class Pictures:
    """What a request asks about, and what its body says beside the pictures."""

    pictures: list[Picture] = field(default_factory=list[Picture])
    fields: dict[str, Any] = field(default_factory=dict[str, Any])


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


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
    exchange = exchange_of(request)
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(settings.client_timeout) as deadline:
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                more = message.get("more_body", False)
                problem = None
                received += len(message.get("body", b""))
                async for chunk in _unpack(message.get("body", b""), unpacker):
                    problem = _over(limit) if size + len(chunk) > limit else exchange.receive(len(chunk))
                    if problem is not None:
                        break
                    size += len(chunk)
                    chunks.append(chunk)
                if problem is not None:
                    break
                if not more:
                    if unpacker is not None and not (unpacker.eof or received == 0):
                        raise Problem("unreadable_body", f"the body is truncated: its {encoding} data has no end.")
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
                latest = began + 2 * settings.client_timeout + received / SLOWEST
                deadline.reschedule(min(loop.time() + settings.client_timeout, latest))
    except TimeoutError:
        raise Problem(
            "request_timeout",
            f"the body stopped after {counted(received, 'byte')}.",
            headers=(("connection", "close"),),
        ) from None
    if more:
        await _drain(request)
    raise problem


async def _unpack(data: bytes, unpacker: Any) -> AsyncIterator[bytes]:
    """A piece of the body as it is, or unpacked step by step: a few bytes can stand for millions."""
    if unpacker is None:
        if data:
            yield data
        return
    while data:
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
    size = 0
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAINED:
                message = await request.receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _over(limit: int) -> Problem:
    return Problem("too_large", f"the body is over the limit of {limit:,} bytes.", headers=(("connection", "close"),))


async def read_pictures(request: Request, settings: ServeSettings, fields: tuple[str, ...] = ()) -> Pictures:
    """The pictures of a request in any of the three forms; `fields` are what JSON may hold beside them."""
    body = await read_body(request, settings)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind == b"multipart/form-data":
        found = Pictures(read_multipart(body, options.get(b"boundary", b""), settings.max_pictures))
    elif kind == b"application/json":
        found = _read_json(body, settings, fields)
    else:  # by what it is, not by what it is called
        found = Pictures([Picture("0", body)])
    if not found.pictures:
        raise Problem("unreadable_body", "the request contains no picture.")
    return found


def judge(pictures: list[Picture], settings: ServeSettings) -> list[Problem | int]:
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


def _check_count(count: int, limit: int) -> None:
    if count > limit:
        raise Problem(
            "invalid_argument", f"a request may have at most {counted(limit, 'picture')}; got {count:,} or more."
        )


def _read_json(body: bytes, settings: ServeSettings, fields: tuple[str, ...]) -> Pictures:
    content = read_object(body, settings.max_pictures + FEW)
    listed = content.pop("pictures", None)
    if unknown := sorted(content.keys() - set(fields)):
        known = ", ".join(("pictures", *fields))
        raise Problem("invalid_argument", f"unknown field {unknown[0][:50]!r} in the body; known: {known}.")
    if not isinstance(listed, list) or not listed:
        raise Problem("invalid_argument", 'the body must have "pictures": a list of at least one base64 string.')
    texts = cast("list[Any]", listed)
    _check_count(len(texts), settings.max_pictures)
    pictures = [Picture(str(index), decode_base64(text, describe(str(index)))) for index, text in enumerate(texts)]
    return Pictures(pictures, content)


def read_object(body: bytes, most: int) -> dict[str, Any]:
    """A JSON object from a client; one with far more values than a request can need is not even parsed."""
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
        content: Any = parse_json(body)
    except ValueError as error:
        raise Problem("unreadable_body", f"the body is not JSON: {plain(str(error))[:200]}") from None
    if not isinstance(content, dict):
        raise Problem("invalid_argument", "the body must be a JSON object.")
    return cast("dict[str, Any]", content)


def decode_base64(text: Any, name: str) -> bytes:
    """The bytes that a text stands for."""
    if not isinstance(text, str):
        raise Problem("invalid_argument", f"{name} must be a base64 string; got {type(text).__name__}.")
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Problem(
            "unreadable_picture", f"{name} is not base64.", "Send plain base64 without line breaks."
        ) from None


def read_multipart(body: bytes, boundary: bytes, limit: int) -> list[Picture]:
    """The file parts of a form."""
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
    """Collects the parts of a form while a parser finds them."""

    def __init__(self, limit: int) -> None:
        self.pictures: list[Picture] = []
        self.ended = False
        self._limit = limit
        self._headers: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._chunks: list[bytes] = []

    def callbacks(self) -> Mapping[str, Any]:
        names = ("part_begin", "part_data", "part_end", "header_field", "header_value", "header_end", "end")
        return {f"on_{name}": getattr(self, name) for name in names}

    def part_begin(self) -> None:
        _check_count(len(self.pictures) + 1, self._limit)
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
            raise Problem("invalid_argument", f"every part of the form must be a file; {name!r} is not.")
        name = plain(options[b"filename"].decode("utf-8", "replace"))[:LONGEST_NAME]
        self.pictures.append(Picture(name or str(len(self.pictures)), b"".join(self._chunks)))

    def end(self) -> None:
        self.ended = True

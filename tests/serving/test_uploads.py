"""Format and size of a picture from its first bytes, compared with Pillow."""

import io
import struct
import zlib
from contextlib import nullcontext

import pytest
from PIL import Image

from serving.conftest import encode
from vitrail.serving.exchange import Problem
from vitrail.serving.uploads import check_header, size_of


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"exif": b"Exif\0\0" + b"\xff\xff\xff" * 500, "icc_profile": b"x" * 200_000}),
        ("JPEG", {"mode": "CMYK"}),
        ("JPEG", {"mode": "L"}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0anything"}),
        ("WEBP", {"mode": "RGBA"}),
    ],
)
@pytest.mark.parametrize("size", [(1, 1), (17, 300), (513, 40)])
def test_sizes_are_those_that_pillow_reads(kind: str, options: dict, size: tuple[int, int]) -> None:
    data = encode(kind, size, **options)
    assert size_of(data, "it") == Image.open(io.BytesIO(data)).size == size


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_truncated_headers_are_refused_or_read(kind: str) -> None:
    data = encode(kind)
    for length in range(200):
        try:
            size = size_of(data[:length], "it")
        except Problem:
            continue
        assert size == (40, 30)


@pytest.mark.parametrize("data", [encode("GIF"), encode("BMP"), encode("TIFF"), b"<svg/>", b"%PDF-1.7", b"\xff\xd8"])
def test_other_formats_are_refused(data: bytes) -> None:
    with pytest.raises(Problem) as caught:
        check_header(data, 10**6, "it")
    assert caught.value.status == 415


def png(width: int, height: int, extra: bytes = b"") -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + extra


def test_too_many_pixels_are_refused_by_the_header() -> None:
    with pytest.raises(Problem) as caught:
        check_header(png(20_000, 20_000), 50_000_000, "it")
    assert caught.value.status == 413
    assert "20000×20000 pixels are over the limit of 50,000,000" in caught.value.message
    with pytest.raises(Problem) as caught:
        check_header(png(0, 5), 50_000_000, "it")
    assert caught.value.status == 400


def test_what_follows_a_jpeg_is_not_part_of_it() -> None:
    """Phones append a video to a photograph, in which any two bytes occur."""
    data = encode("JPEG", progressive=True)
    assert size_of(data + b"\xff\xda" * 4_000_000, "it") == (40, 30)


@pytest.mark.parametrize("hidden", [b"", b"\xff\xfe\0\x04\xff\xd9", b"\xff\xd0"])
def test_many_scans_are_refused_whatever_hides_them(hidden: bytes) -> None:
    data = encode("JPEG")
    scan = data[data.index(b"\xff\xda") : -2]
    for count, told in ((100, "more than 64 scans"), (65, "more than 64 scans"), (20, "")):
        with pytest.raises(Problem, match=told) if told else nullcontext():
            size_of(data[:-2] + hidden + scan * (count - 1) + b"\xff\xd9" + b"\xff\xda" * 100, "it")
    comments = b"\xff\xfe\0\x04\xff\xda" * 2000
    with pytest.raises(Problem, match="too many parts"):
        size_of(data[:-2] + comments + b"\xff\xd9", "it")


@pytest.mark.parametrize(
    ("start", "told", "hint"),
    [
        (b"\0\0\0\x1cftypmif1", "it is a HEIC picture", "Most Compatible"),
        (b"\0\0\0\x1cftypavif", "it is an AVIF picture", "Save it as JPEG"),
        (b"%PDF-1.4", "it is a PDF document", "screenshot"),
        (b"\xef\xbb\xbf <svg xmlns=", "it is an SVG drawing", "Export it as PNG"),
        (b"MM\0*", "it is a TIFF picture", "Save it as JPEG"),
        (b"hello <svg", "not a JPEG, PNG or WebP; it starts with 'hello <s'", "Send a JPEG"),
    ],
)
def test_other_formats_are_named(start: bytes, told: str, hint: str) -> None:
    with pytest.raises(Problem) as caught:
        size_of(start, "it")
    assert told in caught.value.message
    assert hint in caught.value.hint


def test_endless_metadata_and_scans_are_refused() -> None:
    empty = struct.pack(">I", 0) + b"tEXt" + b"\0\0\0\0"
    with pytest.raises(Problem) as caught:
        check_header(png(5, 5, empty * 5000), 100, "it")
    assert "metadata" in caught.value.message
    start = b"\xff\xd8"
    for flood in (b"\xff\xe1\0\x02" * 5000, b"\xff" * 100_000, b"\xff\xd8" * 50_000, b"\xff\xda\0\x02" * 100):
        with pytest.raises(Problem) as caught:
            check_header(start + flood, 100, "it")
        assert caught.value.status == 400

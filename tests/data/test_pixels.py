"""Opening pictures that nobody vouches for."""

import io
import os
import resource
import struct
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from fuzzing import attack, cases, damaged
from vitrail.data.pixels import decode, open_picture, orientation
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, InputError

SPEC = Preprocess()
GREY = Preprocess(channels=1, mean=(0.5,), std=(0.5,))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def load(data: bytes, spec: Preprocess = SPEC) -> np.ndarray:
    with open_picture(data) as image:
        return np.array(decode(image, spec))


def write_png(width: int, height: int, bits: int = 8, rows: bytes = b"") -> bytes:
    """An RGB picture; without rows, a header that would need gigabytes, and no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(60_000, 60_000), (10_000, 10_000), (9_500, 9_500)])
def test_too_many_pixels_are_refused_from_the_header(width: int, height: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"pixels"):
        open_picture(write_png(width, height))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB


def test_the_user_can_raise_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    with pytest.raises(InputError, match=r"11000×9000 .* shrink the picture, or set VITRAIL_MAX_PIXELS to 99000000 or"):
        open_picture(write_png(11_000, 9_000))  # a warning of Pillow would be an error too
    monkeypatch.setenv("VITRAIL_MAX_PIXELS", "500000000")
    with open_picture(write_png(20_000, 20_000)) as image:
        assert image.size == (20_000, 20_000)
    assert Image.MAX_IMAGE_PIXELS == 500_000_000, "Pillow judges crops and strips too"
    with pytest.raises(InputError, match=r"over the limit of 500,000,000"):
        open_picture(write_png(30_000, 20_000))
    monkeypatch.setenv("VITRAIL_MAX_PIXELS", "1e9")
    with pytest.raises(ConfigError, match=r"VITRAIL_MAX_PIXELS must be a number of pixels, .* got '1e9'"):
        open_picture(write_png(20, 20))


def test_the_limit_can_be_lowered() -> None:
    with pytest.raises(InputError, match=r"20×10 pixels are over the limit of 100"):
        open_picture(encoded(Image.new("RGB", (20, 10))), max_pixels=100)


@pytest.mark.parametrize("data", [b"", b"not a picture", b"\xff\xd8\xff", b"<svg></svg>", b"%PDF-1.4"])
def test_what_is_no_picture(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(data)
    with pytest.raises(InputError, match="empty" if not data else "picture"):
        open_picture(data)
    with pytest.raises(InputError, match=r"x\.jpg"):
        open_picture(tmp_path / "x.jpg")


def test_missing_and_forbidden_formats(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        open_picture(tmp_path / "missing.jpg")
    with pytest.raises(InputError, match=r"known format \(JPEG\)"):
        open_picture(encoded(Image.new("RGB", (4, 4)), "GIF"), formats=("JPEG",))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_every_format_is_read(kind: str) -> None:
    image = Image.new("RGB", (16, 12), (200, 30, 90))
    assert np.abs(load(encoded(image, kind)).astype(int) - (200, 30, 90)).max() <= 6


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
def test_truncated_files_are_errors(kind: str, part: float) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    with pytest.raises(InputError):
        load(data[: int(len(data) * part)])


@pytest.mark.fuzz
def test_damaged_bytes_give_pixels_or_an_input_error() -> None:
    gradient = Image.linear_gradient("L").resize((24, 24)).convert("RGB")
    files = [encoded(gradient, kind) for kind in ("JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP")]

    def read(data: bytes) -> None:
        assert load(data).ndim == 3

    outcomes = attack(read, damaged(files), cases(60))
    assert min(outcomes["read"], outcomes["refused"]) > cases(5)


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation(turn: int, kind: str) -> None:
    image = Image.new("RGB", (40, 24))
    image.paste((255, 255, 255), (0, 0, 20, 12))  # white top left
    exif = Image.Exif()
    exif[0x0112] = turn
    data = encoded(image, kind, exif=exif)
    expected = ImageOps.exif_transpose(open_picture(data)).convert("RGB")
    assert np.array_equal(load(data), np.array(expected))
    assert np.array_equal(load(data, replace(SPEC, orient=False)), np.array(open_picture(data).convert("RGB")))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_xmp_orientation_counts_where_exif_has_none(kind: str) -> None:
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    image = Image.new("RGB", (40, 24))
    chunks = PngInfo()
    chunks.add_itxt("XML:com.adobe.xmp", xmp.decode())
    data = encoded(
        image, kind, **{"PNG": {"pnginfo": chunks}, "TIFF": {"tiffinfo": {700: xmp}}}.get(kind, {"xmp": xmp})
    )
    assert load(data).shape == np.array(ImageOps.exif_transpose(open_picture(data))).shape == (40, 24, 3)
    if kind in ("JPEG", "WEBP"):
        exif = Image.Exif()
        exif[0x0112] = 1
        assert load(encoded(image, kind, exif=exif, xmp=xmp)).shape == (24, 40, 3), "EXIF decides"


def test_a_damaged_exif_tag_costs_nothing() -> None:
    data = encoded(Image.new("RGB", (8, 8)), "JPEG", exif=b"Exif\x00\x00garbage!")
    with open_picture(data) as image:
        assert orientation(image) == 1
    assert load(data).shape == (8, 8, 3)


def test_alpha() -> None:
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    for kind in ("PNG", "WEBP"):
        data = encoded(image, kind, **({"exact": True, "lossless": True} if kind == "WEBP" else {}))
        assert load(data)[0, 0].tolist() == [255, 0, 0]
        assert load(data, replace(SPEC, alpha="white"))[0, 0].tolist() == [255, 255, 255]
        assert load(data, replace(SPEC, alpha="black"))[0, 0].tolist() == [0, 0, 0]


def test_palette_with_transparency() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    for transparency in (1, b"\xff\x00"):
        data = encoded(image, transparency=transparency)
        assert load(data)[0, 0].tolist() == [10, 200, 30]
        assert load(data, replace(SPEC, alpha="white"))[0, 0].tolist() == [255, 255, 255]


def test_deeper_pictures_are_refused_by_name() -> None:
    levels = np.array([[0, 257, 32768, 4095]], dtype=np.uint16)
    for kind in ("PNG", "TIFF"):
        with pytest.raises(InputError, match=r"16 bits, from 0 to 32768, and .* no `value_range` .* save 8 bits"):
            load(encoded(Image.fromarray(levels), kind))
    with pytest.raises(InputError, match="16 bits"):
        load(write_png(1, 1, 16, b"\0abcdef"))
    with pytest.raises(InputError, match="float32"):
        load(encoded(Image.new("F", (4, 4)), "TIFF"))


def test_cmyk_grey_and_one_bit() -> None:
    assert load(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))[0, 0, 0] > 200
    assert load(encoded(Image.new("L", (8, 8), 77)))[0, 0].tolist() == [77, 77, 77]
    assert load(encoded(Image.new("1", (8, 8), 1)), GREY)[0, 0] == 255
    assert load(encoded(Image.new("RGB", (8, 8), (255, 0, 0))), GREY)[0, 0] == 76  # luma


def test_animated() -> None:
    frames = [Image.new("RGB", (6, 6), color) for color in ((255, 0, 0), (0, 0, 255))]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert load(data)[0, 0].tolist() == [255, 0, 0]
    with pytest.raises(InputError, match="several frames"):
        load(data, replace(SPEC, animated="error"))


def test_other_numbers_of_channels_are_refused() -> None:
    spec = Preprocess(channels=5, mean=(0.5,) * 5, std=(0.5,) * 5)
    with pytest.raises(InputError, match="has 3 channels; the model expects 5"):
        load(encoded(Image.new("RGB", (4, 4))), spec)


def test_what_is_not_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (tmp_path / "pipe.jpg", tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match="must be a file"):
            open_picture(path)


@pytest.mark.parametrize(
    "data",
    [
        b"P6\n#" + b"x" * 5_000_000 + b"\n2 2\n255\n" + bytes(12),
        b"P6\n" + b"#x\n" * 1_500_000 + b"2 2\n255\n" + bytes(12),
        b"P5" + b" " * 5_000_000 + b"2 2 255 " + bytes(4),
        b"P3\n1000 1000\n255\n" + b"#x\n" * 1_500_000 + b"1 2 3\n" * 1_000_000,
    ],
    ids=["one long", "many", "blanks", "among the pixels"],
)
def test_comments_in_ppm_pictures_do_not_take_minutes(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.ppm").write_bytes(data)
    start = time.process_time()
    for source in (data, tmp_path / "a.ppm"):
        with pytest.raises(InputError, match="too many or too long comments"):
            open_picture(source)
    assert time.process_time() - start < 10


@pytest.mark.parametrize("head", [b"P6\n# GIMP\n2 2\n255\n", b"P3 2 2 255 #c\n", b"P4\n#c\n16 6\n", b"P5 4 3 255\n"])
def test_usual_comments_are_read(head: bytes) -> None:
    with open_picture(head + (b"1 2 3 " * 4 if head[:2] == b"P3" else b"            ")) as image:
        assert decode(image, Preprocess()).size[0] in (2, 4, 16)

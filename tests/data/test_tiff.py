"""TIFF files with any samples, written and read by tifffile."""

import io
import struct
from dataclasses import replace

import numpy as np
import pytest
import tifffile
from PIL import Image

from fuzzing import attack, cases, damaged
from vitrail.data.pixels import read_raster
from vitrail.data.preprocess import Preprocess, preset
from vitrail.data.transform import pixels
from vitrail.errors import InputError

SIDE = (37, 50)


def spec_of(channels: int, **changes: object) -> Preprocess:
    return replace(preset("timm", 16, channels), **{"value_range": (0.0, 4095.0), **changes})


def values_of(channels: int, dtype: str = "uint16") -> np.ndarray:
    return np.random.default_rng(0).integers(0, 5000, (*SIDE, channels)).astype(dtype)


def tiff(values: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, **{"photometric": "minisblack", **options})
    return buffer.getvalue()


def read(data: bytes, channels: int | None = None) -> np.ndarray:
    raster = read_raster(data, "a.tif", channels)
    assert raster is not None
    return raster.values


LAYOUTS = [
    {"planarconfig": "contig"},
    {"planarconfig": "contig", "rowsperstrip": 7},
    {"planarconfig": "contig", "tile": (16, 32)},
    {"planarconfig": "contig", "bigtiff": True},
    {"planarconfig": "contig", "byteorder": ">"},
    {"planarconfig": "contig", "compression": "zlib", "predictor": True, "rowsperstrip": 9},
    {"planarconfig": "contig", "compression": "zlib", "tile": (16, 16), "byteorder": ">"},
]


@pytest.mark.parametrize("options", LAYOUTS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32", "float32", "float64"])
def test_samples_are_those_of_tifffile(options: dict[str, object], dtype: str) -> None:
    options = {name: value for name, value in options.items() if name != "predictor" or dtype[0] != "f"}
    data = tiff(values_of(5, dtype), **options)
    assert np.array_equal(tifffile.imread(io.BytesIO(data)), values_of(5, dtype))
    assert np.array_equal(read(data, 5), values_of(5, dtype).transpose(2, 0, 1))


def test_planes_apart_and_pages_are_channels() -> None:
    planes = values_of(5).transpose(2, 0, 1)
    assert np.array_equal(read(tiff(planes, planarconfig="separate"), 5), planes)
    assert np.array_equal(read(tiff(planes), 5), planes)  # five pages
    assert len(tifffile.TiffFile(io.BytesIO(tiff(planes))).pages) == 5
    with pytest.raises(InputError, match="has 5 channels; the model expects 7"):
        pixels(tiff(planes), spec_of(7))
    assert np.array_equal(read(tiff(planes), 3), planes[:1])  # of frames, the first, as in other pictures


@pytest.mark.parametrize("kind", ["tiff_lzw", "packbits", "tiff_adobe_deflate"])
def test_compressions_of_other_writers(kind: str) -> None:
    """Pillow writes grey with 16 bits; libtiff compresses it, with its predictor for LZW."""
    values = values_of(1)[..., 0]
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "TIFF", compression=kind)
    assert np.array_equal(read(buffer.getvalue(), 1), values[None])


def test_the_predictor_of_floats() -> None:
    values = np.random.default_rng(0).normal(size=SIDE).astype(np.float32)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "TIFF", compression="tiff_adobe_deflate", tiffinfo={317: 3})
    assert Image.open(buffer).tag_v2[317] == 3  # pyright: ignore[reportAttributeAccessIssue]
    assert np.array_equal(read(buffer.getvalue(), 1), values[None])


def test_white_may_be_zero() -> None:
    values = values_of(1)[..., 0] % 4096
    usual, inverted = (pixels(tiff(values, photometric=kind), spec_of(1)) for kind in ("minisblack", "miniswhite"))
    assert np.allclose(usual.numpy(), 255 - inverted.numpy(), atol=1e-4)


def test_rgb_with_alpha_and_infrared() -> None:
    values = values_of(4)
    with_alpha = tiff(values, photometric="rgb", extrasamples=["unassalpha"])
    assert pixels(with_alpha, spec_of(3)).shape == (3, *SIDE)
    with pytest.raises(InputError, match="has 4 channels; the model expects 3"):
        pixels(tiff(values, photometric="rgb", extrasamples=["unspecified"]), spec_of(3))
    assert np.array_equal(read(with_alpha, 4), values.transpose(2, 0, 1))


def test_pictures_of_eight_bits_are_still_pillows() -> None:
    values = values_of(3, "uint8")
    data = tiff(values, photometric="rgb")
    assert read_raster(data, "a.tif", 3) is None
    assert np.array_equal(pixels(data, Preprocess()).numpy(), values.transpose(2, 0, 1))


def test_what_cannot_be_read_is_named() -> None:
    for data, message in (
        (tiff(values_of(5), photometric="separated", planarconfig="contig"), "photometric 5"),
        (tiff(np.zeros((*SIDE, 5), "complex64"), planarconfig="contig"), "samples of 64 bits"),
    ):
        with pytest.raises(InputError, match=message):
            pixels(data, spec_of(5))
    whole = tiff(values_of(5), planarconfig="contig")
    with pytest.raises(InputError, match="truncated"):
        pixels(whole[: len(whole) // 2], spec_of(5))
    width, huge = (struct.pack("<HHII", 256, 4, 1, number) for number in (50, 2**31))
    with pytest.raises(InputError, match="over the limit"):
        pixels(whole.replace(width, huge), spec_of(5))


def test_pages_that_never_end() -> None:
    data = bytearray(tiff(values_of(5), planarconfig="contig"))
    first = struct.unpack_from("<I", data, 4)[0]
    count = struct.unpack_from("<H", data, first)[0]
    struct.pack_into("<I", data, first + 2 + 12 * count, first)
    with pytest.raises(InputError, match="never end"):
        pixels(bytes(data), spec_of(5))


@pytest.mark.fuzz
def test_damaged_files_are_refused() -> None:
    grey = io.BytesIO()
    Image.fromarray(values_of(1)[..., 0]).save(grey, "TIFF", compression="packbits")
    whole = [tiff(values_of(5), **options) for options in LAYOUTS] + [tiff(values_of(5).transpose(2, 0, 1))]
    outcomes = attack(lambda data: pixels(data, spec_of(5)), damaged([*whole, grey.getvalue()]), cases(80))
    assert outcomes["refused"]

"""Pictures of more than 8 bits or 3 channels: what becomes of their values, against NumPy's formulas and Pillow."""

import io
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from fuzzing import attack, cases, damaged
from vitrail.data.augment.ops import KERNELS, grey
from vitrail.data.pixels import fit_array, is_picture_name, read_raster
from vitrail.data.preprocess import Preprocess, preset
from vitrail.data.transform import fit, look_at_picture, normalize, pixels, prepare
from vitrail.errors import ConfigError, InputError
from vitrail.schema import from_dict, to_dict

RANGE = (100.0, 4195.0)
SIDE = (24, 40)


def spec_of(channels: int, **changes: object) -> Preprocess:
    return replace(preset("timm", 16, channels), **{"value_range": RANGE, **changes})


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def values_of(channels: int, dtype: str = "uint16", seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(0, 5000, (*SIDE, channels))
    return drawn.astype(dtype)


def scaled(values: np.ndarray) -> np.ndarray:
    """The formula of `value_range`, (C, H, W) in [0, 255]."""
    share = (values.astype(np.float64) - RANGE[0]) / (RANGE[1] - RANGE[0])
    return 255 * np.clip(share, 0, 1).transpose(2, 0, 1)


def write_png(values: np.ndarray) -> bytes:
    """A PNG of 16 bits, RGB or RGBA, (H, W, C), by the specification; each row has another filter."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = values.shape
    rows = values.astype(">u2").view(np.uint8).reshape(height, -1)
    step, lines = 2 * channels, []
    for row in range(height):
        left = np.concatenate([np.zeros(step, np.uint8), rows[row, :-step]])
        above = rows[row - 1] if row else np.zeros_like(rows[0])
        kind = row % 3
        lines.append(bytes([kind]) + (rows[row] - (0, left, above)[kind]).astype(np.uint8).tobytes())
    header = struct.pack(">IIBBBBB", width, height, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"".join(lines))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("dtype", ["uint16", "int16", "int32", "float32", "float64", ">u2", ">f4"])
def test_values_become_pixels_by_the_range(dtype: str) -> None:
    values = values_of(5, dtype)
    for data in (npy(values), npy(values.transpose(2, 0, 1)), npy(np.asfortranarray(values)), values):
        assert np.allclose(pixels(data, spec_of(5)).numpy(), scaled(values), atol=1e-4)


def test_resizing_is_pillows_on_floats() -> None:
    values = values_of(5)
    for interpolation in ("bilinear", "bicubic", "lanczos"):
        spec = spec_of(5, interpolation=interpolation, crop=1.0, resize="squash")
        planes = [Image.fromarray(plane.astype(np.float32)) for plane in scaled(values)]
        kind = Image.Resampling[interpolation.upper()]
        expected = np.stack([np.array(plane.resize((16, 16), kind)) for plane in planes]).clip(0, 255)
        assert np.abs(fit(npy(values), spec).numpy() - expected).max() < 1e-3
        assert np.array_equal(fit_array(npy(values), spec), fit(npy(values), spec).numpy())
        assert np.array_equal(fit(values, spec).numpy(), fit(npy(values), spec).numpy())
        mean, std = (np.reshape(numbers, (-1, 1, 1)) for numbers in (spec.mean, spec.std))
        assert np.allclose(prepare(npy(values), spec).numpy(), (expected / 255 - mean) / std, atol=1e-4)


def test_torch_resizes_them_as_it_does_floats() -> None:
    values = values_of(5)
    spec = spec_of(5, kernel="float", crop=1.0, resize="squash")
    expected = torch.nn.functional.interpolate(
        torch.tensor(scaled(values)[None], dtype=torch.float32), (16, 16), mode="bicubic", antialias=True
    )
    assert torch.allclose(fit(npy(values), spec), expected[0].clamp(0, 255), atol=1e-3)


@pytest.mark.parametrize("kernel", ["pillow", "bytes", "float"])
def test_bytes_are_what_they_were(kernel: str, tmp_path: Path) -> None:
    """With a range, pictures of 8 bits give the same pixels as without, to the bit."""
    data = io.BytesIO()
    Image.fromarray(values_of(3).astype(np.uint8)).save(data, "PNG")
    spec = spec_of(3, kernel=kernel)
    usual = replace(spec, value_range=None)
    assert torch.equal(prepare(data.getvalue(), spec), prepare(data.getvalue(), usual))
    assert torch.equal(normalize(fit(data.getvalue(), spec), spec), prepare(data.getvalue(), usual))


def test_png_of_sixteen_bits_keeps_them_all() -> None:
    for channels in (3, 4):
        values = values_of(channels) * 13
        raster = read_raster(write_png(values), "a.png")
        assert raster is not None
        assert np.array_equal(raster.values, values.transpose(2, 0, 1))
    grey_levels = values_of(1)[..., 0]
    data = io.BytesIO()
    Image.fromarray(grey_levels).save(data, "PNG")
    assert np.allclose(pixels(data.getvalue(), spec_of(1)).numpy(), scaled(grey_levels[..., None]), atol=1e-4)
    assert pixels(data.getvalue(), spec_of(3)).shape == (3, *SIDE)
    with Image.open(io.BytesIO(write_png(values_of(3)))) as image:  # opened and not decoded, as the service does
        assert np.allclose(pixels(image, spec_of(3)).numpy(), scaled(values_of(3)), atol=1e-4)


def test_alpha_is_a_fourth_channel_or_is_laid_on_a_colour() -> None:
    deep, values = write_png(values_of(4)), scaled(values_of(4))
    assert np.allclose(pixels(deep, spec_of(4)).numpy(), values, atol=1e-4)
    assert np.allclose(pixels(deep, spec_of(3)).numpy(), values[:3], atol=1e-4)
    laid = pixels(deep, spec_of(3, alpha="white")).numpy()
    assert np.allclose(laid, values[:3] * values[3] / 255 + 255 - values[3], atol=1e-2)
    usual = values_of(4).astype(np.uint8)
    data = io.BytesIO()
    Image.fromarray(usual).save(data, "PNG")
    assert np.array_equal(pixels(data.getvalue(), spec_of(4, value_range=None)).numpy(), usual.transpose(2, 0, 1))
    with pytest.raises(InputError, match="has 3 channels; the model expects 4"):
        pixels(write_png(values_of(3)), spec_of(4))


def test_grey_of_colours_is_pillows() -> None:
    values = values_of(3).astype(np.uint8)
    expected = np.array(Image.fromarray(values).convert("L"))
    assert np.abs(pixels(npy(values), spec_of(1)).numpy()[0] - expected).max() <= 0.51
    assert np.array_equal(pixels(npy(values), spec_of(1, value_range=None)).numpy()[0], expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_pillow_turns_them(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = io.BytesIO()
    Image.fromarray(values_of(1)[..., 0]).save(data, "TIFF", exif=exif)
    raster = read_raster(data.getvalue(), "a.tif")
    assert raster is not None
    expected = np.array(ImageOps.exif_transpose(Image.open(data)))
    assert np.allclose(pixels(data.getvalue(), spec_of(1)).numpy(), scaled(expected[..., None]), atol=1e-4)


@pytest.mark.parametrize(
    ("array", "channels", "message"),
    [
        (np.zeros((5, 8, 5), "uint16"), 5, r"either the first or the last axis of the shape \(5, 8, 5\)"),
        (np.zeros((8, 9, 4), "uint16"), 5, r"has the shape \(8, 9, 4\); the model expects 5 channels"),
        (np.zeros((8, 9), "uint16"), 5, "has 1 channel; the model expects 5"),
        (np.zeros((2, 8, 9, 5), "uint16"), 5, r"must be an array \(H, W\)"),
        (np.zeros((0, 9, 5), "uint16"), 5, "must have pixels"),
        (np.zeros((8, 9, 5), "complex64"), 5, "holds complex64"),
        (np.array([[{}]]), 5, "object"),
        (np.full((8, 9, 5), np.nan), 5, "NaN"),
    ],
)
def test_arrays_that_cannot_be_pictures(array: np.ndarray, channels: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pixels(npy(array), spec_of(channels))


def test_without_a_range_they_are_refused_with_their_values() -> None:
    values = values_of(5)
    with pytest.raises(InputError, match=rf"16 bits, from {values.min()} to {values.max()}, .*`value_range`"):
        pixels(npy(values), spec_of(5, value_range=None))
    with pytest.raises(InputError, match="float64"):
        pixels(npy(values / 5000), spec_of(5, value_range=None))
    usual = values.astype(np.uint8)
    assert np.array_equal(pixels(npy(usual), spec_of(5, value_range=None)).numpy(), usual.transpose(2, 0, 1))


def test_ranges_that_are_none() -> None:
    for value_range in ((1.0, 1.0), (2.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0)):
        with pytest.raises(ConfigError, match="value_range must be"):
            spec_of(3, value_range=value_range)


def test_the_range_is_stored_only_if_it_is_used() -> None:
    """So that older versions read the checkpoints of those who have none."""
    assert "value_range" not in to_dict(Preprocess())
    assert from_dict(Preprocess, to_dict(spec_of(5))) == spec_of(5)


def test_headers_are_judged_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = npy(np.zeros((1, 1), "uint16")).replace(b"(1, 1)", b"(99999, 99999)")[:128]
    with pytest.raises(InputError, match="over the limit"):
        pixels(huge, spec_of(1))
    monkeypatch.setenv("VITRAIL_MAX_PIXELS", "100")
    for data in (npy(values_of(3)), write_png(values_of(3))):
        with pytest.raises(InputError, match="limit"):
            pixels(data, spec_of(3))


def test_a_person_sees_the_first_three_channels() -> None:
    values = values_of(5)
    shown = look_at_picture(npy(values), RANGE)
    assert np.abs(np.array(shown) - scaled(values)[:3].transpose(1, 2, 0)).max() <= 0.51
    stretched = np.array(look_at_picture(npy(values[..., :2])))  # from the lowest to the highest
    assert stretched.shape == SIDE
    assert (stretched.min(), stretched.max()) == (0, 255)


def test_names_of_pictures() -> None:
    assert all(map(is_picture_name, ("a.npy", "b.DCM", "c.tif", "d.tiff", "e.dicom")))


@pytest.mark.parametrize("name", KERNELS)
def test_operations_on_floats_are_those_on_bytes_without_rounding(name: str) -> None:
    """Of whole numbers, up to the rounding of each step; and nothing leaves the range or loses its type."""
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    strength = {"posterize": 4.0, "solarize": 128.0, "blur": 1.5, "hue": 0.2}.get(name, 1.6)
    factor = torch.full((2, 1, 1, 1), strength)
    expected, floats = KERNELS[name](images, factor), KERNELS[name](images.float(), factor)
    assert floats.dtype == torch.float32
    assert (floats.min() >= 0) & (floats.max() <= 255)
    assert (floats - expected.float()).abs().max() <= (2.1 if name in ("contrast", "sharpness", "saturation") else 1)
    many = torch.rand(2, 5, 16, 16) * 255
    assert KERNELS[name](many, factor).shape == many.shape
    assert torch.allclose(grey(many), many.mean(1, keepdim=True))


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["npy", "png"])
def test_damaged_files_are_refused(kind: str) -> None:
    make: dict[str, Callable[[], bytes]] = {"npy": lambda: npy(values_of(3)), "png": lambda: write_png(values_of(3))}
    outcomes = attack(lambda data: pixels(data, spec_of(3)), damaged([make[kind]()]), cases(60))
    assert outcomes["refused"]


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    for path in (tmp_path / "missing.npy", tmp_path / "pipe.npy", tmp_path):
        with pytest.raises(InputError):
            pixels(path, spec_of(3))

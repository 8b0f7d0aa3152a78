"""Any kind of picture → the same tensor."""

import contextlib
import io
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.conftest import picture

from vitrail.data import Augment, Source
from vitrail.data.chunks import ChunkMaker
from vitrail.data.preprocess import Preprocess, preset
from vitrail.data.transform import denormalize, fit, fit_tensor, normalize, prepare, resize, to_tensor
from vitrail.errors import DataError, InputError
from vitrail.rng import Draws

SPECS = [preset(name, 32) for name in ("google", "timm", "hf", "torchvision")]


@pytest.mark.parametrize("spec", SPECS, ids=["google", "timm", "hf", "torchvision"])
def test_every_kind_of_picture_gives_the_same(spec: Preprocess, tmp_path: Path) -> None:
    image = picture(1, (70, 50))
    image.save(tmp_path / "x.png")
    array = np.array(image)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    kinds = [image, tmp_path / "x.png", str(tmp_path / "x.png"), (tmp_path / "x.png").read_bytes(), array, tensor]
    kinds += [array.astype(np.float32) / 255, tensor.double() / 255]
    kinds += [(array / 255).astype(">f4"), (array / 255).astype(">f8")]
    expected = prepare(image, spec)
    assert expected.shape == (3, 32, 32)
    for kind in kinds:
        assert torch.equal(prepare(kind, spec), expected)


def test_read_only_and_flipped_arrays() -> None:
    array = np.array(picture(2))
    array.flags.writeable = False
    assert prepare(array, preset("hf", 16)).shape == (3, 16, 16)
    assert torch.equal(prepare(array[::-1], preset("hf", 16)), prepare(array[::-1].copy(), preset("hf", 16)))


def test_grey_arrays_become_colour_and_channels_must_fit() -> None:
    spec = preset("hf", 8)
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    assert torch.equal(fit(grey, spec), torch.from_numpy(grey).expand(3, 8, 8))
    with pytest.raises(InputError, match=r"must have 3 channels.*\(8, 8, 2\)"):
        fit(np.zeros((8, 8, 2), dtype=np.uint8), spec)
    five = Preprocess(size=(4, 4), channels=5, mean=(0.5,) * 5, std=(0.5,) * 5)
    assert prepare(np.zeros((8, 8, 5), dtype=np.uint8), five).shape == (5, 4, 4)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.zeros((2, 8, 8, 3), dtype=np.uint8), "array"),
        (np.zeros((0, 8, 3), dtype=np.uint8), "with pixels"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), "int64, .*value_range"),
        (np.zeros((8, 8, 3), dtype=np.uint16), "16 bits, .*value_range"),
        (np.full((8, 8, 3), "x"), "pixels must be bytes"),
        (np.zeros((8, 8, 3), dtype=object), "pixels must be bytes"),
        (np.zeros((8, 8, 3), dtype=np.longdouble), "pixels must be bytes"),
        (torch.full((3, 8, 8), 1.5), r"floats? .*\[0, 1\]"),
        (torch.full((3, 8, 8), float("nan")), r"\[0, 1\]"),
    ],
)
def test_pixels_that_cannot_be(pixels: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(pixels, preset("hf", 8))


def test_normalize_and_back() -> None:
    images = torch.randint(0, 256, (5, 3, 9, 7), dtype=torch.uint8)
    spec = replace(preset("torchvision"), size=(9, 7), resize_to=None)
    floats = normalize(images, spec)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (spec.mean, spec.std))
    assert torch.allclose(floats, (images / 255 - mean) / std, atol=1e-6)
    assert torch.equal(denormalize(floats, spec), images)
    memory = torch.empty(5, 3, 9, 7)
    assert normalize(images, spec, memory) is memory
    assert torch.equal(memory, floats)
    assert normalize(images[:0], spec).shape == (0, 3, 9, 7)


@pytest.mark.parametrize("kernel", ["pillow", "bytes", "float"])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_a_batch_is_its_pictures(kernel: str, interpolation: str) -> None:
    spec = Preprocess(size=(12, 12), kernel=kernel, interpolation=interpolation, resize="shortest", crop=0.8)
    images = torch.stack([torch.from_numpy(np.array(picture(seed))).permute(2, 0, 1) for seed in range(3)])
    batch = fit_tensor(images, spec)
    for image, whole in zip(images, batch, strict=True):
        assert torch.equal(fit(image, spec), whole)
    assert batch.min() >= 0
    assert batch.max() <= 255


def test_lanczos_is_pillows() -> None:
    image = picture(4, (60, 44))
    spec = Preprocess(size=(20, 20), interpolation="lanczos")
    expected = np.array(image.resize((20, 20), Image.Resampling.LANCZOS))
    assert np.array_equal(fit(image, spec).permute(1, 2, 0), expected)
    assert torch.equal(fit(np.array(image), spec), fit(image, spec))


def test_a_picture_of_the_right_size_is_not_resampled() -> None:
    image = picture(5, (16, 16))
    for spec in (preset("google", 16), preset("hf", 16), replace(preset("timm", 16), crop=1.0)):
        assert np.array_equal(fit(image, spec).to(torch.uint8).permute(1, 2, 0), np.array(image))


def test_errors_name_the_file(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    picture(0).save(buffer, "JPEG")
    (tmp_path / "cut.jpg").write_bytes(buffer.getvalue()[:-200])
    with pytest.raises(InputError, match=r"cut\.jpg: damaged or truncated"):
        prepare(tmp_path / "cut.jpg", preset("hf"))


@pytest.mark.parametrize("name", ["timm", "hf", "google", "torchvision"])
@pytest.mark.parametrize("augment", [None, Augment(), Augment(crop="pad"), Augment(crop="resized")])
def test_a_picture_of_extreme_shape_is_refused_or_cheap(name: str, augment: Augment | None) -> None:
    """One pixel wide and 20,000 high: 224 wide, it would have a billion pixels."""
    buffer = io.BytesIO()
    Image.new("L", (1, 20_000)).save(buffer, "PNG")
    source = FakeSource(buffer.getvalue())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    maker = ChunkMaker(source, preset(name), augment, 2)
    rows = np.zeros(1, dtype=np.int64)
    with contextlib.suppress(DataError):
        chunk = maker.make(rows, Draws(0, 0, rows), torch.empty(1, 3, 224, 224), substitute=augment is not None)
        assert all("too narrow" in why for why in chunk.broken.values())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000  # kilobytes


@pytest.mark.parametrize("kernel", ["pillow", "bytes", "float"])
@pytest.mark.parametrize("shape", [(5, 2001), (2000, 4), (5, 330)])
def test_of_a_very_long_picture_only_the_middle_is_resized(kernel: str, shape: tuple[int, int]) -> None:
    """Which looks as if all of it had been."""
    down, across = np.linspace(0, 6, shape[0]), np.linspace(0, 40, shape[1])
    values = 127 + 60 * np.sin(down[:, None]) + 60 * np.cos(across[None])
    picture = np.repeat(values.astype(np.uint8)[..., None], 3, axis=2)
    spec = Preprocess(size=(16, 16), resize="shortest", kernel=kernel, interpolation="bicubic")  # pyright: ignore[reportArgumentType]
    height, width = spec.middle(*shape)
    assert max(height, width) <= 64 * min(shape) + 1
    assert ((shape[0] - height) % 2, (shape[1] - width) % 2) == (0, 0)
    resized = spec.resized(*shape)
    whole = resize(to_tensor(Image.fromarray(picture))[None], spec, *resized)[0]
    top, left = spec.corner(*resized)
    expected = whole[:, top : top + 16, left : left + 16].float()
    for given in (Image.fromarray(picture), picture):
        assert (fit(given, spec).float() - expected).abs().max() <= 3
    assert Preprocess(size=(16, 16)).middle(1, 50_000) == (1, 50_000)  # squashed: all of it is seen


class FakeSource(Source):
    """One picture over and over."""

    def __init__(self, data: bytes) -> None:
        super().__init__([0])
        self._data = data

    def picture(self, index: int) -> bytes:
        return self._data

    def key(self, index: int) -> str:
        return "fake"

    def select(self, indices: object) -> Source:
        return self

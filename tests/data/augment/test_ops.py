"""Every operation against Pillow's or torchvision's own."""

import math

import numpy as np
import pytest
import torch
from benchmarks.peers import torchvision
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_images
from torch import Tensor

from vitrail.data.augment.ops import KERNELS, WARPS, apply_ops

V2 = torchvision.transforms.v2.functional
PHOTOGRAPHS = [Image.fromarray(image).resize((61, 47)) for image in load_sample_images().images]


def as_batch(images: list[Image.Image]) -> Tensor:
    return torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images])


def ours(op: str, values: list[float], images: list[Image.Image] = PHOTOGRAPHS) -> Tensor:
    """Each photograph at each strength, in one batch."""
    batch = as_batch([image for image in images for _ in values])
    apply_ops(batch, np.array([op] * len(batch)), np.array(values * len(images)))
    return batch


def theirs(function, values: list[float], images: list[Image.Image] = PHOTOGRAPHS) -> Tensor:
    return as_batch([function(image, value) for image in images for value in values])


PILLOW = {
    "brightness": (lambda image, value: ImageEnhance.Brightness(image).enhance(value), [0.1, 0.73, 1.0, 1.9]),
    "saturation": (lambda image, value: ImageEnhance.Color(image).enhance(value), [0.1, 0.73, 1.0, 1.9]),
    "contrast": (lambda image, value: ImageEnhance.Contrast(image).enhance(value), [0.1, 0.73, 1.0, 1.9]),
    "sharpness": (lambda image, value: ImageEnhance.Sharpness(image).enhance(value), [0.1, 0.73, 1.0, 1.9]),
    "posterize": (lambda image, value: ImageOps.posterize(image, int(value)), [2, 4, 7, 8]),
    "solarize": (lambda image, value: ImageOps.solarize(image, value), [0, 128, 178.5, 255]),
    "equalize": (lambda image, _: ImageOps.equalize(image), [0]),
    "invert": (lambda image, _: ImageOps.invert(image), [0]),
    "grayscale": (lambda image, _: image.convert("L").convert("RGB"), [0]),
}


@pytest.mark.parametrize("op", PILLOW)
def test_equals_pillow_exactly(op: str) -> None:
    function, values = PILLOW[op]
    assert torch.equal(ours(op, values), theirs(function, values))


def test_autocontrast_is_pillows_to_one_level() -> None:
    """Pillow multiplies by a rounded scale; we divide integers."""
    dull = [ImageEnhance.Contrast(image).enhance(0.4) for image in PHOTOGRAPHS]
    difference = ours("autocontrast", [0], dull).int() - theirs(
        lambda image, _: ImageOps.autocontrast(image), [0], dull
    )
    assert difference.abs().max() <= 1
    assert (difference != 0).float().mean() < 0.05


@pytest.mark.parametrize("op", ["equalize", "autocontrast"])
def test_flat_pictures_stay(op: str) -> None:
    flat = [Image.new("RGB", (9, 7), (10, 200, 255))]
    assert torch.equal(ours(op, [0], flat), as_batch(flat))


AFFINE = {
    "shear_x": lambda image, value: V2.affine(
        image, 0, [0, 0], 1.0, [math.degrees(math.atan(value)), 0], center=[0, 0]
    ),
    "shear_y": lambda image, value: V2.affine(
        image, 0, [0, 0], 1.0, [0, math.degrees(math.atan(value))], center=[0, 0]
    ),
    "translate_x": lambda image, value: V2.affine(image, 0, [int(value), 0], 1.0, [0, 0]),
    "translate_y": lambda image, value: V2.affine(image, 0, [0, int(value)], 1.0, [0, 0]),
    "rotate": lambda image, value: V2.rotate(image, value),
}


@pytest.mark.parametrize("op", WARPS)
def test_warps_are_torchvisions(op: str) -> None:
    values = [-9.6, -3, 0, 7.2, 25.0] if op in ("translate_x", "translate_y", "rotate") else [-0.3, 0, 0.11, 0.9]
    batch = as_batch([image for image in PHOTOGRAPHS for _ in values])
    expected = torch.stack([AFFINE[op](image, value) for image, value in zip(batch, values * 2, strict=True)])
    same = (ours(op, values) == expected).float().mean()
    assert same == 1.0 if op.startswith("translate") else same > 0.995


def test_hue_is_torchvisions() -> None:
    values = [-0.5, -0.1, 0.0, 0.3]
    expected = [V2.adjust_hue(image, value) for image in as_batch(PHOTOGRAPHS) for value in values]
    assert (ours("hue", values).int() - torch.stack(expected).int()).abs().max() <= 1


def test_blur_is_torchvisions() -> None:
    values = [0.1, 0.9, 2.0]
    batch = as_batch(PHOTOGRAPHS)
    expected = torch.stack([V2.gaussian_blur(image, [13, 13], [value, value]) for image in batch for value in values])
    inside = (slice(None), slice(None), slice(6, -6), slice(6, -6))  # the border is replicated, torchvision's reflected
    assert (ours("blur", values)[inside].int() - expected[inside].int()).abs().max() <= 1


@pytest.mark.parametrize("op", [*KERNELS, *WARPS])
def test_a_sample_does_not_depend_on_its_batch(op: str) -> None:
    batch = torch.randint(0, 256, (33, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    values = np.linspace(0.3, 1.9, 33)
    together, apart = batch.clone(), batch.clone()
    apply_ops(together, np.array([op] * 33), values)
    for row in range(33):
        apply_ops(apart[row : row + 1], np.array([op]), values[row : row + 1])
    assert torch.equal(together, apart)


@pytest.mark.parametrize("op", [*KERNELS, *WARPS])
def test_grey_pictures_keep_their_shape(op: str) -> None:
    batch = torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)
    apply_ops(batch, np.array([op] * 2), np.array([1.2, 0.7]))
    assert batch.shape == (2, 1, 8, 8)


def test_samples_without_an_operation_are_untouched() -> None:
    batch = as_batch(PHOTOGRAPHS)
    changed = batch.clone()
    apply_ops(changed, np.array(["", "invert"]), np.zeros(2))
    assert torch.equal(changed[0], batch[0])
    assert torch.equal(changed[1], 255 - batch[1])

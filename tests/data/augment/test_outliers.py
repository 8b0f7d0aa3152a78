"""Outliers: pictures of nothing, made of training pictures."""

import numpy as np
import pytest
import torch

from vitrail.data.augment import outliers
from vitrail.data.augment.outliers import (
    KINDS,
    PARTS,
    SIZES,
    coloured_noise,
    crop_photographs,
    make_outliers,
    parts_of,
    photographs,
    pick_outliers,
    scramble,
)
from vitrail.data.config import Augment
from vitrail.rng import Draws


def draws(count: int) -> Draws:
    return Draws(0, 0, np.arange(count))


def noise(count: int, channels: int = 3, size: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)


def only(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(outliers, "KINDS", {kind: 1.0})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_kind_changes_every_picture(kind: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, kind)
    images, others = noise(20, channels)[:10], noise(20, channels)[10:]
    made = make_outliers(images, others, draws(10))
    assert made.shape == images.shape
    assert made.dtype == torch.uint8
    assert all(not torch.equal(one, other) for one, other in zip(made, images, strict=True))
    deep = make_outliers(images.float(), others.float(), draws(10))
    assert torch.equal(deep.round().to(torch.uint8), made)  # deeper pictures are floats in [0, 255]


def test_an_outlier_depends_on_its_sample_and_its_neighbour_only() -> None:
    images = noise(40)
    rows, made = pick_outliers(images, Augment(outlier_rate=0.7), draws(40))
    for row, outlier in zip(rows.tolist(), made, strict=True):
        start = row // 2 * 2
        pair = Draws(0, 0, np.arange(start, start + 2))
        own, few = pick_outliers(images[start : start + 2], Augment(outlier_rate=0.7), pair)
        assert torch.equal(few[own.tolist().index(row - start)], outlier)


def test_as_many_become_outliers_as_requested() -> None:
    rows, _ = pick_outliers(noise(1).expand(4000, -1, -1, -1), Augment(outlier_rate=0.2), draws(4000))
    assert len(rows) / 4000 == pytest.approx(0.2, abs=0.03)
    assert not len(pick_outliers(noise(8), Augment(), draws(8))[0])


def test_turned_pictures_have_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "turned")
    images = noise(12)
    made = make_outliers(images, images, draws(12))
    turns = [
        next(count for count in (1, 2, 3) if torch.equal(some.rot90(count, (1, 2)), one))
        for some, one in zip(images, made, strict=True)
    ]
    assert set(turns) == {1, 2, 3}
    tumbling = make_outliers(images, images, draws(12), upright=False)  # as with vertical flips: turned ones are usual
    assert not any(torch.equal(some.rot90(2, (1, 2)), one) for some, one in zip(images, tumbling, strict=True))
    wide = noise(2)[..., :10]
    assert torch.equal(make_outliers(wide, wide, draws(2)), wide.flip(2, 3))


def test_noise_is_from_white_to_soft() -> None:
    """White noise has neighbours that are independent; clouds have neighbours that are alike."""
    alike: list[float] = []
    for sample in range(60):
        pixels = coloured_noise((3, 32, 32), Draws(0, 0, np.array([sample]))).numpy()
        alike.append(float(np.corrcoef(pixels[:, :, 1:].ravel(), pixels[:, :, :-1].ravel())[0, 1]))
    assert min(alike) < 0.1
    assert max(alike) > 0.9


def test_a_scrambled_picture_keeps_its_spectrum() -> None:
    image = noise(1)[0].float()
    made = scramble(image, draws(1))
    spectra = [np.abs(np.fft.fft2(some.numpy())) for some in (image, made)]
    np.testing.assert_allclose(spectra[1], spectra[0], rtol=1e-3, atol=0.05)
    assert made.mean((1, 2)).numpy() == pytest.approx(image.mean((1, 2)).numpy(), abs=1e-2)


def test_collages_have_parts() -> None:
    index = parts_of(np.array(["grid", "leaves"] * 15), 12, 18, draws(30))
    assert index.shape == (30, 12, 18)
    assert 0 <= int(index.min()) <= int(index.max()) < PARTS
    assert {len(some.unique()) for some in index[::2]} == {4, 9, 16}
    assert np.mean([len(some.unique()) for some in index[1::2]]) > 3
    assert index[0, 0, 0] == 0  # row by row
    assert index[0, -1, -1] == len(index[0].unique()) - 1


def test_pieces_come_from_both_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "grid")
    for name in ("FOREIGN_RATE", "PAINTED_RATE", "FLAT_RATE"):
        monkeypatch.setattr(outliers, name, 0.0)
    black, white = torch.zeros(20, 1, 12, 12), torch.full((20, 1, 12, 12), 255.0)
    made = make_outliers(black, white, draws(20))
    assert 0.3 < float((made > 127).float().mean()) < 0.7


def test_photographs_are_as_large_as_the_pictures() -> None:
    for shape in ((2, 3, 16, 16), (2, 1, 8, 20), (2, 3, 700, 300)):
        crops = crop_photographs(torch.zeros(shape, dtype=torch.uint8), draws(2))
        assert crops.shape == shape
        assert all(len(crop.unique()) > 10 for crop in crops)
    assert len(photographs(3, 16, 16)) == 3 * SIZES

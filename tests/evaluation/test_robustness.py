from io import BytesIO

import numpy as np
import pytest
import scipy.ndimage
import torch
from PIL import Image
from tests.data.conftest import picture

from vitrail.data import Dataset, preset
from vitrail.data.transform import normalize, to_tensor
from vitrail.errors import ConfigError, InputError
from vitrail.evaluation import robustness
from vitrail.evaluation.robustness import SEVERITIES, STRENGTHS, corrupt, corruption, measure_robustness
from vitrail.prediction import Predictor
from vitrail.rng import Draws
from vitrail.tasks.rates import Rate


@pytest.fixture
def images() -> torch.Tensor:
    return torch.stack([to_tensor(picture(seed, (80, 60))) for seed in range(6)])  # (6, 3, 60, 80)


def draws(count: int = 6) -> Draws:
    return Draws(0, 1, np.arange(count))


def test_blur_equals_scipys(images: torch.Tensor) -> None:
    found = corrupt(images, "blur", 4, draws())
    sigma = 0.3 + STRENGTHS["blur"][3] * 60
    expected = scipy.ndimage.gaussian_filter(
        images[2, 1].numpy().astype(float), sigma, mode="nearest", radius=max(1, int(np.ceil(4 * sigma)))
    )
    assert np.abs(found[2, 1].numpy() - expected).max() <= 0.51


def test_rotation_equals_scipys(images: torch.Tensor) -> None:
    found = corrupt(images, "rotation", 3, draws())
    matched = set()
    for place in range(6):
        for angle in (-15, 15):
            expected = scipy.ndimage.rotate(
                images[place, 0].numpy().astype(float), angle, reshape=False, order=1, mode="nearest"
            )
            if np.abs(found[place, 0].numpy() - expected).max() <= 0.51:
                matched.add((place, angle))
    assert {place for place, _ in matched} == set(range(6))
    assert {angle for _, angle in matched} == {-15, 15}  # to both sides


def test_jpeg_is_pillows(images: torch.Tensor) -> None:
    buffer = BytesIO()
    Image.fromarray(images[1].permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=12)
    expected = torch.as_tensor(np.array(Image.open(buffer))).permute(2, 0, 1)
    assert torch.equal(corrupt(images, "jpeg", 4, draws())[1], expected)
    with pytest.raises(InputError, match="1 or 3 channels; these have 2"):
        corrupt(images[:, :2], "jpeg", 1, draws())


def test_noise_is_gaussian_of_the_stated_strength() -> None:
    grey = torch.full((4, 1, 100, 100), 128, dtype=torch.uint8)
    for severity in (1, 3):
        noise = (corrupt(grey, "noise", severity, draws(4)).double() - 128) / 255
        assert noise.std().item() == pytest.approx(STRENGTHS["noise"][severity - 1], rel=0.03)
        assert abs(noise.mean().item()) < 0.002
        assert scipy.stats.kurtosis(noise.flatten()) == pytest.approx(0, abs=0.15)
    assert not torch.equal(noise[0], noise[1])


def test_brightness_adds_and_stops_at_white() -> None:
    found = corrupt(torch.tensor([0, 100, 250], dtype=torch.uint8).view(1, 1, 1, 3), "brightness", 2, draws(1))
    assert found.flatten().tolist() == [51, 151, 255]


@pytest.mark.parametrize("name", STRENGTHS)
def test_higher_severities_are_further_away(name: str, images: torch.Tensor) -> None:
    distances = [(corrupt(images, name, level, draws()).float() - images).abs().mean().item() for level in SEVERITIES]
    assert distances == sorted(set(distances))
    assert distances[0] > 0


@pytest.mark.parametrize("name", STRENGTHS)
def test_a_sample_is_corrupted_alike_in_any_batch(name: str, images: torch.Tensor) -> None:
    spec = preset("google", (60, 80))
    change, prepared = corruption(name, 2, spec), normalize(images, spec)
    together = change(prepared, np.arange(6))
    alone = change(prepared[4:5], np.array([4]))
    assert torch.equal(together[4:5], alone)


def test_mistakes(images: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="did you mean blur"):
        corrupt(images, "blurr", 1, draws())
    with pytest.raises(ConfigError, match="from 1 to 5; got 6"):
        corrupt(images, "blur", 6, draws())


def test_robustness_is_one_evaluation_for_each(predictor: Predictor, arrays: Dataset) -> None:
    seen: list[int] = []
    found = measure_robustness(predictor, arrays, kinds=("blur", "brightness"), limit=20, progress=seen.append)
    assert list(found.curves) == ["blur", "brightness"]
    assert all(len(curve) == 5 for curve in found.curves.values())
    assert sum(seen) == 20 * 11
    assert isinstance(found.clean, Rate)
    assert found.clean.total == 20
    rates = [rate.value for curve in found.curves.values() for rate in curve]
    assert found.mean == pytest.approx(np.mean(rates))
    assert len(set(rates)) > 1  # the pictures were changed, in different ways


def test_views_are_averaged_under_corruption_too(
    predictor: Predictor, arrays: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    real = robustness.measure_split
    monkeypatch.setattr(
        robustness, "measure_split", lambda *rest, **more: seen.append(more["tta"]) or real(*rest, **more)
    )
    measure_robustness(predictor, arrays, kinds=("blur",), tta="flip", limit=5)
    assert seen == ["flip"] * 6

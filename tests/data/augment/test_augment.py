"""Crops, policies, erasing and mixing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.peers import torchvision
from PIL import Image
from tests.data.conftest import picture

from vitrail.data.augment.crops import crop_picture, resized_crop_box, resized_crop_numbers, shift_batch, shrink_jpeg
from vitrail.data.augment.pipeline import augment_batch, erase, erased_box, mirrored, mix, neighbours, soft_targets
from vitrail.data.augment.policies import AUTO_CIFAR, AUTO_SPACE, RAND_OPS, WIDE_SPACE, steps
from vitrail.data.config import Augment
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError
from vitrail.rng import Draws

SPEC = Preprocess(size=(32, 32))
MANY = 4000


def draws(count: int = MANY, epoch: int = 0) -> Draws:
    return Draws(0, epoch, np.arange(count))


def noise(count: int, size: int = 32) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_resized_crops_are_distributed_as_torchvisions() -> None:
    augment = Augment(crop="resized")
    numbers = resized_crop_numbers(draws())
    ours = np.array([resized_crop_box(375, 500, augment, row) for row in numbers])
    image = Image.new("RGB", (500, 375))
    transform = torchvision.transforms.RandomResizedCrop
    torch.manual_seed(0)
    theirs = np.array([transform.get_params(image, list(augment.scale), list(augment.ratio)) for _ in range(MANY)])
    assert (ours[:, 0] >= 0).all()
    assert (ours[:, 1] >= 0).all()
    assert (ours[:, 0] + ours[:, 2] <= 375).all()
    assert (ours[:, 1] + ours[:, 3] <= 500).all()
    for column in range(4):
        assert ours[:, column].mean() == pytest.approx(theirs[:, column].mean(), abs=5 * theirs[:, column].std() / 60)
        assert ours[:, column].std() == pytest.approx(theirs[:, column].std(), rel=0.06)


def test_alternating_flips_show_both_sides_in_every_two_epochs() -> None:
    """At random in the first epoch, exactly as without; from counters, so that any epoch can be the first computed."""
    images, augment = noise(MANY // 10, 8), Augment(alternate_flip=True, flip_rate=0.3)
    flags: list[np.ndarray] = []
    for epoch in (3, 0, 2, 1):
        flipped = images.clone()
        augment_batch(flipped, SPEC, augment, draws(len(images), epoch))
        flags.append((flipped != images).flatten(1).any(1).numpy())
        assert torch.equal(flipped[flags[-1]], images[flags[-1]].flip(3))
    plain = images.clone()
    augment_batch(plain, SPEC, Augment(flip_rate=0.3), draws(len(images)))
    fourth, first, third, second = flags
    assert np.array_equal(first, (plain != images).flatten(1).any(1).numpy())
    assert 0.2 < first.mean() < 0.4
    assert np.array_equal(second, ~first)
    assert np.array_equal(third, first)
    assert np.array_equal(fourth, second)


def test_repeats_and_seeds_alternate_on_their_own() -> None:
    spec, samples = Augment(alternate_flip=True), np.arange(400)
    flags = [mirrored(spec, Draws(seed, 1, samples, repeat)) for seed, repeat in ((0, 0), (0, 1), (1, 0))]
    assert all((flags[0] != other).sum() > 100 for other in flags[1:])
    assert np.array_equal(mirrored(spec, Draws(0, 1, samples, 0)[30:50]), flags[0][30:50])


def test_resized_crop_falls_back_to_the_centre() -> None:
    augment = Augment(crop="resized", scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3))
    assert resized_crop_box(10, 100, augment, np.full(22, 0.5)) == (0, 43, 10, 13)
    assert resized_crop_box(100, 10, augment, np.full(22, 0.5)) == (43, 0, 13, 10)


@pytest.mark.parametrize("factor", [1.0, 1.99, 2.0, 3.9, 4.0, 7.9, 8.0, 50.0])
def test_jpegs_are_never_shrunk_below_what_the_crop_needs(factor: float, tmp_path) -> None:
    picture(0, (1000, 777)).save(tmp_path / "x.jpg")
    with Image.open(tmp_path / "x.jpg") as image:
        shrink_jpeg(image, factor, "RGB")
        scale = 1000 / image.width
        assert scale <= factor * 1.01
        assert scale == pytest.approx(max(power for power in (1, 2, 4, 8) if power <= factor), rel=0.02)


def test_shrunk_jpegs_show_the_same_crop(tmp_path) -> None:
    picture(0, (1200, 900)).save(tmp_path / "x.jpg", quality=95)
    picture(0, (1200, 900)).save(tmp_path / "x.png")
    for row in resized_crop_numbers(draws(30)):
        crops = [
            crop_picture(tmp_path / name, SPEC, Augment(crop="resized"), row, name).float()
            for name in ("x.jpg", "x.png")
        ]
        assert (crops[0] - crops[1]).abs().mean() < 4


def test_shifts_are_crops_of_the_padded_picture() -> None:
    images = noise(200)
    for fill in ("black", "reflect"):
        augment = Augment(crop="pad", pad=4, pad_fill=fill)
        shifted = shift_batch(images, SPEC, augment, draws(200))
        mode = "constant" if fill == "black" else "reflect"
        padded = torch.nn.functional.pad(images.float(), (4,) * 4, mode=mode).to(torch.uint8)
        places = set()
        for image, whole in zip(shifted, padded, strict=True):
            found = [
                (top, left)
                for top in range(9)
                for left in range(9)
                if torch.equal(whole[:, top : top + 32, left : left + 32], image)
            ]
            assert len(found) == 1
            places.update(found)
        assert {top for top, _ in places} == {left for _, left in places} == set(range(9))


def test_flips() -> None:
    images = noise(MANY, 4)
    flipped = images.clone()
    augment_batch(flipped, SPEC, Augment(flip_rate=0.3), draws())
    same = (flipped == images).flatten(1).all(1)
    assert (~same).float().mean() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(flipped[~same], images[~same].flip(3))
    down = images.clone()
    augment_batch(down, SPEC, Augment(flip_rate=0, vertical_flip_rate=1), draws())
    assert torch.equal(down, images.flip(2))


@pytest.mark.parametrize("policy", ["rand", "trivial"])
def test_operations_are_chosen_evenly(policy: str) -> None:
    for ops, _ in steps(Augment(policy=policy), draws(14_000), (32, 32)):
        counts = [int((ops == name).sum()) for name in RAND_OPS]
        assert min(counts) > 850
        assert max(counts) < 1150


@pytest.mark.parametrize(("space", "peer"), [(AUTO_SPACE, "RandAugment"), (WIDE_SPACE, "TrivialAugmentWide")])
def test_strengths_are_torchvisions(space, peer: str) -> None:
    table = getattr(torchvision.transforms.v2, peer)._AUGMENTATION_SPACE
    names = {"saturation": "Color", "shear_x": "ShearX", "shear_y": "ShearY", "translate_x": "TranslateX"}
    names |= {"translate_y": "TranslateY"}
    magnitudes = np.arange(31) / 30
    for op in RAND_OPS[1:12]:
        theirs, signed = table[names.get(op, op.capitalize())]
        expected = theirs(31, 48, 64).numpy().astype(float)
        if op in ("brightness", "saturation", "contrast", "sharpness"):
            expected = 1 + expected
        if op == "solarize":
            expected = 255 * expected
        assert np.allclose(space.value(op, magnitudes, np.ones(31), (48, 64)), expected, atol=1e-4), op
        if signed and op.startswith("shear"):
            assert np.allclose(space.value(op, magnitudes, -np.ones(31), (48, 64)), -expected, atol=1e-4)


def test_auto_augment_is_torchvisions_table() -> None:
    auto = torchvision.transforms.v2.AutoAugment(torchvision.transforms.AutoAugmentPolicy.CIFAR10)
    names = {"color": "saturation", "shearx": "shear_x", "sheary": "shear_y", "translatex": "translate_x"}
    names |= {"translatey": "translate_y"}
    theirs = [
        tuple((names.get(op.lower(), op.lower()), rate, level or 0) for op, rate, level in policy)
        for policy in auto._policies
    ]
    assert list(AUTO_CIFAR) == theirs


def test_auto_augment_applies_at_its_rates() -> None:
    chosen = [ops for ops, _ in steps(Augment(policy="auto"), draws(25_000), (32, 32))]
    for step in range(2):
        expected = np.mean([policy[step][1] for policy in AUTO_CIFAR])
        assert (chosen[step] != "").mean() == pytest.approx(expected, abs=0.015)


def test_magnitude_varies_when_asked() -> None:
    ((ops, values),) = steps(Augment(policy="rand", num_ops=1, magnitude_std=2.0), draws(), (32, 32))
    angles = np.abs(values[ops == "rotate"])
    assert angles.mean() == pytest.approx(9, abs=0.5)
    assert angles.std() == pytest.approx(2, rel=0.2)


def test_jitter_is_in_range_and_in_any_order() -> None:
    augment = Augment(jitter=(0.4, 0.2, 0.0, 0.1))
    first = [ops for ops, _ in steps(augment, draws(), (32, 32))]
    for ops, values in steps(augment, draws(), (32, 32)):
        assert "saturation" not in ops
        assert (np.abs(values[ops == "brightness"] - 1) <= 0.4).all()
        assert (np.abs(values[ops == "hue"]) <= 0.1).all()
    assert {(a, b) for a, b in zip(first[0], first[1], strict=True)} >= {
        ("brightness", "contrast"),
        ("hue", "brightness"),
    }


@pytest.mark.parametrize("fill", ["mean", "noise"])
def test_erasing(fill: str) -> None:
    images = torch.full((MANY, 3, 32, 32), 7, dtype=torch.uint8)
    erase(images, SPEC, Augment(erase_rate=0.4, erase_fill=fill), draws())
    changed = (images != 7).any(1)  # (B, H, W)
    share = changed.flatten(1).float().mean(1)
    assert (share > 0).float().mean() == pytest.approx(0.4, abs=0.03)
    assert share[share > 0].mean() == pytest.approx(0.17, abs=0.02)
    values = images.permute(0, 2, 3, 1)[changed]
    assert len(values.unique()) == (1 if fill == "mean" else 256)
    if fill == "mean":
        assert (values == 128).all()
    top, left, height, width = erased_box(32, 32, np.array([0, 0.999, 0.999, 0.999, 0.999]))
    assert top + height <= 32
    assert left + width <= 32


def test_mixup_is_a_weighted_mean_of_neighbours() -> None:
    images, targets = torch.rand(6, 3, 8, 8), soft_targets(torch.arange(6), 6)
    mixed, shares = mix(images, targets, Augment(mixup=0.8), draws(6))
    partner = [1, 0, 3, 2, 5, 4]
    for row in range(6):
        share = shares[row, row]
        expected = images[row] * share + images[partner[row]] * (1 - share)
        assert torch.allclose(mixed[row], expected, atol=1e-6)
        assert shares[row].sum() == pytest.approx(1)
        assert shares[row, partner[row]] == pytest.approx(1 - float(share), abs=1e-6)


def test_cutmix_shares_are_the_areas() -> None:
    images = torch.arange(MANY, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 3, 16, 16)
    mixed, shares = mix(images, soft_targets(torch.arange(MANY) % 2, 2), Augment(cutmix=1.0), draws())
    own = (mixed == images).all(1).flatten(1).float().mean(1)
    kept = shares[torch.arange(MANY), torch.arange(MANY) % 2]
    assert torch.allclose(own, kept, atol=1e-6)
    assert ((mixed == images) | (mixed == images[torch.as_tensor(neighbours(MANY))])).all()
    assert 0.5 < kept.mean() < 0.75


def test_shares_follow_the_beta_distribution() -> None:
    from scipy import stats

    for alpha in (0.2, 0.8, 1.0, 4.0):
        _, shares = mix(
            torch.zeros(MANY, 1, 1, 1), soft_targets(torch.arange(MANY) % 2, 2), Augment(mixup=alpha), draws()
        )
        own = shares[torch.arange(MANY), torch.arange(MANY) % 2].numpy()
        assert stats.kstest(own, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


def test_mix_and_switch_rates() -> None:
    images = torch.rand(MANY, 1, 8, 8)
    targets = soft_targets(torch.arange(MANY) % 2, 2)
    mixed, _ = mix(images, targets, Augment(mixup=1.0, cutmix=1.0, mix_rate=0.5, switch_rate=0.25), draws())
    partner = images[torch.as_tensor(neighbours(MANY))]
    untouched = (mixed == images).flatten(1).all(1)
    cut = ((mixed == images) | (mixed == partner)).flatten(1).all(1) & ~untouched
    assert untouched.float().mean() == pytest.approx(0.5, abs=0.04)
    assert cut.float().mean() == pytest.approx(0.125, abs=0.03)


def test_an_odd_one_out_is_its_own_partner() -> None:
    assert neighbours(5).tolist() == [1, 0, 3, 2, 4]
    images = torch.rand(1, 3, 4, 4)
    mixed, shares = mix(images, soft_targets(torch.tensor([1]), 2), Augment(mixup=1.0), draws(1))
    assert torch.allclose(mixed, images)
    assert torch.allclose(shares, torch.tensor([[0.0, 1.0]]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alternate_flip": True, "flip_rate": 0}, "alternate_flip= flips pictures, and flip_rate=0 does not"),
        ({"alternate_flip": True, "views": 3}, "views= must be even with alternate_flip=True"),
        ({"outlier_rate": 0.2, "views": 2}, "views= cannot be combined with outlier_rate="),
        ({"flip_rate": 1.5}, "flip_rate= must be between 0 and 1"),
        ({"num_ops": 0}, "num_ops= must be between 1 and 100"),
        ({"num_ops": 1_000_000}, "num_ops= must be between 1 and 100"),
        ({"magnitude": 31}, "magnitude= must be between 0 and 30"),
        ({"scale": (0.5, 0.1)}, "scale= must be"),
        ({"ratio": (0, 1)}, "ratio= must be"),
        ({"jitter": (0, 0, 0, 0.7)}, "hue at most 0.5"),
        ({"mixup": -1}, "mixup= must be at least 0"),
        ({"repeats": 0}, "repeats= must be at least 1"),
    ],
)
def test_settings_that_cannot_work(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Augment(**fields)


def test_nothing_is_done_without_being_asked() -> None:
    images = noise(20)
    same = images.clone()
    augment_batch(same, SPEC, replace(Augment(), flip_rate=0.0), draws(20))
    assert torch.equal(same, images)

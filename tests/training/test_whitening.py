"""First filters that whiten: the property that names them, by numpy; once, at the beginning of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from vitrail.data import ArraySource, Dataset, Preprocess
from vitrail.data.chunks import read_samples
from vitrail.errors import ConfigError
from vitrail.model import ConvStem, ResNetStem, ViT
from vitrail.ranks import Ranks
from vitrail.training import Listener, Start, train
from vitrail.training.objectives import make_objective
from vitrail.training.run import carry_out
from vitrail.training.setup import Setup
from vitrail.training.whitening import first_weight, whiten

from .conftest import quick_config
from .test_loop import assert_same_run

SPEC = Preprocess(size=(32, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3))


def smooth_pictures(count: int = 96) -> Dataset:
    """Colours whose neighbours are alike, as in photographs."""
    generator = torch.Generator().manual_seed(2)
    coarse = torch.rand(count, 3, 8, 8, generator=generator) + torch.rand(count, 1, 8, 8, generator=generator)
    fine = F.interpolate(coarse, size=(32, 32), mode="bicubic") + 0.3 * torch.rand(
        count, 3, 32, 32, generator=generator
    )
    images = (fine * 100).clamp(0, 255).to(torch.uint8)
    return Dataset(name="smooth", classes=("a", "b"), splits={"train": ArraySource(images, np.arange(count) % 2, "x")})


def responses(model: ViT, dataset: Dataset) -> np.ndarray[Any, Any]:
    """What the first filters give for all patches of the training pictures (filters, patches)."""
    images, _ = read_samples(dataset.split("train"), SPEC, np.arange(len(dataset.split("train"))))
    weight = first_weight(model).detach()
    return F.conv2d(images, weight, stride=weight.shape[-1]).transpose(0, 1).flatten(1).double().numpy()


@pytest.mark.parametrize("pool_size", [2, 3])
def test_whitened_patches_have_unit_covariance(pool_size: int, make_model: Callable[..., ViT]) -> None:
    """27 numbers in a 3×3 patch of 3 channels: as many directions, then their negatives; the others stay random."""
    stem = ConvStem(widths=(64, 8), strides=(2, 2), norm="none", pool=True, pool_size=pool_size, activation="gelu")
    model, dataset = make_model(stem=stem, patch_size=1), smooth_pictures()
    before = first_weight(model).detach().clone()
    assert whiten(model, dataset, SPEC, seed=0) == 96
    seen = responses(model, dataset)
    np.testing.assert_allclose(np.cov(seen[:27]), np.eye(27), atol=0.1)  # a little less where little varies
    np.testing.assert_array_equal(seen[27:54], -seen[:27])
    after = first_weight(model).detach()
    assert torch.equal(after[54:], before[54:])
    lengths = after[:27].flatten(1).norm(dim=1)
    assert (lengths.diff() > 0).all(), "the more a direction varies, the smaller is its filter, and the earlier"


def test_the_patch_embedding_itself_may_whiten(make_model: Callable[..., ViT]) -> None:
    model, dataset = make_model(patch_size=4), smooth_pictures()  # 48 numbers, 32 filters
    whiten(model, dataset, SPEC, seed=0)
    np.testing.assert_allclose(np.cov(responses(model, dataset)), np.eye(32), atol=0.1)


def test_pictures_are_chosen_by_the_seed(make_model: Callable[..., ViT], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.training.whitening.PICTURES", 40)
    filters: list[torch.Tensor] = []
    for seed in (3, 3, 4):
        model = make_model(patch_size=4)
        assert whiten(model, smooth_pictures(), SPEC, seed) == 40
        filters.append(first_weight(model).detach())
    assert torch.equal(filters[0], filters[1])
    assert not torch.equal(filters[0], filters[2])


def test_what_cannot_be_whitened_is_refused(make_model: Callable[..., ViT]) -> None:
    for changes in ({"stem": ResNetStem(blocks=(), width_factor=0.5), "patch_size": 2}, {"pixel_norm": True}):
        with pytest.raises(ConfigError, match="whiten= needs filters that see the pixels as they are"):
            whiten(make_model(**changes), smooth_pictures(), SPEC, seed=0)
    with pytest.raises(ConfigError, match="whiten= is for training from scratch"):
        Start(weights="model.safetensors", whiten="on")
    with pytest.raises(ConfigError, match="standardises its first filters"):
        train(quick_config(whiten="on", model="vit-r50-b16", image_size=(32, 32)), "never-made")


class Stop(Listener):
    """Ends a run after a step; hears what is said."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.lines: list[str] = []

    def said(self, message: str) -> None:
        self.lines.append(message)

    def stepped(self, step: int, loss: float, images_per_second: float) -> None:
        if step == self.step:
            raise RuntimeError("stopped")


def test_a_run_whitens_once(make_setup: Callable[..., Setup], tmp_path: Path) -> None:
    def carry_out_in(name: str, listener: Stop, *, resume: bool = False) -> None:
        setup = make_setup(whiten="frozen", epochs=1, ema=0.9, save_minutes=1e-6)
        (tmp_path / name).mkdir(exist_ok=True)
        carry_out(setup, Ranks(), tmp_path / name, listener, resume=resume, draw=False)

    whole, parts, resumed = Stop(0), Stop(2), Stop(0)
    carry_out_in("whole", whole)
    assert len([line for line in whole.lines if "whiten" in line]) == 1
    with pytest.raises(RuntimeError, match="stopped"):
        carry_out_in("parts", parts)
    carry_out_in("parts", resumed, resume=True)
    assert not any("whiten" in line for line in resumed.lines)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    setup = make_setup()
    whiten(setup.model, setup.dataset, setup.preprocess, seed=0)
    kept = load_file(tmp_path / "whole" / "weights" / "best.safetensors")["embed.stem.0.weight"]
    assert torch.equal(kept, first_weight(setup.model))


@pytest.mark.parametrize(("mode", "learns"), [("on", True), ("frozen", False)])
def test_only_frozen_filters_stay(mode: str, learns: bool, make_setup: Callable[..., Setup]) -> None:
    objective = make_objective(make_setup(whiten=mode))
    frozen = {name for name, parameter in objective.named_parameters() if not parameter.requires_grad}
    assert frozen == (set() if learns else {"model.embed.stem.0.weight"})

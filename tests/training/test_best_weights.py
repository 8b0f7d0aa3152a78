"""A finished run knows how far to trust its weights: from validation, never from test."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import vitrail
from vitrail.evaluation.confidence import fit_trust
from vitrail.evaluation.measurement import measure_split
from vitrail.ranks import Ranks
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.tasks.one import OneTrust
from vitrail.training.best_weights import calibrate
from vitrail.training.changes import apply_changes
from vitrail.training.listener import Listener
from vitrail.training.loop import Trainer
from vitrail.training.setup import Setup


class Remembers(Listener):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def said(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture
def trained(make_setup: Callable[..., Setup], tmp_path: Path) -> tuple[Setup, Path]:
    setup = make_setup(epochs=1)
    Trainer(setup, Ranks(), tmp_path).run()
    return setup, tmp_path


def test_it_is_fitted_on_validation_and_stored_with_the_same_weights(trained: tuple[Setup, Path]) -> None:
    setup, folder = trained
    before = vitrail.load(folder)
    assert before.trust is None
    assert not before.is_unsure
    blind = {name: source for name, source in setup.dataset.splits.items() if name != "test"}
    seeing = replace(setup, dataset=replace(setup.dataset, splits=blind))
    calibrated, found = calibrate(before, seeing, Ranks(), folder, Listener(), {})
    after = vitrail.load(folder)
    assert calibrated.trust == after.trust
    again = measure_split(after, setup.dataset, "val")  # what the report would otherwise compute once more
    assert found is not None
    assert (found.trust, found.keys) == (again.trust, again.keys)
    assert found.metrics.nll == pytest.approx(again.metrics.nll, rel=1e-4)
    np.testing.assert_allclose(found.logits, again.logits, rtol=1e-4, atol=1e-5)
    assert found.familiarity is not None
    assert again.familiarity is not None
    np.testing.assert_allclose(found.familiarity, again.familiarity, rtol=1e-3)
    assert after.trust is not None
    assert (after.trust.data, after.trust.pictures) == ("digits, val", len(setup.dataset.split("val")))
    assert after.trust == fit_trust(before, setup.dataset)[0]
    assert not after.is_unsure
    exposed = replace(setup, config=apply_changes(setup.config, {"outlier_rate": 0.2}))
    unsure, found = calibrate(before, exposed, Ranks(), folder, Listener(), {})
    assert unsure.is_unsure
    again = measure_split(unsure, setup.dataset, "val")
    assert found is not None
    assert found.familiarity is not None
    assert again.familiarity is not None
    np.testing.assert_allclose(found.familiarity, again.familiarity, rtol=1e-3, atol=1e-4)
    for name, tensor in before.checkpoint().tensors.items():
        assert torch.equal(tensor, after.checkpoint().tensors[name])


def test_without_enough_validation_pictures_nothing_is_stored(trained: tuple[Setup, Path]) -> None:
    setup, folder = trained
    listener = Remembers()

    def with_val(count: int) -> Setup:
        splits: dict[str, Any] = dict(setup.dataset.splits)
        splits["val"] = splits["val"].select(np.arange(count))
        return replace(setup, dataset=replace(setup.dataset, splits=splits))

    calibrate(vitrail.load(folder), with_val(49), Ranks(), folder, listener, {})
    assert listener.lines == [
        "the model is not calibrated: a calibration needs at least 50 pictures that were not trained on; val has 49 "
        "pictures."
    ]
    calibrate(vitrail.load(folder), with_val(0), Ranks(), folder, listener, {})
    assert len(listener.lines) == 1
    assert vitrail.load(folder).trust is None


def test_features_that_are_kept_are_not_computed_again(
    make_setup: Callable[..., Setup], trained: tuple[Setup, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = {"model": None, "weights": str(trained[1]), "train": "head", "optimizer": "adamw", "ema": None}
    setup, folder = make_setup(**head, mixup=0.0, epochs=1), tmp_path / "head"
    folder.mkdir()
    trainer = Trainer(setup, Ranks(), folder)
    trainer.run()
    features = {"train": cast("Any", trainer.loader).stored, "val": cast("Any", trainer.val_loader).stored}
    best = vitrail.load(folder)
    expected = fit_trust(best, setup.dataset)[0]
    with monkeypatch.context() as patch:
        patch.setattr(TorchRuntime, "logits_and_features", pytest.fail)
        _, measurement = calibrate(best, setup, Ranks(), folder, Listener(), features)
    assert measurement is not None
    assert measurement.images_per_second is None, "the backbone was not measured"
    found = vitrail.load(folder).trust
    assert isinstance(found, OneTrust)
    assert isinstance(expected, OneTrust)
    assert (found.pictures, found.data) == (expected.pictures, expected.data)
    assert found.temperature == pytest.approx(expected.temperature, rel=1e-3)
    assert found.sets is not None
    assert expected.sets is not None
    np.testing.assert_allclose(found.sets.thresholds, expected.sets.thresholds, atol=1e-3)
    calibrate(best, setup, Ranks(), folder, Listener(), {})  # from the pictures
    again = vitrail.load(folder).trust
    assert isinstance(again, OneTrust)
    assert again.temperature == pytest.approx(expected.temperature, rel=1e-3)

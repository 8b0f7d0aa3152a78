"""The model that comes with vitrail: it is there, small, and says what it is."""

import os
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.data import open_data
from vitrail.data.config import DataConfig
from vitrail.evaluation.measurement import measure_split
from vitrail.weights.native import read_native
from vitrail.weights.proof import sample_photos
from vitrail.weights.resolve import BUNDLED, bundled_path

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.mark.parametrize("name", BUNDLED)
def test_file_and_card(name: str) -> None:
    path = bundled_path(name)
    assert path.stat().st_size < 2_000_000
    checkpoint = read_native(path)
    assert {tensor.dtype for tensor in checkpoint.parameters.values()} == {torch.float16}
    card = path.with_suffix(".md").read_text(encoding="utf-8")
    assert f"{sum(tensor.numel() for tensor in checkpoint.parameters.values()):,} parameters" in card
    for word in checkpoint.classes or ():
        assert word in card


def test_works_on_any_photograph() -> None:
    predictor = vitrail.load()
    assert predictor.classes == CLASSES
    assert predictor.trust is not None
    assert predictor.trust.pictures == 2500
    for found in predictor.predict(sample_photos(), top_k=10):
        assert found.error is None
        assert found.familiar is not None
        assert sum(found.scores) == pytest.approx(1, abs=1e-5)


@pytest.mark.skipif("CIFAR10_DIR" not in os.environ, reason="CIFAR10_DIR names no folder with CIFAR-10's files")
def test_is_as_good_as_its_card_says() -> None:
    found = measure_split(
        vitrail.load(), open_data("cifar10", DataConfig(data_dir=Path(os.environ["CIFAR10_DIR"]))), "test"
    )
    card = bundled_path("cifar10").with_suffix(".md").read_text(encoding="utf-8")
    assert found.label_sets is not None
    for number in (
        f"**{found.metrics.top1.value:.2%}**",
        f"{found.metrics.calibration.error:.2%}",
        f"{found.label_sets.coverage.value:.2%}",
    ):
        assert number.replace("%", " %") in card
    assert f"{found.label_sets.mean_size:.2f} labels" in card

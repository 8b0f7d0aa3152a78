"""Features are computed once, whatever happens in between: kept part by part, and only for what they were made of."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from processes import run
from vitrail.errors import DataError
from vitrail.ranks import Ranks
from vitrail.runtimes.runtime import Floats
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.training import Listener, TrainConfig, features, train
from vitrail.training.feature_store import PART, FeatureStore, backbone_of, features_key, largest_call
from vitrail.training.features import feature_loader
from vitrail.training.setup import Setup, open_training_data
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint

from .conftest import quick_config
from .test_run import Hearing


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures each call has computed the features of."""
    counts: list[int] = []
    plain = TorchRuntime.features

    def count(self: TorchRuntime, images: Floats) -> Floats:
        counts.append(len(images))
        return plain(self, images)

    monkeypatch.setattr(TorchRuntime, "features", count)
    return counts


@pytest.fixture
def setup(make_setup: Callable[..., Setup]) -> Setup:
    return make_setup()


def test_what_is_there_is_not_computed_again(setup: Setup, computed: list[int], tmp_path: Path) -> None:
    first = feature_loader(setup, "train", Ranks(), Listener(), tmp_path)
    assert sum(computed) == len(first.features) == 256
    with torch.no_grad():
        expected = setup.model.eval().features(next(iter(_pictures(setup))))
    assert torch.allclose(first.features[:16], expected, atol=1e-5)
    assert [path.name for path in (tmp_path / "features").iterdir()] == ["train.safetensors"], "joined"
    computed.clear()
    again = feature_loader(setup, "train", Ranks(), Listener(), tmp_path)
    assert computed == []
    assert torch.equal(again.features, first.features)
    assert torch.equal(again.targets, first.targets)


class Ticking:
    """A clock that is asked once after each part."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 10.0
        return self.now


def test_a_budget_that_runs_out_leaves_a_sample_of_all_classes(
    setup: Setup, computed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds a part, and fewer than 60 for four of them and 688 further pictures, were these as slow."""
    order = np.argsort(setup.dataset.split("train").labels, kind="stable")  # as class folders are
    train = setup.dataset.split("train").select(order)
    config = replace(setup.config, schedule=replace(setup.config.schedule, minutes=1.0))
    dataset = replace(setup.dataset, splits={"train": train, "val": setup.dataset.split("val").select(range(20))})
    setup = replace(setup, config=config, dataset=dataset, began=-25.0)
    heard = Hearing()
    monkeypatch.setattr(features, "time", Ticking())
    loader = feature_loader(setup, "train", Ranks(), heard, tmp_path)
    assert sum(computed) == len(loader.features) == 2 * PART
    assert len(set(loader.targets.tolist())) == 10
    assert "training on 128 pictures of 256" in heard.lines[-1]
    expected = [train.labels[index] for index in sorted([*range(0, 256, 4), *range(1, 256, 4)])]
    assert loader.targets.tolist() == expected, "each feature with its own class, in order"
    computed.clear()
    again = feature_loader(setup, "train", Ranks(), Listener(), tmp_path)
    assert computed == [], "a resumed run learns from the same"
    assert torch.equal(again.features, loader.features)


def _pictures(setup: Setup):
    from vitrail.data import Loader, LoaderConfig

    return (batch.images for batch in Loader(setup.dataset, "train", setup.preprocess, LoaderConfig(batch_size=16)))


def test_only_missing_and_damaged_parts_are_computed_again_to_the_same_bits(
    setup: Setup, computed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FeatureStore, "join", lambda self, features: None)
    first = feature_loader(setup, "train", Ranks(), Listener(), tmp_path)
    parts = sorted((tmp_path / "features").iterdir())
    assert len(parts) == 256 // PART
    parts[0].unlink()
    data = bytearray(parts[2].read_bytes())
    data[-1] ^= 1
    parts[2].write_bytes(data)
    computed.clear()
    again = feature_loader(setup, "train", Ranks(), Listener(), tmp_path)
    assert sum(computed) == 2 * PART
    assert torch.equal(again.features, first.features)


def test_other_weights_pictures_and_preprocessing_have_other_keys(setup: Setup, tmp_path: Path) -> None:
    source = setup.dataset.split("train")
    backbone = backbone_of(setup.model, setup.preprocess)
    key = features_key(backbone, source)
    assert setup.model.head is not None
    with torch.no_grad():
        setup.model.head.weight.add_(1.0)
    assert features_key(backbone_of(setup.model, setup.preprocess), source) == key, "the head does not matter"
    assert features_key(backbone, source.select(range(10))) != key
    assert features_key(replace(backbone, preprocess=replace(setup.preprocess, mean=(0.1,))), source) != key
    with torch.no_grad():
        setup.model.norm.weight[0] += 1e-3  # pyright: ignore
    assert features_key(backbone_of(setup.model, setup.preprocess), source) != key


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (15, 8), (16, 16), (64, 64), (500, PART)])
def test_a_part_is_a_whole_number_of_calls(size: int, expected: int) -> None:
    assert largest_call(size) == expected


def test_unreadable_pictures_are_refused_also_when_nothing_is_left_to_compute(
    setup: Setup, computed: list[int], tmp_path: Path
) -> None:
    source = setup.dataset.split("train")

    class Broken(type(source)):
        def picture(self, index: int):
            return np.zeros((3, 3, 3, 3)) if index < 10 else super().picture(index)

    source.__class__ = Broken
    for _ in range(2):
        with pytest.raises(DataError, match="10 of 256 pictures cannot be read"):
            feature_loader(setup, "train", Ranks(), Listener(), tmp_path)
    assert sum(computed) == 246


class KilledWhileComputing(Listener):
    """Ends its process, without a word, once some features are there."""

    def prepared(self, what: str, done: int, total: int) -> None:
        if what == "train features" and done >= 3 * PART:
            os.kill(os.getpid(), signal.SIGKILL)


def train_until_some_features_are_there(config: TrainConfig, folder: Path) -> None:
    train(config, folder, KilledWhileComputing())


@pytest.mark.slow
def test_a_killed_run_computes_only_what_was_missing(setup: Setup, computed: list[int], tmp_path: Path) -> None:
    tensors, classes = setup.model.state_dict(), setup.dataset.classes
    weights = tmp_path / "w.safetensors"
    save_checkpoint(
        Checkpoint(config=setup.model.config, tensors=tensors, preprocess=setup.preprocess, classes=classes), weights
    )
    config = quick_config(model=None, weights=str(weights), train="head", optimizer="sgd")
    assert (
        run(
            train_until_some_features_are_there,
            config,
            tmp_path / "run",
        )
        == -signal.SIGKILL
    )
    resumed = train(config, tmp_path / "run")
    pictures = sum(len(source) for name, source in open_training_data(config).splits.items() if name != "test")
    assert sum(computed) == pictures - 3 * PART
    whole = train(config, tmp_path / "whole")
    assert resumed.best.read_bytes() == whole.best.read_bytes()

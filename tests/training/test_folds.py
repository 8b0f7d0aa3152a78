"""Folds: every picture is predicted once by a model that was not trained on it, whatever happens in between."""

import csv
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fuzzing import in_fuzz_only
from processes import run, run_ranks
from vitrail.data import Loader, LoaderConfig
from vitrail.errors import ConfigError
from vitrail.ranks import Ranks, leave_ranks
from vitrail.runtimes.runtime import Floats
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.training import TrainConfig, train
from vitrail.training.feature_store import Features, select_features
from vitrail.training.fold_scores import FoldResults, spread_of
from vitrail.training.loop import Trainer
from vitrail.training.objectives import SplitScore
from vitrail.training.result import Run, read_run
from vitrail.training.session import reopen
from vitrail.training.setup import open_training_data, prepare_run
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint
from vitrail.weights.read import open_checkpoint

from .conftest import quick_config
from .test_run import Hearing

FOLDS = 3


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of digits with random weights."""
    config = quick_config()
    setup = prepare_run(config, open_training_data(config))
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    tensors = setup.model.state_dict()
    save_checkpoint(Checkpoint(config=setup.model.config, tensors=tensors, preprocess=setup.preprocess), path)
    return str(path)


def head_config(weights: str, **changes: Any) -> TrainConfig:
    head: dict[str, Any] = {"model": None, "weights": weights, "train": "head", "optimizer": "sgd", "lr": 0.1}
    return quick_config(**{**head, "epochs": 3, "batch_size": 256, "flip_rate": 0.0, **changes})


class Folded:
    """A finished run with folds, and the pictures whose features it has computed."""

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        self.config, self.computed = config, 0
        plain = TorchRuntime.features

        def count(runtime: TorchRuntime, images: Floats) -> Floats:
            self.computed += len(images)
            return plain(runtime, images)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TorchRuntime, "features", count)
            self.run: Run = train(config, folder)


@pytest.fixture(scope="module")
def folded(weights: str, tmp_path_factory: pytest.TempPathFactory) -> Folded:
    return Folded(head_config(weights, folds=FOLDS), tmp_path_factory.mktemp("folds") / "run")


def read_folds(folder: Path) -> dict[str, int]:
    with (folder / "folds.csv").open() as file:
        return {row["key"]: int(row["fold"]) for row in csv.DictReader(file)}


def test_all_folds_share_one_computation_of_features(folded: Folded) -> None:
    data = open_training_data(folded.config)
    pool = [*data.split("train").keys(), *data.split("val").keys()]
    assert folded.computed == len(pool), "each picture once, for three folds and the last model"
    folds = read_folds(folded.run.folder)
    assert sorted(folds) == sorted(pool), "test pictures are in none"
    assert sorted(set(folds.values())) == [1, 2, 3]


def test_each_picture_is_predicted_by_the_model_that_has_not_seen_it(folded: Folded) -> None:
    held_out, folds = folded.run.held_out, read_folds(folded.run.folder)
    assert held_out is not None
    assert held_out.folds == tuple(folds[key] for key in held_out.keys)
    setup = reopen(folded.config, folded.run.folder, Ranks(), Hearing())
    batches = Loader(setup.dataset, "train", setup.preprocess, LoaderConfig(batch_size=512))
    batches = list(batches)
    images = torch.cat([batch.images for batch in batches])
    assert torch.equal(torch.cat([batch.indices for batch in batches]), torch.arange(len(folds)))
    for fold in range(1, FOLDS + 1):
        model = open_checkpoint(str(folded.run.folder / f"fold-{fold}")).build().eval()
        own = np.flatnonzero(np.array(held_out.folds) == fold)
        with torch.no_grad():
            expected = model(images[own])
        assert torch.allclose(expected, torch.from_numpy(held_out.logits[own]), atol=1e-4)
    right = (held_out.logits.argmax(axis=1) == held_out.targets).mean()
    scores = folded.run.folds
    assert right == pytest.approx(np.average([s.accuracy for s in scores], weights=[s.count for s in scores]))


def test_the_last_model_learns_from_everything_and_is_calibrated_by_the_folds(folded: Folded) -> None:
    run, folder = folded.run, folded.run.folder
    best = [read_run(folder / f"fold-{fold}").best_epoch for fold in range(1, FOLDS + 1)]
    assert run.epochs == round(median(best))
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.trust is not None
    assert (checkpoint.trust.data, checkpoint.trust.pictures) == ("digits, held-out", len(read_folds(folder)))
    assert checkpoint.trust.familiarity is not None
    assert (run.val, run.measurement and run.measurement.split) == (None, "test")
    facts = json.loads((folder / "metrics.json").read_text())
    assert [score["accuracy"] for score in facts["folds"]["scores"]] == [fold.accuracy for fold in run.folds]
    assert read_run(folder).folds == run.folds
    assert facts["folds"]["mean"]["accuracy"]["mean"] == pytest.approx(np.mean([fold.accuracy for fold in run.folds]))


def test_the_interval_is_nadeaus_and_bengios() -> None:
    values = [0.90, 0.94, 0.91, 0.95, 0.93, 0.92, 0.96, 0.90, 0.93, 0.94]
    scores = [SplitScore(loss=0.0, metrics={"accuracy": value}, count=20) for value in values]
    spread = spread_of(scores, repeats=2)["accuracy"]  # 5 folds: a test set is a quarter of a training set
    error = np.sqrt((1 / 10 + 1 / 4) * np.var(values, ddof=1))
    assert (spread.low, spread.high) == pytest.approx(stats.t.interval(0.95, 9, np.mean(values), error))


def test_selected_features_keep_their_order_and_skip_what_cannot_be_read() -> None:
    features = Features(torch.tensor([[0.0], [2.0], [3.0], [5.0]]), torch.tensor([0, 2, 3, 5]))
    part = select_features(features, np.array([5, 1, 0, 3]))
    assert (part.features.flatten().tolist(), part.indices.tolist()) == ([5.0, 0.0, 3.0], [0, 2, 3])


def train_until_killed(config: TrainConfig, folder: Path, steps: int) -> None:
    done, plain = 0, Trainer.step

    def step(trainer: Trainer, batch: Any) -> tuple[float, float]:
        nonlocal done
        done += 1
        if done > steps:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(trainer, batch)

    Trainer.step = step  # pyright: ignore
    train(config, folder)


@pytest.mark.parametrize("when", ["in the second fold", pytest.param("in the last model", marks=pytest.mark.slow)])
def test_a_killed_run_ends_with_the_same_bits(folded: Folded, tmp_path: Path, when: str) -> None:
    per_fold = 3 * (len(read_folds(folded.run.folder)) * 2 // 3 // 256)
    steps = per_fold + 4 if when == "in the second fold" else FOLDS * per_fold + 2
    assert run(train_until_killed, folded.config, tmp_path / "run", steps) == -signal.SIGKILL
    before = (tmp_path / "run" / "fold-1" / "metrics.json").stat().st_mtime_ns
    resumed = train(folded.config, tmp_path / "run")
    assert (tmp_path / "run" / "fold-1" / "metrics.json").stat().st_mtime_ns == before, "finished folds are read"
    for name in ("weights/best.safetensors", "fold-2/outputs.safetensors", "fold-3/weights/best.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (folded.run.folder / name).read_bytes(), name
    assert resumed.folds == folded.run.folds


def test_a_fold_is_not_resumed_by_itself(folded: Folded) -> None:
    with pytest.raises(ConfigError, match="is a part of the run in .*; resume that"):
        train(folded.config, folded.run.folder / "fold-1")


@in_fuzz_only
def test_without_features_folds_are_runs_on_pictures(tmp_path: Path) -> None:
    config = quick_config(epochs=1, batch_size=512, folds=2, fold_repeats=2)
    done = train(config, tmp_path / "run")
    assert (len(done.folds), done.fold_repeats, done.epochs) == (4, 2, 1)
    with (tmp_path / "run" / "folds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["repeat"], row["fold"]) for row in rows} == {("1", "1"), ("1", "2"), ("2", "1"), ("2", "2")}
    assert done.held_out is not None
    assert len(done.held_out.keys) == len(rows) // 2, "each picture once: those of the first repeat"


def train_on_ranks(config: TrainConfig, folder: Path) -> None:
    train(config, folder)
    leave_ranks()


@in_fuzz_only
def test_ranks_train_one_fold_after_the_other_together(weights: str, tmp_path: Path) -> None:
    config = head_config(weights, folds=2, epochs=1, search="lr=0.01|0.1", trials=2)
    assert run_ranks(train_on_ranks, config, tmp_path / "run") == [0, 0]
    together, alone = read_run(tmp_path / "run"), train(config, tmp_path / "alone")
    assert [trial.settings for trial in together.trials] == [trial.settings for trial in alone.trials]
    assert [fold.count for fold in together.folds] == [fold.count for fold in alone.folds]
    assert [fold.loss for fold in together.folds] == pytest.approx([fold.loss for fold in alone.folds], rel=1e-3)


@pytest.mark.parametrize(
    ("epochs", "last", "known"),
    [((3, 2, 4), 3, True), ((0, 0, 0), 0, True), ((0, 2, 4), 2, False), ((0, 0, 2), 0, False)],
)
def test_familiarity_of_folds_has_one_scale(epochs: tuple[int, ...], last: int, known: bool, folded: Folded) -> None:
    """A head without fine-tuning has seen no outliers, and is judged by distances only."""
    assert folded.run.held_out is not None
    held_out = replace(folded.run.held_out, familiarity=np.zeros(3))
    results = FoldResults(scores=(), best_epochs=epochs, held_out=held_out, repeats=1, seconds=0.0)
    assert (results.calibrating(last).held_out.familiarity is not None) is known

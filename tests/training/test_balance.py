"""Uneven classes: what is said, what `balance="auto"` chooses and keeps, exact resume, what is shown."""

import io
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from fuzzing import in_fuzz_only
from processes import run_ranks
from vitrail.data import Dataset
from vitrail.errors import ConfigError
from vitrail.ranks import Ranks
from vitrail.tasks.several import Several
from vitrail.tasks.task import make_task
from vitrail.training import Listener, balance, train
from vitrail.training.balance import (
    count_labels,
    is_uneven,
    mean_of_classes,
    measure_gain,
    settle_balance,
    try_on_features,
)
from vitrail.training.best_weights import BEST
from vitrail.training.curves import EpochRow
from vitrail.training.display import Display
from vitrail.training.feature_store import Features
from vitrail.training.features import FeatureLoader
from vitrail.training.loop import Trainer
from vitrail.training.objectives import HeadOnFeatures, make_objective
from vitrail.training.plan import settle
from vitrail.training.run import carry_out
from vitrail.training.run_folder import RunLock, begin, read_config, refuse_conflicts
from vitrail.training.setup import Setup, open_training_data, prepare_run
from vitrail.training.signals import InterruptedRunError
from vitrail.weights.native import read_native

from .conftest import part_of_digits, quick_config
from .test_distributed import assert_close, best
from .test_lora import base as base
from .test_objectives import stop_after
from .test_run import Hearing
from .victims import train_until_killed

HEAD = {"model": None, "train": "head", "optimizer": "adamw", "ema": None, "mixup": 0.0, "crop": "none"}


def with_tail(dataset: Dataset, ratio: float = 30.0) -> Dataset:
    """The training pictures of each class a constant factor fewer than those of the one before."""
    train = dataset.split("train")
    kept: list[int] = []
    for label in range(10):
        own = np.flatnonzero(train.labels == label)
        kept += own[: max(round(len(own) * ratio ** (-label / 9)), 1)].tolist()
    return replace(dataset, splits={**dataset.splits, "train": train.select(sorted(kept))})


def uneven_setup(**changes: Any) -> Setup:
    config = quick_config(**changes)
    return prepare_run(config, with_tail(open_training_data(config)))


def test_labels_are_counted_and_compared() -> None:
    assert count_labels(np.array([0, 2, 2]), 4) == (1, 0, 2, 0)
    assert count_labels(np.array([[0, 1], [1, 1]], dtype=np.uint8), 2) == (1, 2)
    assert count_labels(np.array([[0.5]], dtype=np.float32), 1) == ()
    assert is_uneven((30, 10, 0))
    assert not is_uneven((29, 10))
    assert not is_uneven(())


@pytest.mark.parametrize(
    ("asked", "even", "settled", "message"),
    [
        ("auto", True, "none", r"balance: none, since classes are even \(largest \d+, smallest \d+ pictures\)"),
        ("auto", False, "logit", r"balance: logit adjustment, since classes are uneven \(largest 124, smallest 4 pict"),
        ("none", True, "none", ""),
        ("none", False, "none", r"uneven \(.*balanced accuracy is shown first; `balance=\"auto\"` may serve rare"),
        ("weight", False, "weight", ""),
    ],
)
def test_without_features_the_counts_decide(
    asked: str, even: bool, settled: str, message: str, make_setup: Callable[..., Setup]
) -> None:
    heard = Hearing()
    setup = make_setup(balance=asked) if even else uneven_setup(balance=asked)
    assert settle_balance(setup, heard.said).optim.balance == settled
    assert len(heard.lines) == bool(message)
    assert not message or re.search(message, heard.lines[0])


def test_outliers_are_of_no_class_under_any_balance() -> None:
    assert settle_balance(uneven_setup(balance="auto", outlier_rate=0.2), print).optim.balance == "weight"
    with pytest.raises(ConfigError, match='use "weight" or "sample", or pass outlier_rate=0'):
        make_objective(uneven_setup(balance="logit", outlier_rate=0.2))


def test_a_task_offers_what_it_has(make_setup: Callable[..., Setup]) -> None:
    setup = replace(make_setup(balance="logit"), task=Several())
    with pytest.raises(ConfigError, match="has no 'logit' for this task; known: auto, none, weight"):
        settle_balance(setup, print)
    with pytest.raises(ConfigError, match="balance must be"):
        quick_config(balance="smote")


def test_measured_values_have_nothing_to_balance(make_setup: Callable[..., Setup]) -> None:
    heard, setup = Hearing(), make_setup(balance="auto")
    train = setup.dataset.split("train").select(range(2))
    train.labels = np.array([[0.5], [20.0]], dtype=np.float32)
    dataset = replace(setup.dataset, splits={"train": train}, classes=("weight",), task="number")
    numbers = replace(setup, dataset=dataset, task=make_task("number"))
    assert settle_balance(numbers, heard.said).optim.balance == "none"
    assert heard.lines == []


@pytest.mark.parametrize(("asked", "chosen"), [("none", "accuracy"), ("logit", "balanced_accuracy")])
def test_balance_chooses_the_epoch_by_balanced_accuracy(asked: str, chosen: str) -> None:
    objective = make_objective(uneven_setup(balance=asked))
    assert objective.choice.metric == chosen
    assert objective.shown == ("balanced_accuracy", "accuracy")
    assert make_objective(uneven_setup(balance=asked, best="accuracy")).choice.metric == "accuracy"


def features_of(seed: int, counts: tuple[int, ...], apart: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal clouds, one for each class."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    centres = apart * np.eye(len(counts), 16)
    vectors = centres[labels] + random.normal(size=(len(labels), 16))
    return torch.tensor(vectors, dtype=torch.float32), torch.tensor(labels)


def loader_of(vectors: torch.Tensor, labels: torch.Tensor, batch_size: int, *, shuffled: bool) -> FeatureLoader:
    stored = Features(vectors, torch.arange(len(labels)))
    kinds: dict[str, Any] = {"ranks": Ranks(), "shuffled": shuffled, "data": "", "seed": 0}
    return FeatureLoader(stored=stored, targets=labels, batch_size=batch_size, **kinds)


def try_out(setup: Setup, counts: tuple[int, ...], apart: float, heard: Hearing) -> str:
    train = loader_of(*features_of(0, counts, apart), 32, shuffled=True)
    val = loader_of(*features_of(1, (40,) * len(counts), apart), 256, shuffled=False)
    labels = np.repeat(np.arange(len(counts)), counts)
    source = setup.dataset.split("train").select(np.zeros(len(labels), dtype=np.int64))
    source.labels = labels
    dataset = replace(setup.dataset, splits={"train": source}, classes=tuple("abcdefghij"[: len(counts)]))
    return try_on_features(replace(setup, dataset=dataset), train, val, heard.said)


@pytest.fixture
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "STEPS", 100)
    monkeypatch.setattr(balance, "FEWEST_STEPS", 100)
    monkeypatch.setattr(balance, "LR", 0.03)


@pytest.mark.usefixtures("short_trials")
def test_validation_chooses_on_features(make_setup: Callable[..., Setup]) -> None:
    """On clouds that overlap, a plain classifier gives its doubts to the common classes."""
    heard, setup = Hearing(), make_setup()
    on_head = replace(setup, config=replace(setup.config, start=replace(setup.config.start, train="head")))
    counts, apart = (600, 60, 6), 2.0
    assert try_out(on_head, counts, apart, heard) != "none"
    pattern = r"balance: .*, (\d+\.\d) % balanced accuracy on val against (\d+\.\d) % without"
    said = re.fullmatch(pattern, heard.lines[0])
    assert said is not None
    gained, plain = map(float, said.groups())
    (train, labels), (val, truth) = features_of(0, counts, apart), features_of(1, (40,) * 3, apart)
    for weights, ours in ((None, plain), ("balanced", gained)):
        other = LogisticRegression(class_weight=weights).fit(train, labels)
        assert 100 * balanced_accuracy_score(truth, other.predict(val)) == pytest.approx(ours, abs=8)
    assert try_out(on_head, (60, 50, 40), 6.0, heard) == "none", "where nothing is gained"
    assert "not more than chance explains" in heard.lines[1]


def test_gains_are_paired_and_single_pictures_prove_nothing() -> None:
    random = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], [400, 100, 50])
    rates = np.array([0.9, 0.5, 0.2])
    hits, others = random.random(550) < rates[truth], random.random(550) < rates[truth] - 0.1
    gain = measure_gain(hits, others, truth)
    ours, theirs = (balanced_accuracy_score(truth, np.where(right, truth, (truth + 1) % 3)) for right in (hits, others))
    assert gain.mean == pytest.approx(ours - theirs)
    drawn = [random.choice(np.flatnonzero(truth == label), (2000, size)) for label, size in enumerate((400, 100, 50))]
    differences = hits.astype(float) - others
    bootstrap = np.mean([differences[own].mean(axis=1) for own in drawn], axis=0).std()
    assert gain.error == pytest.approx(bootstrap, rel=0.1)
    single = measure_gain(np.array([True, True]), np.array([True, False]), np.array([0, 1]))
    assert single.mean <= single.error
    assert mean_of_classes(np.array([1, 0, 1]), np.array([0, 0, 3])) == 0.75


class StoppedError(Exception):
    pass


@pytest.mark.usefixtures("short_trials")
@pytest.mark.parametrize("way", ["head", "probe"])
def test_what_was_chosen_is_written_down_and_not_chosen_again(
    way: str, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = {"probe": True, "train": "all"} if way == "probe" else {}
    config = quick_config(**{**HEAD, **kind, "weights": base, "balance": "auto", "epochs": 1})
    setup, _ = settle(config, with_tail(part_of_digits(config, 600)), Ranks(), Listener())
    assert setup.config.optim.balance == "auto"
    offered: list[str] = []
    monkeypatch.setattr(balance, "_fit", lambda setup, train, val, name: offered.append(name) or hits(val, name))

    def hits(val: FeatureLoader, name: str) -> np.ndarray:
        return np.full(len(val.targets), name == "weight")

    def stop(*_: object) -> None:
        raise StoppedError

    heard = Hearing()
    with monkeypatch.context() as patch, RunLock() as lock:
        patch.setattr(Trainer, "run", stop)
        begin(setup, tmp_path / "run", lock)
        with pytest.raises(StoppedError):
            carry_out(setup, Ranks(), tmp_path / "run", heard, resume=False)
    assert sorted(offered) == ["focal", "logit", "none", *(["sample"] if way == "head" else []), "weight"]
    assert heard.lines[-1] == "balance: class weights, 100.0 % balanced accuracy on val against 0.0 % without"
    written = read_config(tmp_path / "run")
    assert written.optim.balance == "weight"
    assert refuse_conflicts(written, {"balance": "auto"}) == written
    with pytest.raises(ConfigError, match="conflicts with the run, which has 'weight'"):
        refuse_conflicts(written, {"balance": "none"})
    made: list[Trainer] = []
    monkeypatch.setattr(Trainer, "run", lambda self: made.append(self) or stop())
    with pytest.raises(StoppedError):
        carry_out(replace(setup, config=written), Ranks(), tmp_path / "run", heard, resume=True)
    assert isinstance(made[0].objective, HeadOnFeatures)
    assert made[0].objective.goal.balance == "weight"
    assert heard.lines[-1].endswith("are there already")


def test_sampling_resumes_to_the_bit(base: str, tmp_path: Path) -> None:
    """From pictures, outliers among them, and from features, with classes in other shares than there are."""
    for name, changes in (("pictures", {"outlier_rate": 0.3}), ("features", {**HEAD, "weights": base})):
        trainers = []
        for folder in ("whole", "cut", "cut"):
            config = quick_config(balance="sample", save_minutes=1e-6, batch_size=16, **changes)
            setup = prepare_run(config, with_tail(part_of_digits(config, 160)))
            trainers.append(Trainer(setup, Ranks(), tmp_path / name / folder))
        whole, cut, again = trainers
        whole.run()
        assert read_native(whole.folder / BEST).is_unsure is (name == "pictures")
        stop_after(cut, whole.state.step - 1)
        with pytest.raises(InterruptedRunError):
            cut.run()
        again.resume()
        assert again.state.step == whole.state.step - 1
        again.run()
        for key, tensor in whole._tensors().items():
            assert torch.equal(tensor, again._tensors()[key]), key
        drawn = np.concatenate([batch.indices.numpy() for batch in whole.loader])
        counts = np.bincount(whole.setup.dataset.split("train").labels[drawn], minlength=10)
        assert counts.max() < 1.7 * counts.min(), "but for the pictures of the last, shorter batch"


SAMPLED = {
    "optimizer": "sgd",
    "lr": 0.05,
    "epochs": 1,
    "ema": None,
    "mixup": 0.5,
    "micro_batch": 16,
    "balance": "sample",
}


@in_fuzz_only
def test_two_ranks_sample_as_one(tmp_path: Path) -> None:
    train(quick_config(**SAMPLED), tmp_path / "one")
    config = quick_config(save_minutes=1e-4, **SAMPLED)
    assert run_ranks(train_until_killed, config, tmp_path / "two", 9, "1")[1] == -signal.SIGKILL
    assert run_ranks(train_until_killed, config, tmp_path / "two") == [0, 0]
    assert_close(best(tmp_path / "one"), best(tmp_path / "two"))


def test_balanced_accuracy_is_shown_first() -> None:
    file = io.StringIO()
    display = Display(Console(file=file, width=200))
    metrics = {"accuracy": 0.9, "balanced_accuracy": 0.5}
    facts: dict[str, Any] = {"step": 1, "lr": 0.1, "train_loss": 1.0, "val_loss": 1.0, "images_per_second": 1.0}
    row = EpochRow(epoch=1, metrics=metrics, shown=("balanced_accuracy", "accuracy"), seconds=1.0, **facts)
    display.finished_epoch(row, False)
    assert "val balanced accuracy 50.00%  val accuracy 90.00%" in file.getvalue()
    display.finished_epoch(replace(row, shown=()), False)
    assert "balanced" not in file.getvalue().splitlines()[1]

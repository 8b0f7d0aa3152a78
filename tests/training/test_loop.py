"""The loop's promises: exact resume, averages, early stopping, rescue from divergence, the head alone."""

import csv
import json
import math
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fuzzing import FUZZ
from processes import run
from vitrail.errors import VitrailError
from vitrail.ranks import Ranks
from vitrail.training import Listener, snapshots, train
from vitrail.training.curves import EpochRow, best_row
from vitrail.training.loop import Trainer
from vitrail.training.objectives import SplitScore
from vitrail.training.signals import Signals
from vitrail.training.snapshots import list_snapshots
from vitrail.weights.read import open_checkpoint

from .conftest import quick_config
from .victims import train_until_killed


def run_victim(folder: Path, kill_at: int, *, threads: int = 1, **changes: object) -> int:
    """How a process ended that trained, until it was killed at the given step (0: never)."""
    return run(train_until_killed, quick_config(**changes), folder, kill_at, threads=threads)


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = list_snapshots(folder / "weights" / "last")[-1]
    return load_file(next(newest.glob("*.safetensors")))


def assert_same_run(one: Path, other: Path) -> None:
    a, b = final_weights(one), final_weights(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    best = [load_file(folder / "weights" / "best.safetensors") for folder in (one, other)]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[0])
    columns = [
        [[row[name] for name in ("epoch", "step", "lr", "train_loss", "val_loss", "val_accuracy")] for row in rows]
        for rows in (list(csv.DictReader((folder / "results.csv").read_text().splitlines())) for folder in (one, other))
    ]
    assert columns[0] == columns[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "threads"),
    [
        ({"ema": 0.9, "save_minutes": 1e-4}, 2),  # lanes, a checkpoint at every step
        pytest.param(
            {"drop_path": 0.2, "dropout": 0.1, "optimizer": "adamw", "save_minutes": 0.002}, 1, marks=FUZZ
        ),  # random numbers
        pytest.param({"optimizer": "sgd", "mixup": 0.8, "save_minutes": 60.0}, 1, marks=FUZZ),  # back to the last epoch
    ],
    ids=["lanes", "dropout", "sgd"],
)
def test_killed_and_resumed_equals_uninterrupted(changes, threads: int, tmp_path: Path) -> None:
    assert run_victim(tmp_path / "whole", 0, threads=threads, **changes) == 0
    for kill_at in (5, 19, 30):  # in the first epoch, at its end, in the second; each time in the same folder
        assert run_victim(tmp_path / "parts", kill_at, threads=threads, **changes) == -signal.SIGKILL
    assert run_victim(tmp_path / "parts", 0, threads=threads, **changes) == 0
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_killed_while_writing_a_checkpoint(make_trainer: Callable[..., Trainer], monkeypatch) -> None:
    """Whatever is half-written is not taken for a checkpoint, and swept away by the next one."""
    trainer = make_trainer()
    trainer.save()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(snapshots, "_finish", interrupt)
    trainer.state.step = 9
    with pytest.raises(KeyboardInterrupt):
        trainer.save()
    monkeypatch.undo()
    folder = trainer.folder / "weights" / "last"
    assert [path.name for path in list_snapshots(folder)] == ["step-000000000"]
    trainer.save()
    assert {path.name for path in folder.iterdir()} == {"step-000000000", "step-000000009"}


def test_result_does_not_depend_on_threads(tmp_path: Path) -> None:
    for threads in (1, 2):
        assert run_victim(tmp_path / str(threads), 0, threads=threads, micro_batch=16, epochs=1) == 0
    assert_same_run(tmp_path / "1", tmp_path / "2")


def test_average_is_what_it_says(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(ema=0.5, epochs=1)
    expected = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    seen: list[int] = []

    class Watch(Listener):
        def stepped(self, step: int, loss: float, images_per_second: float) -> None:
            seen.append(step)
            decay = min(0.5, step / (9 + step))  # before the step was counted: (1 + t) / (10 + t)
            for name, tensor in trainer.model.state_dict().items():
                expected[name].mul_(decay).add_(tensor, alpha=1 - decay)

    trainer.listener = Watch()
    trainer.run()
    assert seen == [1, 2, 3, 4]
    assert trainer.ema is not None
    for name, tensor in trainer.ema.tensors.items():
        torch.testing.assert_close(tensor, expected[name.removeprefix("model.")], rtol=1e-4, atol=1e-6)
    kept = open_checkpoint(trainer.folder).tensors
    averages = trainer.ema.tensors.items()
    assert all(torch.equal(kept[name.removeprefix("model.")], tensor) for name, tensor in averages)


def test_early_stopping(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(lr=0.0, muon_lr=0.0, epochs=50, patience=2, ema=None)
    progress = trainer.run()
    assert (progress.improved_epoch, progress.epoch) == (1, 3)


def test_of_equally_good_epochs_the_last_is_kept_and_patience_still_ends(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(epochs=50, patience=3, ema=None)
    answers = iter([(0.5, 1.0), (0.8, 0.6), (0.8, 0.5), (0.7, 0.4), (0.8, 0.7), (0.6, 0.5), (0.8, 0.404), (0.9, 0.1)])

    def evaluate(_: object) -> SplitScore:
        accuracy, loss = next(answers)
        return SplitScore(loss=loss, metrics={"accuracy": accuracy}, count=10)

    vars(trainer)["evaluate"] = evaluate
    trainer.listener = notes = Notes()
    progress = trainer.run()
    assert (progress.best_epoch, progress.best_metrics["accuracy"], progress.best_loss) == (7, 0.8, 0.404)
    assert (progress.improved_epoch, progress.epoch) == (4, 7)  # where the loss was lowest first
    assert [best_row(notes.rows[:count], trainer.objective.choice).epoch for count in (3, 5, 7)] == [
        3,
        3,
        7,
    ]  # the fifth is overfitted
    kept = open_checkpoint(trainer.folder).tensors
    assert all(torch.equal(kept[name], tensor) for name, tensor in trainer.model.state_dict().items())


class Notes(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.rows: list[EpochRow] = []

    def said(self, message: str) -> None:
        self.notes.append(message)

    def finished_epoch(self, row: EpochRow, is_best: bool) -> None:
        self.rows.append(row)


def test_a_rescue_after_validation_brings_the_weights_back(make_trainer: Callable[..., Trainer]) -> None:
    """Validation is of the averaged weights; what is restored must outlast them."""
    trainer = make_trainer(epochs=3, ema=0.9)
    plain_evaluate, plain_restore = trainer.evaluate, trainer._restore
    restored: dict[str, torch.Tensor] = {}
    seen: list[bool] = []

    def evaluate(loader: object) -> SplitScore:
        found = plain_evaluate(loader)
        return replace(found, loss=math.nan) if trainer.state.epoch == 1 and not restored else found

    def restore(path: Path) -> bool:
        finite = plain_restore(path)
        restored.update({name: tensor.clone() for name, tensor in trainer.model.state_dict().items()})
        return finite

    plain_epoch = trainer._train_epoch

    def train_epoch(signals: Signals) -> None:
        if restored and not seen:
            seen.append(all(torch.equal(restored[name], now) for name, now in trainer.model.state_dict().items()))
        plain_epoch(signals)

    trainer.evaluate, trainer._restore, trainer._train_epoch = evaluate, restore, train_epoch
    trainer.run()
    assert seen == [True]


def test_divergence_is_rescued_or_given_up_with_a_reason(make_trainer: Callable[..., Trainer]) -> None:
    """A learning rate that overflows float32: half of it still does, so in the end the run gives up."""
    trainer = make_trainer(optimizer="sgd", clip=None, epochs=4, ema=None)
    trainer.listener = notes = Notes()
    for group in trainer.optimizers[0].param_groups:
        group["peak_lr"] = 1e30
    with pytest.raises(VitrailError, match="diverges again and again"):
        trainer.run()
    assert len(notes.notes) == 3
    assert "not finite" in notes.notes[0]
    assert "learning rate at 0.5" in notes.notes[0]
    assert list_snapshots(trainer.folder / "weights" / "last"), "the last good state is still there"


def test_divergence_once_is_survived(make_trainer: Callable[..., Trainer], monkeypatch) -> None:
    trainer = make_trainer(epochs=2)
    trainer.listener = notes = Notes()
    accumulate, calls = trainer.engine.accumulate, 0

    def poisoned(*arguments):
        nonlocal calls
        calls += 1
        loss = accumulate(*arguments)
        if calls == 6:  # in the second epoch
            trainer.optimizers[0].param_groups[0]["params"][0].grad.fill_(float("nan"))
        return loss

    monkeypatch.setattr(trainer.engine, "accumulate", poisoned)
    progress = trainer.run()
    assert progress.epoch == 2
    assert progress.lr_scale == 0.5
    assert notes.notes == [
        "step 6: the gradient is not finite; back to step 4 with the learning rate at 0.5 of the plan"
    ]
    assert all(torch.isfinite(tensor).all() for tensor in trainer.model.state_dict().values())
    assert [row.epoch for row in notes.rows] == [1, 2]


def test_the_head_alone_learns_on_cached_features(tmp_path: Path) -> None:
    train(quick_config(epochs=4), tmp_path / "first")
    before = open_checkpoint(tmp_path / "first")
    config = replace(
        quick_config(epochs=30, optimizer="adamw", ema=None),
        start=replace(quick_config().start, model=None, weights=str(tmp_path / "first"), train="head"),
    )
    told: list[tuple[str, int, int]] = []

    class Watcher(Listener):
        def prepared(self, what: str, done: int, total: int) -> None:
            told.append((what, done, total))

    outcome = train(config, tmp_path / "second", Watcher())
    assert [what for what, done, total in told if done == total] == [
        "train features",
        "val features",
        "test pictures measured",
    ]
    after = open_checkpoint(tmp_path / "second")
    changed = {name for name in after.tensors if not torch.equal(after.tensors[name], before.tensors[name])}
    assert changed == {"head.weight", "head.bias"}
    first = json.loads((tmp_path / "first" / "metrics.json").read_text())
    assert outcome.val is not None
    assert outcome.val.accuracy > first["val"]["accuracy"]


def test_without_validation_the_last_epoch_is_kept(tmp_path: Path) -> None:
    config = quick_config(ema=None, epochs=3, patience=1)
    from vitrail.training.setup import prepare_run

    from .conftest import part_of_digits

    dataset = part_of_digits(config)
    dataset = replace(dataset, splits={"train": dataset.split("train")})
    trainer = Trainer(prepare_run(config, dataset), Ranks(), tmp_path)
    progress = trainer.run()
    assert progress.best_epoch == 3
    kept = open_checkpoint(tmp_path).tensors
    assert all(torch.equal(kept[name], tensor) for name, tensor in trainer.model.state_dict().items())


def test_a_loss_that_runs_away_goes_back_to_an_epochs_end(make_trainer: Callable[..., Trainer], monkeypatch) -> None:
    """Checkpoints from inside the bad epoch are no way back: the run returns to the last one that was evaluated."""
    trainer = make_trainer(epochs=3, save_minutes=1e-6)  # a checkpoint after every step
    trainer.listener = notes = Notes()
    accumulate, calls = trainer.engine.accumulate, 0

    def poisoned(*arguments):
        nonlocal calls
        calls += 1
        loss, metrics = accumulate(*arguments)
        return loss + (1e4 if calls == 6 else 0.0), metrics

    monkeypatch.setattr(trainer.engine, "accumulate", poisoned)
    assert trainer.run().epoch == 3
    assert len(notes.notes) == 1
    assert "the training loss has risen" in notes.notes[0]
    assert "back to step 4" in notes.notes[0]


def test_weights_that_are_not_finite_are_never_kept(make_trainer: Callable[..., Trainer], monkeypatch) -> None:
    trainer = make_trainer(epochs=2, ema=None)
    trainer.listener = notes = Notes()
    step, calls = trainer.step, 0

    def poisoned(*arguments):
        nonlocal calls
        calls += 1
        result = step(*arguments)
        if calls == 8:  # the last step of the second epoch
            with torch.no_grad():
                cast("nn.Linear", trainer.model.head).bias[0] = float("inf")
        return result

    monkeypatch.setattr(trainer, "step", poisoned)
    assert trainer.run().epoch == 2
    assert "the validation loss is not finite" in notes.notes[0]
    kept = open_checkpoint(trainer.folder).tensors
    assert all(torch.isfinite(tensor).all() for tensor in kept.values())


def test_a_checkpoint_that_leads_nowhere_is_not_tried_again(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(epochs=2, ema=None)
    trainer.listener = notes = Notes()

    class Saboteur(Notes):
        def stepped(self, step: int, loss: float, images_per_second: float) -> None:
            if step == 6 and not self.notes:  # once: spoil the weights, and keep that
                with torch.no_grad():
                    cast("nn.Linear", trainer.model.head).bias[0] = float("nan")
                trainer.save()

    trainer.listener = notes = Saboteur()
    assert trainer.run().epoch == 2
    assert ["step-000000006 holds numbers that are not finite" in note for note in notes.notes] == [True, False]
    assert "back to step 4" in notes.notes[1]


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    config = quick_config(epochs=1)
    train(config, tmp_path / "whole")
    train(config, tmp_path / "begun")
    shutil.rmtree(tmp_path / "begun" / "weights")
    (tmp_path / "begun" / "results.csv").unlink()
    train(config, tmp_path / "begun")
    assert_same_run(tmp_path / "whole", tmp_path / "begun")

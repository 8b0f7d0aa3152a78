"""The head first, then fine-tuning from it: what is kept, what a resumed run does again, what a budget allows."""

import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vitrail.data import Batch
from vitrail.errors import ConfigError
from vitrail.runtimes.runtime import Floats
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.training import Listener, Start, recipe, train
from vitrail.training.changes import apply_changes
from vitrail.training.curves import read_rows
from vitrail.training.loop import Trainer
from vitrail.training.recipes import probe_config
from vitrail.training.run_folder import describe_end, read_config
from vitrail.training.signals import InterruptedRunError

from .conftest import quick_config
from .test_lora import base as base

PROBE = {
    "model": None,
    "probe": True,
    "optimizer": "adamw",
    "lr": 1e-3,
    "ema": None,
    "mixup": 0.0,
    "epochs": 1,
    "batch_size": 256,
}


@pytest.fixture(autouse=True)
def _short_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's own run, with fewer epochs."""
    short = apply_changes(recipe("linear"), {"epochs": 4, "lr": 0.05})
    monkeypatch.setattr("vitrail.training.recipes.recipe", lambda name: short)


class Hearing(Listener):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def said(self, message: str) -> None:
        self.lines.append(message)


@pytest.mark.parametrize("trained", ["all", "lora"])
def test_fine_tuning_starts_from_the_head(trained: str, base: str, tmp_path: Path) -> None:
    heard = Hearing()
    run = train(quick_config(**PROBE, weights=base, train=trained), tmp_path / "run", heard)
    rows = read_rows(tmp_path / "run" / "results.csv")
    assert [row.epoch for row in rows] == [0, 1]
    probe = load_file(tmp_path / "run" / "probe" / "weights" / "best.safetensors")
    start = load_file(base)
    assert all(torch.equal(probe[name], start[name]) for name in start), "the probe trains only the head"
    assert [line for line in heard.lines if "the head alone reaches" in line]
    assert run.val is not None
    assert rows[0].metrics["accuracy"] is not None
    assert run.val.accuracy > rows[0].metrics["accuracy"] - 1e-6
    assert rows[0].metrics["accuracy"] > 0.3
    assert run.seconds >= rows[0].seconds


def test_a_head_that_fine_tuning_spoils_is_kept(base: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = train(quick_config(**PROBE | {"lr": 0.5, "clip": None}, weights=base), folder)
    assert run.best_epoch == 0
    best = load_file(run.best)
    assert all(
        torch.equal(best[name], tensor) for name, tensor in load_file(folder / "probe/weights/best.safetensors").items()
    )
    (folder / "report.html").touch()
    assert "none better than the head alone" in describe_end(folder, read_config(folder))


def test_an_interrupted_run_continues_wherever_it_was(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quick_config(**PROBE, weights=base, train="lora", save_minutes=1e-6)
    whole = train(config, tmp_path / "whole")
    computed: list[int] = []
    plain = TorchRuntime.features

    def count(self: TorchRuntime, images: Floats) -> Floats:
        computed.append(len(images))
        return plain(self, images)

    monkeypatch.setattr(TorchRuntime, "features", count)
    step = Trainer.step
    for limit in (3, 9, 20):  # the probe has 36 steps, and fine-tuning 4
        steps = 0

        def stop(self: Trainer, batch: Batch, limit: int = limit) -> tuple[float, float]:
            nonlocal steps
            steps += 1
            if steps > limit:
                raise InterruptedRunError(signal.SIGINT, self.folder)
            return step(self, batch)

        monkeypatch.setattr(Trainer, "step", stop)
        with pytest.raises(InterruptedRunError) as raised:
            train(config, tmp_path / "broken")
        assert raised.value.folder == tmp_path / "broken", "the run to resume is the whole one"
    monkeypatch.setattr(Trainer, "step", step)
    run = train(config, tmp_path / "broken")
    assert run.best.read_bytes() == whole.best.read_bytes()
    assert [row.epoch for row in read_rows(tmp_path / "broken" / "results.csv")] == [0, 1]
    assert sum(computed) == 1259 + 269, "the features once"


def test_the_head_is_never_rounded() -> None:
    assert probe_config(quick_config(**PROBE, weights="base", precision="bf16")).machine.precision == "float32"


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="what probe=True begins with"):
        Start(train="head", probe=True)


def test_from_scratch_there_is_nothing_to_probe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="probe=True needs pretrained weights"):
        train(quick_config(probe=True), tmp_path / "run")

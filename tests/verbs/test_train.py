"""`vitrail.train` and the command are one door: the same weights to the bit, the same numbers, the same report."""

import csv
import json
import re
import signal
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.conftest import make_folder  # noqa: F401

from fuzzing import in_fuzz_only
from vitrail.cli.main import main
from vitrail.data import open_data
from vitrail.errors import ConfigError, ResumableError, VitrailError
from vitrail.evaluation.confidence import count_pictures
from vitrail.training import Schedule, TrainConfig, recipe, recipes
from vitrail.training.signals import InterruptedRunError, Signals
from vitrail.verbs import runs
from vitrail.verbs.train import demo, plan, resume, train
from vitrail.weights.read import open_checkpoint


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def numbers(folder: Path) -> dict[str, Any]:
    """metrics.json without what a clock says."""
    facts = json.loads((folder / "metrics.json").read_text())
    del facts["seconds"], facts["evaluation"]["images_per_second"]
    return facts


def sections(folder: Path) -> list[str]:
    return re.findall(r"<h2[^>]*>(.*?)</h2>", (folder / "report.html").read_text(encoding="utf-8"))


def test_the_command_and_python_make_the_same_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--epochs", "2", "--batch-size", "256", "--seed", "3", "--no-check"]
    assert main(["train", "digits", *flags, "--out", "command"]) == 0
    capsys.readouterr()
    run = train("digits", epochs=2, batch_size=256, seed=3, check=False, out="python")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", ""), "Python is quiet"
    assert (run.folder, run.best) == (Path("python"), Path("python/weights/best.safetensors"))
    assert run.best.read_bytes() == Path("command/weights/best.safetensors").read_bytes()
    assert Path("python/config.yaml").read_text() == Path("command/config.yaml").read_text()
    assert numbers(Path("python")) == numbers(Path("command"))
    assert sections(Path("python")) == sections(Path("command"))
    assert len(sections(Path("python"))) > 4
    assert run.report == Path("python/report.html")
    assert run.written[:2] == (run.report, run.best)
    assert all(path.is_file() for path in run.written)
    facts = json.loads(Path("python/metrics.json").read_text())
    assert run.test is not None
    assert run.val is not None
    assert run.test.accuracy == facts["evaluation"]["top1"]["value"]
    assert facts["evaluation"]["nll"] < run.test.loss, "the loss is that of training, before the calibration"
    assert run._repr_png_() == Path("python/results.png").read_bytes()

    again = resume("python")
    assert "there is nothing left to train" in again.ended
    assert (again.val, again.test, again.epochs, again.report) == (run.val, run.test, 2, run.report)


def test_the_test_split_is_measured_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.runtimes.runtime import Floats
    from vitrail.runtimes.torch_runtime import TorchRuntime

    seen = 0
    both = TorchRuntime.logits_and_features

    def count(self: TorchRuntime, images: Floats) -> tuple[Floats, Floats]:
        nonlocal seen
        seen += len(images)
        return both(self, images)

    monkeypatch.setattr(TorchRuntime, "logits_and_features", count)
    run = train("digits", epochs=1, batch_size=256, check=False)
    assert run.test is not None
    assert seen == run.test.count + count_pictures(open_data("digits")), "and those of the calibration"


def test_what_the_run_measured_is_what_its_report_shows(make_folder, here: Path) -> None:  # noqa: F811
    folder = make_folder("cat", "dog", count=60)
    run = train(folder, model="compact-8", epochs=1, check=False, report=False, val_rate=0.5, test_rate=0)
    assert (run.report, run.problem, run.test) == (None, "", None)
    assert not (run.folder / "report.html").exists()
    assert all(path.is_file() for path in run.written)
    assert run.measurement is not None
    assert (run.measurement.split, len(run.measurement.keys)) == ("val", 60)
    assert run.exit_code == 0, "nothing failed"


def test_the_linear_recipe_trains_only_the_head(here: Path) -> None:
    first = train("digits", epochs=1, batch_size=256, check=False, report=False, out="first")
    second = train("digits", recipe="linear", weights=first.best, epochs=5, check=False, report=False, out="second")
    before, after = (open_checkpoint(run.folder).tensors for run in (first, second))
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}
    assert recipe("linear").start.train == "head", "whoever takes the recipe itself gets the same"


def test_a_config_is_completed_by_what_suits_the_data(here: Path) -> None:
    asked = TrainConfig(data="digits", schedule=Schedule(epochs=3))
    by_config, by_name = plan(config=asked, check=False), plan("digits", epochs=3, check=False)
    assert by_config.config == by_name.config
    assert (by_config.recipe, by_config.model, by_config.epochs) == ("digits", "compact-8", 3)
    named = replace(recipe("digits"), schedule=Schedule(epochs=4))
    assert plan(config=named, check=False).epochs == 4
    assert list(here.iterdir()) == [], "a plan writes nothing"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train("digits", epoch=3), "train has no setting 'epoch'; did you mean epochs"),
        (lambda: train("digits", chek=False), "did you mean check"),
        (lambda: plan("digits", mixups=1.0), "did you mean mixup"),
        (lambda: train(recipe="linear", data="digits"), "needs pretrained weights; pass weights="),
        (lambda: train(), "pass the data to train on"),
        (lambda: resume("nothing"), "not a training run"),
        (lambda: train("digits", epochs=2, minutes=3), "pass epochs= or minutes=, not both"),
    ],
)
def test_mistakes_name_the_argument(call: Any, message: str, here: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        call()
    assert list(here.iterdir()) == []


@pytest.mark.usefixtures("no_report")
def test_an_interrupted_run_says_how_to_go_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal as the run remembers it; real ones are sent to processes of their own in the tests of the command."""
    entered: list[Signals] = []
    enter = Signals.__enter__
    monkeypatch.setattr(Signals, "__enter__", lambda self: entered.append(self) or enter(self))

    class Stopper(runs.Listener):
        def stepped(self, step: int, loss: float, images_per_second: float) -> None:
            if step == 3:
                entered[-1].received = signal.SIGINT

    with pytest.raises(InterruptedRunError, match=r'continue the run with vitrail\.resume\("stopped"\)'):
        train("digits", epochs=1, batch_size=256, check=False, out="stopped", progress=Stopper())
    with pytest.raises(ResumableError, match="holds a run already"):
        train("digits", out="stopped")
    run = resume("stopped")
    assert (run.epochs, run.ended) == (1, "")
    whole = train("digits", epochs=1, batch_size=256, check=False, out="whole")
    assert run.best.read_bytes() == whole.best.read_bytes()


def test_without_a_report_the_run_is_still_there(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk\nis gone")

    quick = replace(recipe("digits"), schedule=Schedule(epochs=1))
    monkeypatch.setitem(recipes.RECIPES, "digits", lambda: quick)
    monkeypatch.setattr(runs, "report_on_run", fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = demo()
    assert run.folder == Path("runs/demo-1")
    assert run.best.is_file()
    assert (run.report, run.problem) == (None, "the disk is gone")
    assert ["no report: the disk is gone" in str(warning.message) for warning in caught] == [True]


@in_fuzz_only
def test_folds_and_a_search_are_in_the_report(here: Path) -> None:
    first = train("digits", epochs=1, batch_size=256, check=False, report=False, out="first")
    flags = ["--recipe", "linear", "--weights", str(first.best), "--epochs", "2", "--folds", "2", "--no-check"]
    search = "lr=0.001|0.1"
    assert main(["train", "digits", *flags, "--search", search, "--trials", "2", "--out", "command"]) == 0
    assert {"Folds", "Search", "Results on test"} <= set(sections(Path("command")))
    with Path("command/predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    with Path("command/folds.csv").open() as file:
        folds = {row["key"]: row["fold"] for row in csv.DictReader(file)}
    assert {row["picture"]: row["fold"] for row in rows} == folds
    facts = json.loads(Path("command/metrics.json").read_text())
    assert facts["folds"]["held_out"]["pictures"] == len(folds)
    assert facts["evaluation"]["split"] == "test"
    assert Path("command/test/predictions.csv").is_file()
    again = resume("command")
    assert "nothing left to train" in again.ended
    assert [fold.facts() for fold in again.folds] == facts["folds"]["scores"]
    assert sorted(trial.settings["lr"] for trial in again.trials) in ([0.001, 0.1], [0.1, 0.1], [0.001, 0.001])


def test_folds_are_planned_and_refuse_what_they_cannot_do(here: Path) -> None:
    one, five = (plan("digits", epochs=2, check=False, folds=folds) for folds in (None, 5))
    assert (five.folds, one.folds) == (5, 0)
    assert "5 folds, a last model on all pictures; 2 epochs" in "\n".join(five.describe())
    assert list(here.iterdir()) == []
    for settings, message in (
        ({"fold_repeats": 2}, "pass `folds=` too|pass folds= too"),
        ({"folds": 1}, "folds= must be between 2"),
        ({"folds": 5, "track": True}, "follows one model"),
        ({"folds": 5, "group": "patient"}, "names a column of a table"),
    ):
        with pytest.raises(VitrailError, match=message):
            train("digits", check=False, **settings)

"""A search tries settings, keeps the best, and goes on where it was killed."""

import csv
import math
import signal
import sys
from pathlib import Path

import pytest

from processes import run
from vitrail.data import open_data
from vitrail.errors import ConfigError, MissingExtraError
from vitrail.evaluation import measurement
from vitrail.ranks import Ranks
from vitrail.training import Listener, train, trials
from vitrail.training.fold_scores import Trial
from vitrail.training.result import Run, read_run
from vitrail.training.trials import mark_best

from .test_folds import head_config, train_until_killed, weights  # noqa: F401

SPACE = "lr=1e-3..1,optimizer=adamw|sgd"
TRIALS = 3


@pytest.fixture(scope="module")
def searched(weights: str, tmp_path_factory: pytest.TempPathFactory) -> Run:  # noqa: F811
    config = head_config(weights, search=SPACE, trials=TRIALS, epochs=2)
    return train(config, tmp_path_factory.mktemp("search") / "run")


def test_the_best_of_the_trials_is_the_model(searched: Run) -> None:
    folder = searched.folder
    parts = [read_run(folder / f"trial-{number}") for number in range(1, TRIALS + 1)]
    accuracies = [part.val.accuracy for part in parts if part.val is not None]
    best = accuracies.index(max(accuracies)) + 1
    assert [trial.value for trial in searched.trials] == accuracies
    assert [trial.number for trial in searched.trials if trial.best] == [best]
    assert searched.best.read_bytes() == (folder / f"trial-{best}" / "weights" / "best.safetensors").read_bytes()
    assert all(part.test is None for part in parts), "test pictures are for the last model"
    assert searched.test is not None
    assert len({tuple(trial.settings.items()) for trial in searched.trials}) == TRIALS
    with (folder / "search.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["best" if number == best else "finished" for number in (1, 2, 3)]
    assert [float(row["lr"]) for row in rows] == [trial.settings["lr"] for trial in searched.trials]
    assert [path.name for path in (folder / "features").iterdir()] != []
    assert not (folder / "trial-1" / "features").exists(), "all trials share the features"
    assert read_run(folder).trials == searched.trials


def test_a_killed_search_goes_on_as_it_would_have(searched: Run, weights: str, tmp_path: Path) -> None:  # noqa: F811
    config = head_config(weights, search=SPACE, trials=TRIALS, epochs=2)
    assert run(train_until_killed, config, tmp_path / "run", 11) == -signal.SIGKILL  # of 8 steps each: in the second
    first = (tmp_path / "run" / "trial-1" / "metrics.json").stat().st_mtime_ns
    assert not (tmp_path / "run" / "trial-2" / "trial.json").exists()
    journal = tmp_path / "run" / "study.journal"
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 5, "wor')  # a line that was cut off
    resumed = train(config, tmp_path / "run")
    assert (tmp_path / "run" / "trial-1" / "metrics.json").stat().st_mtime_ns == first, "not repeated"
    assert [trial.settings for trial in resumed.trials] == [trial.settings for trial in searched.trials]
    assert resumed.best.read_bytes() == searched.best.read_bytes()


def test_with_folds_the_mean_decides_and_a_last_model_is_trained(weights: str, tmp_path: Path) -> None:  # noqa: F811
    done = train(head_config(weights, search="lr=1e-3|1.0", trials=2, folds=2, epochs=1), tmp_path / "run")
    best = next(trial for trial in done.trials if trial.best)
    assert best.value == pytest.approx(sum(fold.accuracy for fold in done.folds) / 2)
    assert best.value == max(trial.value for trial in done.trials)
    assert (tmp_path / "run" / f"trial-{best.number}" / "fold-2" / "outputs.safetensors").is_file()
    assert done.held_out is not None
    assert done.held_out.split == measurement.HELD_OUT


def test_failed_trials_do_not_count_and_the_first_of_equals_wins() -> None:
    def trial(number: int, value: float, error: str = "") -> Trial:
        return Trial(number=number, settings={"lr": 1.0}, metric="loss", value=value, seconds=0.0, error=error)

    marked = mark_best([trial(1, math.nan, "diverged"), trial(2, 0.5), trial(3, 0.4), trial(4, 0.4)], higher=False)
    assert [each.best for each in marked] == [False, False, True, False]
    assert [each.best for each in mark_best([trial(1, math.nan, "diverged")], higher=False)] == [False]
    assert Trial.from_facts(trial(1, math.nan, "diverged").facts()).error == "diverged"


def test_without_optuna_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"vitrail\[tune\]"):
        trials.load_optuna()


def test_a_search_needs_validation_pictures(weights: str, tmp_path: Path) -> None:  # noqa: F811
    table = tmp_path / "t.csv"
    table.write_text("path,label,split\n" + "".join(f"{n}.png,{n % 2},train\n" for n in range(8)))
    config = head_config(weights, search=SPACE, val_rate=0.0)
    with pytest.raises(ConfigError, match="chooses by validation pictures"):
        trials.settle_search(config, open_data(table), Ranks(), Listener())

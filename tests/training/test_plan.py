"""What fits into a time budget, decided before the run: epochs, only the head, a smaller size, fewer pictures."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitrail.data import Dataset
from vitrail.errors import ConfigError
from vitrail.ranks import Ranks
from vitrail.training import Listener, Schedule
from vitrail.training import plan as planning
from vitrail.training.budget import pictures_at_the_end
from vitrail.training.changes import apply_changes
from vitrail.training.cost import Measured, epoch_seconds
from vitrail.training.plan import fit_minutes, settle
from vitrail.training.run_data import reopen_data
from vitrail.training.run_folder import write_start
from vitrail.training.setup import Setup, open_training_data, prepare_run
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint

from .conftest import part_of_digits, quick_config
from .test_run import PROBE, Hearing

ALONE = Ranks()


@pytest.fixture
def base(tmp_path: Path) -> str:
    """Untrained weights: nothing is learned here."""
    config = quick_config()
    setup = prepare_run(config, part_of_digits(config))
    path = tmp_path / "base.safetensors"
    tensors = setup.model.state_dict()
    save_checkpoint(Checkpoint(config=setup.model.config, tensors=tensors, preprocess=setup.preprocess), path)
    return str(path)


@pytest.fixture
def paces(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Pictures per second, of features and of training, as if measured; time itself stands still."""
    speeds = {"features": 100.0, "training": 100.0}

    def pace_of(what: str) -> Callable[..., Measured]:
        return lambda *_: Measured(seconds=1 / speeds[what], images=1, peak_bytes=0)

    monkeypatch.setattr(planning, "measure_features", pace_of("features"))
    monkeypatch.setattr(planning, "measure", pace_of("training"))
    began = time.monotonic()
    monkeypatch.setattr(planning.time, "monotonic", lambda: began)
    return speeds


def plan(heard: Listener | None = None, *, may_shrink: bool = False, began: float = 0.0, **changes: Any) -> Setup:
    config = apply_changes(replace(quick_config(), schedule=Schedule()), changes)
    dataset = part_of_digits(config)
    since = time.monotonic() - began
    return settle(config, dataset, ALONE, heard or Listener(), began=since, may_shrink=may_shrink)[0]


HEAD = {"model": None, "train": "head", "probe": False, "mixup": 0.0, "crop": "none", "batch_size": 64}


def without_epochs(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if name != "epochs"}


def sizes(setup: Setup) -> dict[str, int]:
    return {name: len(source) for name, source in setup.dataset.splits.items()}


@pytest.mark.usefixtures("paces")
def test_minutes_become_epochs(make_setup: Callable[..., Setup]) -> None:
    said: list[str] = []
    setup = make_setup()
    setup = replace(setup, config=replace(setup.config, schedule=replace(setup.config.schedule, minutes=2.0)))
    measured = Measured(seconds=0.64, images=64, peak_bytes=0, epoch_overhead=1.0)  # 100 images/s
    each = epoch_seconds(setup, measured)
    assert each == pytest.approx(2.56 + 269 / 3 / 100 + 1.0)
    setup = replace(setup, began=time.monotonic())
    schedule = fit_minutes(setup, measured, said.append).schedule
    ending = pictures_at_the_end(setup.dataset.splits) / 3 / 100
    assert schedule.epochs == int((120 * 0.95 - ending) / each)
    assert schedule.minutes == 2.0, "or nobody could revise the plan"
    late = replace(setup, began=setup.began - 60)
    assert fit_minutes(late, measured, said.append).schedule.epochs == int((60 * 0.95 - 3 - ending) / each), (
        "checking the data and planning count"
    )


def test_where_no_epoch_fits_there_are_fewer_pictures(paces: dict[str, float]) -> None:
    """An epoch of the 256 pictures, and what comes after it, would take two minutes, and the budget has 57 s."""
    paces["training"] = 4.0
    heard = Hearing()
    setup = plan(heard, minutes=1.0)
    left, whole = sizes(setup), sizes(plan())
    assert setup.config.schedule.epochs == 1
    measured = Measured(seconds=0.25, images=1, peak_bytes=0)
    ending = pictures_at_the_end(setup.dataset.splits) / 3 / 4
    assert 50 < epoch_seconds(setup, measured) + ending < 59
    assert all(0 < left[name] < whole[name] for name in whole)
    assert set(setup.dataset.split("train").labels.tolist()) == set(range(10))
    assert any(f"enough for {left['train']} of 256 training pictures" in line for line in heard.lines)


def test_pictures_that_are_left_out_stay_so(paces: dict[str, float], tmp_path: Path) -> None:
    paces["training"] = 4.0
    config = apply_changes(replace(quick_config(), schedule=Schedule()), {"minutes": 1.0})
    setup, _ = settle(config, open_training_data(config), ALONE, Listener())
    write_start(setup, tmp_path)
    heard: list[str] = []
    again = reopen_data(setup.config, tmp_path / "split.csv", heard.append)
    assert keys_of(again) == keys_of(setup.dataset)
    assert heard == [], "nothing is new"


def keys_of(dataset: Dataset) -> dict[str, list[str]]:
    return {name: [source.key(index) for index in range(len(source))] for name, source in dataset.splits.items()}


def test_a_head_that_fits_keeps_its_pictures(paces: dict[str, float], base: str) -> None:
    setup = plan(minutes=1.0, weights=base, **HEAD)
    assert sizes(setup) == sizes(plan())
    assert (setup.config.schedule.epochs, setup.config.schedule.minutes) == (100, 1.0)


def test_of_a_head_as_many_pictures_as_fit(paces: dict[str, float], base: str) -> None:
    """794 pictures in all at 10 a second, and 150 for the report; 57 s, of which 10 are for the head itself."""
    paces["features"] = 10.0
    setup = plan(minutes=1.0, weights=base, **HEAD)
    share = (47 * 10 - 150) / sum(sizes(plan()).values())
    assert sizes(setup)["train"] == pytest.approx(256 * share, abs=10)
    counts = Counter(setup.dataset.split("train").labels.tolist())
    assert max(counts.values()) - min(counts.values()) < 6, "of all classes"
    assert "minutes" not in setup.config.chosen


def test_a_budget_counts_the_answers_of_a_teacher(
    paces: dict[str, float], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 training pictures, at a fifth of a second or a whole one each, of 57 s."""
    everything = sizes(plan())
    monkeypatch.setattr(planning, "answer_seconds", lambda setup, _: len(setup.dataset.split("train")) / 5)
    head = sizes(plan(minutes=1.0, weights=base, **HEAD))
    pictures = sum(everything.values())
    affordable = (47 - 150 / 100) / (1 / 100 + 256 / 5 / pictures)
    assert head["train"] == pytest.approx(256 * affordable / pictures, abs=10)
    monkeypatch.setattr(planning, "answer_seconds", lambda setup, _: float(len(setup.dataset.split("train"))))
    assert 30 < sizes(plan(minutes=1.0))["train"] < 57


def test_too_few_pictures_become_smaller_ones(paces: dict[str, float], base: str) -> None:
    paces["features"] = 6.0
    big = {**HEAD, "image_size": (32, 32)}  # a grid of 16, of 8×8 pictures
    setup = plan(minutes=1.0, weights=base, may_shrink=True, **big)
    assert setup.model.config.image_size == (16, 16)
    assert "pictures of 16×16, to keep to the budget" in setup.config.chosen
    fewer = plan(minutes=1.0, weights=base, **big)
    assert fewer.model.config.image_size == (32, 32), "whoever asked for a size gets it"
    assert sizes(fewer)["train"] < sizes(setup)["train"]


def test_a_budget_without_room_for_an_epoch_ends_with_the_head(
    paces: dict[str, float], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Hearing()
    paces["training"] = 0.5
    changes = without_epochs(PROBE)
    setup = plan(heard, minutes=1.0, weights=base, **changes)
    assert (setup.config.start.train, setup.config.start.probe) == ("head", False)
    assert setup.config.schedule.minutes == 1.0, "the budget is still one"
    assert any("leave no time for fine-tuning" in line for line in heard.lines)
    assert "no time for more than the head" in setup.config.chosen
    paces["features"] = 11.0
    monkeypatch.setattr(planning, "measure", None)
    assert plan(minutes=1.0, weights=base, **changes).config.start.train == "head", "and nothing else is measured"


def test_no_time_at_all_is_an_error(paces: dict[str, float], base: str) -> None:
    for changes in ({}, {"weights": base, **HEAD}):
        with pytest.raises(ConfigError, match=r"minutes=1 is too little: 58 s are gone .* check=False"):
            plan(minutes=1.0, began=58.0, **changes)

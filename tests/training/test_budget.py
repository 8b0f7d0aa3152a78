"""A time budget: re-planned after each epoch, saved, and ended well."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError
from vitrail.training import Listener, Schedule, loop
from vitrail.training.budget import Pace, curve_position, first_plan, fitting_epochs, revise
from vitrail.training.changes import describe_config
from vitrail.training.curves import EpochRow, read_rows
from vitrail.training.loop import Trainer
from vitrail.training.optim import lr_factor
from vitrail.training.run_folder import refuse_conflicts
from vitrail.training.snapshots import list_snapshots, read_state

from .conftest import quick_config


class Clock:
    """Time that passes only when a step is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Watch(Listener):
    """Makes each step last as long as the test says, and remembers."""

    def __init__(self, trainer: Trainer, clock: Clock, seconds_of: Callable[[int], float], stop_at: int = 0) -> None:
        self.notes: list[str] = []
        self.plans: list[int] = []
        self.rates: list[float] = []
        step = trainer.step

        def slow(*arguments):
            clock.now += seconds_of(trainer.state.epoch)
            result = step(*arguments)
            self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
            if trainer.state.step == stop_at:
                raise KeyboardInterrupt
            return result

        vars(trainer)["step"] = slow
        trainer.listener = self

    def said(self, message: str) -> None:
        self.notes.append(message)

    def planned(self, total_steps: int, epochs: int) -> None:
        self.plans.append(epochs)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=fake.monotonic))
    return fake


# Four steps per epoch; ten minutes, of which 570 s are planned for.
BUDGET = {"minutes": 10.0, "epochs": 10, "ema": None, "optimizer": "adamw", "save_minutes": 1e6}


def make(make_trainer: Callable[..., Trainer], folder: str = "run") -> Trainer:
    changes = {name: value for name, value in BUDGET.items() if name != "minutes"}
    trainer = make_trainer(folder, **changes)
    config = trainer.setup.config
    setup = replace(trainer.setup, config=replace(config, schedule=replace(config.schedule, minutes=10.0)))
    return Trainer(setup, trainer.ranks, trainer.folder)


def test_a_machine_that_becomes_busy_shortens_the_plan(make_trainer: Callable[..., Trainer], clock: Clock) -> None:
    """An epoch of 50 s, and from the third on of 160 s: the budget holds, where ten epochs would take 23 minutes."""
    trainer = make(make_trainer)
    watch = Watch(trainer, clock, lambda epoch: 12.5 if epoch < 2 else 40.0)
    progress = trainer.run()
    assert watch.plans == [11, 11, 4, 4]
    assert progress.epoch == 4
    assert progress.seconds == pytest.approx(2 * 50 + 2 * 160)
    assert progress.seconds <= 600
    assert watch.notes == ["an epoch now takes 160.0 s: 4 epochs fit into 10 minutes"]
    assert watch.rates[-1] < 0.1 * max(watch.rates), "the learning rate comes down all the same"
    peak = watch.rates.index(max(watch.rates))
    assert all(later <= earlier for earlier, later in itertools.pairwise(watch.rates[peak:]))


def test_a_machine_that_becomes_free_prolongs_it(make_trainer: Callable[..., Trainer], clock: Clock) -> None:
    trainer = make(make_trainer)
    watch = Watch(trainer, clock, lambda epoch: 15.0 if epoch < 2 else 5.0)
    progress = trainer.run()
    assert progress.epoch == 2 + (570 - 120) // 20
    assert 540 < progress.seconds <= 600
    peak = watch.rates.index(max(watch.rates))
    assert all(later <= earlier for earlier, later in itertools.pairwise(watch.rates[peak:])), "no jump up"
    assert watch.rates[-1] < 0.02 * max(watch.rates)


def test_without_room_for_another_epoch_the_run_ends_well_and_says_so(
    make_trainer: Callable[..., Trainer], clock: Clock
) -> None:
    trainer = make(make_trainer)
    watch = Watch(trainer, clock, lambda epoch: 12.5 if epoch < 1 else 100.0)
    progress = trainer.run()
    assert progress.epoch == 2
    assert watch.notes == [
        "10 minutes leave no time for another epoch, which now takes 400.0 s: ending after epoch 2 of 10"
    ]
    assert (trainer.folder / "weights" / "best.safetensors").is_file()
    rows = read_rows(trainer.folder / "results.csv")
    assert [row.epoch for row in rows] == [1, 2]
    assert isinstance(rows[-1], EpochRow)


def test_an_epoch_that_takes_too_long_ends_early(make_trainer: Callable[..., Trainer], clock: Clock) -> None:
    """Planned with 50 s for each; then its four steps would take 20 minutes."""
    trainer = make(make_trainer)
    Watch(trainer, clock, lambda epoch: 250.0)
    trainer._evaluation_pace = 0.0
    progress = trainer.run()
    assert (progress.epoch, progress.step) == (1, 3)
    assert progress.seconds == pytest.approx(750.0), "after the step that went over it"
    assert [row.epoch for row in read_rows(trainer.folder / "results.csv")] == [1]
    again = make(make_trainer)
    again.resume()
    assert again.run().step == 3, "nothing is left to do"


def test_a_resumed_run_goes_on_with_its_plan(make_trainer: Callable[..., Trainer], clock: Clock) -> None:
    whole = make(make_trainer, "whole")
    speeds = {0: 12.5, 1: 12.5, 2: 25.0}
    one = Watch(whole, clock, lambda epoch: speeds.get(epoch, 25.0))
    whole.run()
    stopped = make(make_trainer, "parts")
    two = Watch(stopped, clock, lambda epoch: speeds.get(epoch, 25.0), stop_at=13)  # in the fourth epoch
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    saved = read_state(list_snapshots(stopped.last)[-1])
    assert saved.step == 12
    assert saved.plan is not None
    assert saved.plan.epochs == whole.state.epoch
    clock.now += 1e6  # a long pause, which is not the run's
    again = make(make_trainer, "parts")
    three = Watch(again, clock, lambda epoch: speeds.get(epoch, 25.0))
    again.resume()
    again.run()
    assert again.state.epoch == whole.state.epoch
    assert three.rates == one.rates[12:]
    assert two.rates[:12] == one.rates[:12]


def test_the_final_evaluation_is_part_of_the_budget() -> None:
    pace = Pace(so_far=100.0, epoch=50.0, ending=0.0)
    assert fitting_epochs(10.0, pace) == 9
    assert fitting_epochs(10.0, replace(pace, ending=70.0)) == 8
    assert fitting_epochs(10.0, replace(pace, so_far=1e6)) == 0


@given(
    st.sampled_from(["cosine", "constant", "wsd"]),
    st.floats(0, 0.5),
    st.lists(st.floats(0.1, 2000), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(1, 9),
)
def test_the_learning_rate_never_jumps(
    kind: str, warmup: float, durations: list[float], epochs: int, steps: int
) -> None:
    """Whatever the epochs take: after the warm-up it only falls, and a new plan begins where the old one was."""
    config = Schedule(schedule=kind, warmup=warmup, cooldown=0.2)  # type: ignore[arg-type]
    plan, factors, step, spent, position = first_plan(epochs, steps), [], 0, 0.0, 0.0
    for epoch in itertools.count(1):
        for _ in range(steps):
            position = curve_position(plan, step, plan.epochs * steps)
            factors.append(lr_factor(config, position, plan.curve_steps))
            step += 1
        duration = durations[min(epoch, len(durations)) - 1]
        spent += duration
        pace = Pace(so_far=spent, epoch=duration, ending=1.0)
        before = curve_position(plan, step, plan.epochs * steps)
        plan = revise(plan, 60.0, pace, epoch=epoch, steps_per_epoch=steps, step=step)
        if epoch >= plan.epochs or epoch > 60:
            break
        assert curve_position(plan, step, plan.epochs * steps) == pytest.approx(before)
    assert all(0 <= factor <= 1 for factor in factors)
    peak = factors.index(max(factors))
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(factors[peak:]))


def test_the_config_holds_the_minutes_and_not_the_epochs_that_follow(tmp_path: Path) -> None:
    config = quick_config(epochs=7)
    config = replace(config, schedule=replace(config.schedule, minutes=3.0))
    facts = describe_config(config)
    assert facts["schedule"]["minutes"] == 3.0
    assert "epochs" not in facts["schedule"]
    json.dumps(facts)
    with pytest.raises(ConfigError, match="conflicts with the run, which has minutes=3"):
        refuse_conflicts(config, {"epochs": 5})
    assert refuse_conflicts(config, {"minutes": 3}) == config
    with pytest.raises(ConfigError, match="minutes=4 conflicts"):
        refuse_conflicts(config, {"minutes": 4})

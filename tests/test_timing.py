"""Calls that are compared by the clock take turns, and what disturbs the machine does not decide."""

from typing import Any

import pytest

from conftest import Clock
from vitrail import timing
from vitrail.timing import Lap, agreed_gain, best_of, repeat, sum_up, take_turns, undisturbed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_turns_are_short_and_take_turns(clock: Clock) -> None:
    order: list[str] = []

    def call(name: str, seconds: float) -> Any:
        return lambda: (order.append(name), clock.sleep(seconds))

    calls = [call("slow", 0.75), call("fast", 0.5)]
    laps = take_turns(calls, 8, patience=2.0, work_clock=lambda: 2 * clock.now)
    assert [best_of(own) for own in laps] == [(0.75, 1.5), (0.5, 1.0)]
    assert order == ["slow", "fast"] * 2, "no third round after two seconds"
    order.clear()
    take_turns(calls, 2, rotate=True)
    assert order == ["slow", "fast", "fast", "slow"]
    assert best_of([Lap(1.0), Lap(3.0), Lap(2.0)], warm_up=1) == Lap(2.0)
    assert best_of([Lap(1.0)], warm_up=1) == Lap(1.0)


def test_calls_are_repeated_as_often_as_it_takes(clock: Clock) -> None:
    calls = iter(range(10))

    def call() -> None:
        next(calls)
        clock.sleep(0.2)

    assert repeat(call, times=3, patience=0.1) == pytest.approx([0.2]), "one at least"
    assert len(repeat(call, times=2, seconds=0.5, warm_up=1)) == 3
    assert len(repeat(call, times=9, patience=0.5)) == 2
    assert len(repeat(call, times=9)) == 3, "until nothing is left to do"


def test_on_a_busy_machine_work_counts_and_not_waiting() -> None:
    quiet, busy = [Lap(1.0, 1.9), Lap(0.8, 1.0)], [Lap(3.0, 1.9), Lap(4.0, 1.5)]
    assert undisturbed(quiet, 2) == [1.0, 0.8]
    assert undisturbed(busy, 2) == [0.95, 0.75]
    assert undisturbed([], 2) == []


def test_a_gain_is_believed_when_found_twice() -> None:
    for gains, agreed in (([1.48, 1.60], 1.48), ([1.05], 1.05), ([1.14, 0.56], 0.56)):
        looks = iter(gains)
        assert agreed_gain(lambda looks=looks: next(looks), 1.1) == agreed


def test_the_quieter_half_of_the_turns_counts() -> None:
    found = sum_up([[1.0, 1.0], [9.0], [2.0, 2.0], [1.0]])
    assert (found.p50, found.p95, found.rate) == (1.0, 1.0, 1.0)

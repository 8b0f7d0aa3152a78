"""Turns, quantiles and the best matrix product."""

from typing import Any

import numpy as np
import pytest
import torch

from conftest import Clock
from vitrail import timing
from vitrail.runtimes import contestants
from vitrail.runtimes.contestants import Turn, measure_gemm_peak, time_in_turns
from vitrail.threads import cores


def test_calls_take_turns_on_their_own_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(contestants, "time", clock)
    monkeypatch.setattr(timing, "time", clock)
    order: list[tuple[str, int]] = []

    def call(name: str, seconds: float) -> None:
        order.append((name, torch.get_num_threads()))
        clock.sleep(seconds)

    turns = {
        "fast": Turn(call=lambda: call("fast", 0.001), cores=1),
        "slow": Turn(call=lambda: call("slow", 0.02), cores=2),
    }
    done: list[int] = []
    before = torch.get_num_threads()
    timings = time_in_turns(turns, 0.03, done.append, rounds=3)
    assert torch.get_num_threads() == before
    assert set(order) == {("fast", 1), ("slow", 2)}
    assert len(done) == 6
    first_slow = order.index(("slow", 2))
    assert ("fast", 1) in order[first_slow:], "nobody has all turns in a row"
    assert order.count(("slow", 2)) == 2, "whoever needs longer than its time has two turns"
    for name, seconds in (("fast", 0.001), ("slow", 0.02)):
        assert (timings[name].p50, timings[name].p95) == pytest.approx((seconds, seconds))
        assert timings[name].rate == pytest.approx(1 / seconds)


def test_the_best_matrix_product_is_that_of_this_machine() -> None:
    before = torch.get_num_threads()
    peak = measure_gemm_peak(1, seconds=0.05)
    assert 1e8 < peak < 1e13
    with cores(2):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_numpy_which_takes_all_cores_does_not_measure_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, ...]] = []
    own = np.matmul

    def matmul(left: np.ndarray, right: np.ndarray, **rest: Any) -> Any:
        sizes.append(left.shape)
        return own(left, right, **rest)

    monkeypatch.setattr(np, "matmul", matmul)
    with cores(2):
        measure_gemm_peak(1, seconds=0.01)
        assert not sizes
        measure_gemm_peak(2, seconds=0.01)
    assert sizes

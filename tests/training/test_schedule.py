"""Learning rates: torch's own schedulers are the oracle."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR

from vitrail.training import Schedule
from vitrail.training.schedule import lr_factor


def test_cosine_is_torchs() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = CosineAnnealingLR(optimizer, T_max=50)
    config = Schedule(warmup=0.0)
    for step in range(50):
        assert lr_factor(config, step, 50) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


def test_warmup_rises_in_a_straight_line_to_the_peak() -> None:
    config = Schedule(warmup=0.1)
    assert [lr_factor(config, step, 100) for step in range(10)] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert lr_factor(config, 10, 100) == pytest.approx(1.0)


def test_wsd_is_flat_and_then_falls_in_a_straight_line() -> None:
    config = Schedule(schedule="wsd", warmup=0.1, cooldown=0.2, final_lr=0.1)
    assert {lr_factor(config, step, 100) for step in range(10, 81)} == {1.0}
    assert lr_factor(config, 90, 100) == pytest.approx(0.55)
    assert lr_factor(config, 99, 100) == pytest.approx(0.1 + 0.9 * 0.05)


@given(
    st.sampled_from(["cosine", "constant", "wsd"]),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
    st.floats(0, 1),
    st.integers(1, 500),
)
def test_always_above_zero_and_never_above_the_peak(
    kind: str, warmup: float, cooldown: float, final: float, total: int
) -> None:
    config = Schedule(schedule=kind, warmup=warmup, cooldown=cooldown, final_lr=final)  # type: ignore[arg-type]
    factors = [lr_factor(config, step, total) for step in range(total)]
    assert all(0 < factor <= 1 + 1e-12 for factor in factors)

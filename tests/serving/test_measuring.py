"""What is chosen from measured times."""

import numpy as np
import pytest

from conftest import Clock
from vitrail.serving import measuring
from vitrail.serving.measuring import choose_batch, choose_wait, measure


@pytest.mark.parametrize(
    ("seconds", "batch", "wait"),
    [
        ({1: 0.040, 2: 0.080, 4: 0.160}, 1, 0.0),  # nothing is gained
        ({1: 0.001, 2: 0.002, 4: 0.004, 8: 0.008, 16: 0.016}, 16, 0.0),  # nothing but fewer calls
        ({1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024, 16: 0.047}, 8, 2.5),  # gains, until they end
        ({1: 0.010, 2: 0.018, 4: 0.030, 8: 0.060}, 4, 0.0),  # gains, but not enough to wait for
        ({1: 0.300, 2: 0.310}, 1, 75.0),  # a larger batch would keep the others waiting
        ({1: 0.010}, 1, 0.0),
    ],
)
def test_choices(seconds: dict[int, float], batch: int, wait: float) -> None:
    assert choose_batch(seconds) == batch
    assert choose_wait(seconds) == wait


def test_measuring_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(measuring, "time", clock)
    images = np.zeros((64, 1, 1, 1), dtype=np.float32)

    def compute(batch: np.ndarray) -> np.ndarray:
        clock.sleep(0.02 * len(batch))
        return batch

    seconds = measure(compute, images)
    assert clock.now < 2
    assert list(seconds)[:3] == [1, 2, 4]
    assert seconds[1] == pytest.approx(0.02)

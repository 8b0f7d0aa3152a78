"""The order of samples."""

import numpy as np

from vitrail.data.order import WINDOW, evaluation_order, shuffle, training_order


def test_shards_are_read_a_window_at_a_time() -> None:
    blocks = [10] * 40
    order = shuffle(400, seed=0, epoch=0, blocks=blocks)
    assert sorted(order.tolist()) == list(range(400))
    for start in range(0, 400, WINDOW * 10):
        assert len(set(order[start : start + WINDOW * 10] // 10)) == WINDOW
    assert not np.array_equal(order, shuffle(400, seed=0, epoch=1, blocks=blocks))
    assert len(set(order[:10] // 10)) > 2  # shards of a window are mixed


def test_shuffles_are_even() -> None:
    """Each sample is as often in each tenth of the order."""
    counts = np.zeros((20, 10))
    for epoch in range(2000):
        order = shuffle(20, seed=3, epoch=epoch)
        counts[order, np.arange(20) // 2] += 1
    assert counts.min() > 130  # 200 expected, deviation 13
    assert counts.max() < 270


def test_remainders() -> None:
    samples = np.arange(10)
    assert len(training_order(samples, 4)) == 2
    padded = training_order(samples, 4, remainder="pad")
    assert padded.samples.tolist() == [*range(10), 0, 1]
    assert training_order(np.arange(3), 8, remainder="pad").samples.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert [len(evaluation_order(10, 4).positions(batch, 0, 1)) for batch in range(3)] == [4, 4, 2]


def test_the_last_batch_is_shared_out() -> None:
    order = evaluation_order(11, 8)
    assert [order.positions(1, rank, 4).tolist() for rank in range(4)] == [[], [8], [9], [10]]

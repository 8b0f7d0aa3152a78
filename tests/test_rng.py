"""The random numbers: they must look random, and depend on nothing but their place."""

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from vitrail.rng import Draws, permutation, start_of_permutation


def test_a_sample_keeps_its_numbers_in_any_company() -> None:
    alone = Draws(1, 2, np.array([7])).uniform("x", 3)
    together = Draws(1, 2, np.array([3, 7, 9])).uniform("x", 3)
    assert np.array_equal(alone[0], together[1])
    assert np.array_equal(Draws(1, 2, np.array([3, 7, 9]))[1:2].uniform("x", 3), alone)
    assert np.array_equal(Draws(1, 2, np.array([7])).uniform("x", 5)[:, :3], alone)  # more numbers, same start


@pytest.mark.parametrize(
    "other", [(2, 2, 7, 0, "x"), (1, 3, 7, 0, "x"), (1, 2, 8, 0, "x"), (1, 2, 7, 1, "x"), (1, 2, 7, 0, "y")]
)
def test_everything_about_a_draw_matters(other: tuple) -> None:
    seed, epoch, sample, repeat, stream = other
    ours = Draws(1, 2, np.array([7])).uniform("x", 1)
    assert Draws(seed, epoch, np.array([sample]), np.array([repeat])).uniform(stream, 1) != ours


@pytest.mark.parametrize("vary", ["seed", "epoch", "sample", "repeat"])
def test_numbers_are_uniform_and_unrelated(vary: str) -> None:
    count = 20_000
    if vary in ("sample", "repeat"):
        places = np.arange(count)
        draws = Draws(
            0, 0, places if vary == "sample" else np.zeros(count, dtype=int), places if vary == "repeat" else 0
        )
        numbers = draws.uniform("x", 2)
    else:
        pairs = ((n, 0) if vary == "seed" else (0, n) for n in range(2000))
        numbers = np.concatenate([Draws(seed, epoch, np.array([5])).uniform("x", 2) for seed, epoch in pairs])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers[:, 0], "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(numbers[:-1, 0], numbers[1:, 0])[0, 1]) < 0.06
    assert abs(np.corrcoef(numbers[:, 0], numbers[:, 1])[0, 1]) < 0.06


def test_choice_and_normal() -> None:
    draws = Draws(0, 0, np.arange(30_000))
    counts = np.bincount(draws.choice("x", 14), minlength=14)
    assert stats.chisquare(counts).pvalue > 1e-3
    assert stats.kstest(draws.normal("n"), "norm").pvalue > 1e-3


def test_negative_and_large_seeds() -> None:
    assert sorted(permutation(-1, 0, 10).tolist()) == list(range(10))
    assert permutation(2**63 + 5, 0, 10).tolist() != permutation(5, 0, 10).tolist()


def test_numbers_stay_the_same_across_versions() -> None:
    """A resumed run must see what it would have seen; change these only with a note in the changelog."""
    numbers = Draws(42, 3, np.array([0, 1])).uniform("flip", 1)[:, 0]
    assert numbers.tolist() == [0.8354617752897701, 0.8535719292292444]


def test_numbers_of_many_lengths_take_little_memory() -> None:
    """The noise of random erasing asks for as many numbers as its box has pixels, which is never the same."""
    draws = Draws(0, 0, np.arange(1))
    longest = draws.words("noise", 5000)
    tracemalloc.start()
    for count in range(1, 5000, 3):
        assert np.array_equal(draws.words("noise", count)[0, -3:], longest[0, max(count - 3, 0) : count])
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000


def test_any_seed_is_a_seed() -> None:
    numbers = [Draws(seed, 0, np.arange(3)).one("x").tolist() for seed in (-1, 0, 2**63, 10**30)]
    assert len({tuple(some) for some in numbers}) == 4


@pytest.mark.parametrize(("most", "count"), [(5, 3), (5, 100_000), (70_000, 140_000), (3, 0)])
def test_the_start_of_a_permutation(most: int, count: int) -> None:
    ours, whole = start_of_permutation(most, 3, 1, count, "map"), permutation(3, 1, count, "map")
    assert ours.tolist() == whole[:most].tolist()

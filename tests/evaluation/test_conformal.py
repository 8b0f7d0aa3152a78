"""Label sets: thresholds as the textbook has them, coverage as promised, and the same set for the same picture."""

import math

import numpy as np
import pytest

from vitrail.errors import ConfigError
from vitrail.evaluation.conformal import LEVELS, fit_sets, measure_sets
from vitrail.weights.trust import LabelSets, Trust, probabilities

PLAIN = Trust(data="", pictures=1, temperature=1.0)


def sample(count: int, seed: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose probabilities are true."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(scale=2, size=(count, classes)).astype(np.float32)
    shares = probabilities(logits)
    return logits, (shares.cumsum(1) > generator.random((count, 1))).argmax(1)


def score(row: np.ndarray, label: int, sets: LabelSets) -> float:
    """RAPS without randomisation, word for word."""
    order = sorted(range(len(row)), key=lambda index: -row[index])
    rank = order.index(label) + 1
    return float(sum(row[other] for other in order[: rank - 1])) + sets.penalty * max(0, rank - sets.free_ranks)


def test_thresholds_are_the_textbooks() -> None:
    """Angelopoulos and Bates, "A gentle introduction to conformal prediction": the ⌈(n + 1)(1 - α)⌉ / n quantile."""
    logits, targets = sample(500, 0)
    sets = fit_sets(logits, targets, PLAIN)
    assert sets is not None
    rows = zip(probabilities(logits), targets, strict=True)
    scores = [score(row, int(label), sets) for row, label in rows]
    for level, threshold in zip(sets.levels, sets.thresholds, strict=True):
        place = math.ceil(round(501 * level, 6)) / 500 - 1e-9
        assert threshold == pytest.approx(np.quantile(scores, place, method="inverted_cdf"), abs=1e-12)
    assert sets.levels == tuple(level for level in LEVELS if level <= 500 / 501)


def test_a_set_is_whatever_scores_below_the_threshold() -> None:
    logits, targets = sample(200, 1)
    sets = fit_sets(logits, targets, PLAIN)
    assert sets is not None
    for row in probabilities(sample(50, 2)[0]):
        inside = [label for label in range(10) if score(row, label, sets) <= sets.threshold(0.8) + 1e-12]
        size = int(sets.sizes(row[None], 0.8)[0])
        assert sorted(inside) == sorted(np.argsort(-row)[:size])


def test_sets_hold_the_truth_as_often_as_promised() -> None:
    """Over many calibrations of 200 pictures; without the + 1 the coverage would be 0.5 points lower."""
    held: list[float] = []
    for seed in range(60):
        logits, targets = sample(200, 2 * seed)
        sets = fit_sets(logits, targets, PLAIN)
        assert sets is not None
        held.append(measure_sets(sets, *sample(500, 2 * seed + 1), PLAIN, 0.9).coverage.value)
    error = np.std(held) / math.sqrt(len(held))
    assert 0.9 - 2 * error <= np.mean(held) <= 0.9 + 1 / 201 + 2 * error


def test_what_is_measured() -> None:
    logits, targets = sample(400, 3)
    sets = fit_sets(logits, targets, PLAIN)
    assert sets is not None
    others, truth = sample(300, 4)
    truth[truth == 3] = 2  # a class without pictures
    found = measure_sets(sets, others, truth, PLAIN, 0.9)
    sizes = sets.sizes(probabilities(others), 0.9)
    np.testing.assert_array_equal(found.sizes, sizes)
    held = [label in np.argsort(-row)[:size] for row, size, label in zip(others, sizes, truth, strict=True)]
    assert found.coverage.correct == sum(held)
    assert found.mean_size == sizes.mean()
    assert found.classes[3] is None
    assert np.isnan(found.class_sizes[3])
    second = found.classes[2]
    assert second is not None
    assert (second.correct, second.total) == (int(np.array(held)[truth == 2].sum()), int((truth == 2).sum()))
    assert found.class_sizes[2] == pytest.approx(sizes[truth == 2].mean())


def test_no_set_is_empty_and_a_higher_coverage_never_shrinks_one() -> None:
    logits, targets = sample(300, 5)
    sets = fit_sets(logits, targets, PLAIN)
    assert sets is not None
    shares = probabilities(np.concatenate([sample(100, 6)[0], np.eye(10, dtype=np.float32) * 1000]))
    before = np.ones(len(shares))
    for coverage in (0.5, 0.9, 0.95, 0.99):
        sizes = sets.sizes(shares, coverage)
        assert (sizes >= before).all()
        before = sizes


def test_a_coverage_between_two_levels_gets_the_higher() -> None:
    logits, targets = sample(300, 5)
    sets = fit_sets(logits, targets, PLAIN)
    assert sets is not None
    assert sets.threshold(0.9011) == sets.threshold(0.905) > sets.threshold(0.9)
    assert sets.threshold(0.1) == sets.threshold(0.5)


def test_more_than_the_pictures_can_promise() -> None:
    sets = fit_sets(*sample(99, 0), PLAIN)
    assert sets is not None
    assert sets.levels[-1] == 0.99
    for coverage, message in (
        (0.995, "is more than .* which is at most 0.99; more validation"),
        (1.5, "between 0 and 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            sets.threshold(coverage)
    assert fit_sets(*sample(1, 0), PLAIN) is not None

"""Temperatures against scikit-learn's, and where they must keep their hands off."""

import math
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from vitrail.errors import ConfigError
from vitrail.tasks import one_metrics as metrics
from vitrail.tasks.coverage import FEWEST, LEVELS
from vitrail.tasks.one import LabelSets, OneTrust, calibrate, probabilities, restore_logits
from vitrail.tasks.one_calibration import Scaling, fit_scaling, fit_sets
from vitrail.tasks.one_metrics import measure_sets


def sample(temperature: float, count: int = 2000, classes: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels drawn from what they mean at a temperature."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(scale=3, size=(count, classes)).astype(np.float32)
    chances = np.exp(calibrate(logits, temperature, 0.0))
    return logits, np.array([generator.choice(classes, p=row) for row in chances])


class Logits(ClassifierMixin, BaseEstimator):
    """A classifier whose answers are its inputs."""

    def fit(self, logits: Any, targets: Any) -> "Logits":
        self.classes_ = np.unique(targets)
        return self

    def decision_function(self, logits: Any) -> Any:
        return logits

    def predict(self, logits: Any) -> Any:
        return self.classes_[logits.argmax(1)]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_a_temperature_is_scikit_learns(temperature: float) -> None:
    logits, targets = sample(temperature)
    found = fit_scaling(logits, targets)
    assert found is not None
    assert found.temperature == pytest.approx(temperature, rel=0.1)
    assert found.smoothing == 0
    oracle: Any = CalibratedClassifierCV(FrozenEstimator(Logits().fit(logits, targets)), method="temperature")
    oracle.fit(logits.astype(np.float64), targets)
    np.testing.assert_allclose(np.exp(calibrate(logits, *found)), oracle.predict_proba(logits), atol=0.015)


def test_what_smoothed_labels_taught_is_taken_away() -> None:
    """A model that says (1 - 0.2) p + 0.2 / 7 where it should say p, which no temperature undoes."""
    logits, targets = sample(1.0, count=4000)
    taught = np.log(0.8 * probabilities(logits) + 0.2 / 7).astype(np.float32)
    found = fit_scaling(taught, targets)
    assert found is not None
    assert found.smoothing == pytest.approx(0.2, abs=0.02)
    assert found.temperature == pytest.approx(1, abs=0.05)
    right, best = (metrics.measure(each, targets).nll for each in (logits, calibrate(taught, *found)))
    assert best == pytest.approx(right, abs=0.005)
    assert best < min(metrics.measure(taught / number, targets).nll for number in np.linspace(0.2, 2, 50)) - 0.01


def test_probabilities_are_a_softmax_in_double_precision() -> None:
    logits = np.array([[1000.0, 999.0, -1000.0]], dtype=np.float32)
    sure = 1 / (1 + np.exp(-2))
    np.testing.assert_allclose(np.exp(calibrate(logits, 0.5, 0.0))[0], [sure, 1 - sure, 0], atol=1e-12)
    assert np.isfinite(calibrate(logits, 0.5, 0.3)).all()


@pytest.mark.parametrize("seed", range(5))
def test_never_raises_the_nll_and_changes_no_answer(seed: int) -> None:
    logits, targets = sample(1.0, count=FEWEST, seed=seed)
    found = fit_scaling(logits, targets)
    assert found is not None
    for scaling in (found, Scaling(1.7, 0.3)):
        trust = OneTrust(data="", pictures=FEWEST, **scaling._asdict())
        before, after = metrics.answer(logits, targets), metrics.answer(logits, targets, trust)
        np.testing.assert_array_equal(after.predicted, before.predicted)
        np.testing.assert_array_equal(after.rank, before.rank)
        np.testing.assert_array_equal(np.argsort(probabilities(logits, trust)), np.argsort(logits))
        np.testing.assert_allclose(after.confidence, probabilities(logits, trust).max(1))
        assert scaling is not found or after.losses.mean() <= before.losses.mean()


def test_a_model_without_a_mistake_is_not_told_that_it_never_errs() -> None:
    logits = np.eye(4, dtype=np.float32)[np.arange(200) % 4]
    found = fit_scaling(logits, np.arange(200) % 4)
    assert found is not None
    assert found.temperature < 1
    assert 0.99 < np.exp(calibrate(logits[0], *found)).max() < 1 - 1 / 1000


def test_answers_that_mean_nothing_are_not_believed() -> None:
    logits, targets = sample(1.0)
    found = fit_scaling(logits, np.random.default_rng(1).permutation(targets))
    assert found is not None
    assert found.temperature > 5


def test_too_few_pictures() -> None:
    logits, targets = sample(1.0, count=FEWEST - 1)
    assert fit_scaling(logits, targets) is None


@pytest.mark.parametrize("trust", [None, (0.4, 0.0), (1.3, 0.0), (1.3, 0.17), (0.7, 0.9)])
def test_logits_come_back_from_calibrated_probabilities(trust: tuple[float, float] | None) -> None:
    logits, _ = sample(1.0, count=300)
    found = trust and OneTrust(data="", pictures=300, temperature=trust[0], smoothing=trust[1])
    back = restore_logits(probabilities(logits, found).astype(np.float32), found)
    expected = logits - logits.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(back - back.mean(axis=1, keepdims=True), expected, atol=1e-5)


PLAIN = OneTrust(data="", pictures=1, temperature=1.0)


def sample_answers(count: int, seed: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
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
    logits, targets = sample_answers(500, 0)
    sets = fit_sets(logits, targets, PLAIN)
    assert sets is not None
    rows = zip(probabilities(logits), targets, strict=True)
    scores = [score(row, int(label), sets) for row, label in rows]
    for level, threshold in zip(sets.levels, sets.thresholds, strict=True):
        place = math.ceil(round(501 * level, 6)) / 500 - 1e-9
        assert threshold == pytest.approx(np.quantile(scores, place, method="inverted_cdf"), abs=1e-12)
    assert sets.levels == tuple(level for level in LEVELS if level <= 500 / 501)


def test_a_set_is_whatever_scores_below_the_threshold() -> None:
    logits, targets = sample_answers(200, 1)
    sets = fit_sets(logits, targets, PLAIN)
    assert sets is not None
    for row in probabilities(sample_answers(50, 2)[0]):
        inside = [label for label in range(10) if score(row, label, sets) <= sets.threshold(0.8) + 1e-12]
        size = int(sets.sizes(row[None], 0.8)[0])
        assert sorted(inside) == sorted(np.argsort(-row)[:size])


def test_sets_hold_the_truth_as_often_as_promised() -> None:
    """Over many calibrations of 200 pictures; without the + 1 the coverage would be 0.5 points lower."""
    held: list[float] = []
    for seed in range(60):
        logits, targets = sample_answers(200, 2 * seed)
        sets = fit_sets(logits, targets, PLAIN)
        assert sets is not None
        held.append(measure_sets(sets, *sample_answers(500, 2 * seed + 1), PLAIN, 0.9).coverage.value)
    error = np.std(held) / math.sqrt(len(held))
    assert 0.9 - 2 * error <= np.mean(held) <= 0.9 + 1 / 201 + 2 * error


def test_what_is_measured() -> None:
    logits, targets = sample_answers(400, 3)
    sets = fit_sets(logits, targets, PLAIN)
    assert sets is not None
    others, truth = sample_answers(300, 4)
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
    logits, targets = sample_answers(300, 5)
    sets = fit_sets(logits, targets, PLAIN)
    assert sets is not None
    shares = probabilities(np.concatenate([sample_answers(100, 6)[0], np.eye(10, dtype=np.float32) * 1000]))
    before = np.ones(len(shares))
    for coverage in (0.5, 0.9, 0.95, 0.99):
        sizes = sets.sizes(shares, coverage)
        assert (sizes >= before).all()
        before = sizes


def test_a_coverage_between_two_levels_gets_the_higher() -> None:
    logits, targets = sample_answers(300, 5)
    sets = fit_sets(logits, targets, PLAIN)
    assert sets is not None
    assert sets.threshold(0.9011) == sets.threshold(0.905) > sets.threshold(0.9)
    assert sets.threshold(0.1) == sets.threshold(0.5)


def test_more_than_the_pictures_can_promise() -> None:
    sets = fit_sets(*sample_answers(99, 0), PLAIN)
    assert sets is not None
    assert sets.levels[-1] == 0.99
    for coverage, message in (
        (0.995, "is more than .* which is at most 0.99; more validation"),
        (1.5, "between 0 and 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            sets.threshold(coverage)
    assert fit_sets(*sample_answers(1, 0), PLAIN) is not None

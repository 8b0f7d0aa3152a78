"""Temperatures against scikit-learn's, and where they must keep their hands off."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from vitrail.evaluation import metrics
from vitrail.evaluation.calibration import FEWEST, Scaling, fit_scaling
from vitrail.weights.trust import Trust, calibrate, probabilities, restore_logits


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
    right, best = (metrics.losses(each, targets).mean() for each in (logits, calibrate(taught, *found)))
    assert best == pytest.approx(right, abs=0.005)
    assert best < min(metrics.losses(taught / number, targets).mean() for number in np.linspace(0.2, 2, 50)) - 0.01


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
        trust = Trust(data="", pictures=FEWEST, **scaling._asdict())
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
    found = trust and Trust(data="", pictures=300, temperature=trust[0], smoothing=trust[1])
    back = restore_logits(probabilities(logits, found).astype(np.float32), found)
    expected = logits - logits.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(back - back.mean(axis=1, keepdims=True), expected, atol=1e-5)

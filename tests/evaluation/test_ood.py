"""Familiarity: distances against scikit-learn's covariances, areas against its curves."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.covariance import EmpiricalCovariance
from sklearn.metrics import roc_auc_score, roc_curve

from vitrail.errors import ConfigError
from vitrail.evaluation import ood as familiarity
from vitrail.evaluation.ood import area_under_roc, fit_familiarity, score_ood
from vitrail.schema import from_dict, to_dict
from vitrail.tasks.familiarity import Familiarity, Usual, pack


def features(count: int, seed: int = 0, width: int = 12, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = np.random.default_rng(99).normal(scale=4, size=(classes, width))
    mix = np.random.default_rng(98).normal(size=(width, width)) * np.linspace(0.2, 2, width)
    return (centres[labels] + generator.normal(size=(count, width)) @ mix).astype(np.float32), labels


@pytest.fixture
def known() -> Familiarity:
    found = fit_familiarity(*features(600), features(300, 1)[0])
    assert found is not None
    return found


def test_scores_are_mahalanobis_distances(known: Familiarity, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all directions but one kept, nothing is approximated."""
    numbers, labels = features(600)
    centres = np.stack([numbers[labels == label].mean(0) for label in range(3)])
    covariance = EmpiricalCovariance(assume_centered=True).fit(numbers - centres[labels])
    others = features(50, 7)[0] * 1.5
    expected = -np.min([covariance.mahalanobis(others - centre) for centre in centres], axis=0)
    np.testing.assert_allclose(known.scores(others), expected, rtol=0.02)
    assert known.directions.shape == (12, 11)
    monkeypatch.setattr(familiarity, "MOST_CENTRES", 2)
    one = fit_familiarity(numbers, labels, numbers)
    assert one is not None
    assert one.centres.shape == (1, 12)
    expected = -EmpiricalCovariance().fit(numbers).mahalanobis(others)
    np.testing.assert_allclose(one.scores(others), expected, rtol=0.02)


def test_few_directions_keep_the_order(monkeypatch: pytest.MonkeyPatch, known: Familiarity) -> None:
    monkeypatch.setattr(familiarity, "DIRECTIONS", 4)
    rough = fit_familiarity(*features(600), features(300, 1)[0])
    assert rough is not None
    assert rough.directions.shape == (12, 4)
    same, others = features(300, 2)[0], np.random.default_rng(3).normal(scale=12, size=(300, 12))
    assert area_under_roc(rough.scores(same), rough.scores(others)) > 0.95
    assert area_under_roc(known.scores(same), known.scores(others)) > 0.95


def test_five_percent_of_validation_are_unfamiliar(known: Familiarity) -> None:
    shares = known.shares(known.scores(features(300, 1)[0]))
    assert (~known.accepts(shares)).mean() == pytest.approx(0.05, abs=0.004)
    assert shares.min() == 0
    assert shares.max() == 1
    new = known.shares(known.scores(features(2000, 5)[0]))
    assert (~known.accepts(new)).mean() == pytest.approx(0.05, abs=0.03)
    assert not known.accepts(known.shares(known.scores(np.full((1, 12), 100.0))))[0]


def test_the_share_that_counts_as_unfamiliar_is_stored_if_it_is_another(known: Familiarity) -> None:
    shares = known.shares(known.scores(features(300, 1)[0]))
    strict = replace(known, unfamiliar_rate=0.2)
    assert (~strict.accepts(shares)).mean() == pytest.approx(0.2, abs=0.004)
    assert replace(known, unfamiliar_rate=0.0).accepts(shares).all()
    assert from_dict(Familiarity, to_dict(strict)) == strict
    assert "unfamiliar_rate" not in to_dict(known)  # older versions read it
    others = features(300, 9)[0] + np.random.default_rng(3).normal(scale=0.5, size=(300, 12))
    usual, strict_one = (score_ood("x", -np.arange(300.0), each.scores(others), each) for each in (known, strict))
    assert strict_one.marked.value == (strict.shares(strict.scores(others)) < 0.2).mean() > usual.marked.value
    assert strict_one.false_positive_rate == usual.false_positive_rate
    for rate in (1.0, -0.1):
        with pytest.raises(ConfigError, match="at least 0 and below 1"):
            replace(known, unfamiliar_rate=rate)


def test_a_model_that_is_unsure_of_outliers_is_judged_by_its_logits_too(known: Familiarity) -> None:
    """By the formula, whatever constant is added to logits; and not where nothing differs."""
    numbers, labels = features(600)
    logits = np.eye(3)[labels] * np.random.default_rng(4).uniform(5, 9, (600, 1))
    unsure = fit_familiarity(numbers, labels, numbers, (logits, logits))
    assert unsure is not None
    distances, spreads = np.sqrt(-known.scores(numbers)), logits.max(axis=1) * 2**0.5 / 3  # of (v, 0, 0)
    expected = 1.5 * (spreads - spreads.mean()) / spreads.std() - (distances - distances.mean()) / distances.std()
    np.testing.assert_allclose(unsure.scores(numbers, logits), expected, atol=1e-6)
    np.testing.assert_allclose(unsure.scores(numbers, logits - 50), expected, atol=1e-6)
    assert unsure.accepts(unsure.shares(unsure.scores(numbers, logits))).mean() == pytest.approx(0.95, abs=0.01)
    assert unsure.accepts(unsure.shares(unsure.scores(numbers, logits * 0))).mean() < 0.2
    assert unsure == from_dict(Familiarity, to_dict(unsure))
    assert "usual" not in to_dict(known)  # older versions read it
    same = fit_familiarity(numbers, labels, numbers, (logits * 0, logits * 0))
    assert same is not None
    assert same.usual is None
    with pytest.raises(ConfigError, match="deviations and the weight above 0"):
        Usual(distance=1.0, distance_std=0.0, spread=1.0, spread_std=1.0, weight=0.5)


def test_a_class_of_few_pictures_gets_no_centre_of_its_own() -> None:
    numbers, labels = features(200)
    labels = np.where(np.arange(200) < 5, 3, labels)
    found = fit_familiarity(numbers, labels, numbers)
    assert found is not None
    assert found.centres.shape[0] == 1


def test_degenerate_features() -> None:
    """All equal, or fewer pictures than directions: a score for each, and no division by zero."""
    same = np.ones((60, 5), dtype=np.float32)
    found = fit_familiarity(same, np.zeros(60, dtype=np.int64), same)
    assert found is not None
    assert np.isfinite(found.scores(same * 2)).all()
    assert found.scores(same * 2)[0] < found.scores(same)[0]
    few = features(60, width=40)
    found = fit_familiarity(*few, few[0])
    assert found is not None
    assert found.directions.shape == (40, 6)
    assert fit_familiarity(same[:49], np.zeros(49, dtype=np.int64), same) is None


@pytest.mark.parametrize("ties", [False, True])
def test_areas_are_scikit_learns(ties: bool, known: Familiarity) -> None:
    generator = np.random.default_rng(0)
    own, others = generator.normal(1, 1, 200), generator.normal(0, 1, 300)
    if ties:
        own, others = np.round(own), np.round(others)
    truth, scores = np.r_[np.ones(200), np.zeros(300)], np.r_[own, others]
    found = score_ood("others", own, others, replace(known, quantiles=tuple(np.linspace(-3, 3, 101))))
    assert found.auroc == pytest.approx(roc_auc_score(truth, scores))
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert found.false_positive_rate == pytest.approx(false[np.searchsorted(true, 0.95)], abs=0.01)
    assert found.marked.correct == int((others < -2.7).sum())


def test_packing_keeps_three_digits() -> None:
    values = np.random.default_rng(0).normal(scale=1e6, size=(7, 3))
    packed = pack(values)
    np.testing.assert_allclose(packed.values, values, rtol=1e-3, atol=1e3)
    with pytest.raises(ConfigError, match="must have as many numbers"):
        replace(packed, shape=(7, 4))
    with pytest.raises(ConfigError, match="must fit each other"):
        Familiarity(centres=packed, directions=packed, variances=(1.0,), rest=1.0, quantiles=(0.0, 1.0))

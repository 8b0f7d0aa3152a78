"""Several labels per picture: losses against timm's and the papers' formulas, the calibration, and its promise."""

import json
import math
import subprocess
import sys
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.metrics import f1_score

from vitrail.errors import ConfigError, DataError
from vitrail.schema import from_dict, to_dict
from vitrail.tasks.several import MOST_WEIGHT, MissRates, Several, SeveralTrust, positive_weights, restore_logits
from vitrail.tasks.several_calibration import best_threshold, fit_scaling, fit_sets, fit_thresholds
from vitrail.tasks.task import Goal, Task, Trust, make_task

NAMES = ("cat", "dog", "bird", "fish", "worm")
TASK = Several()


def make_pictures(count: int, seed: int = 0, labels: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Logits that are twice too large and too high, and the labels, of which the first is rare."""
    generator = np.random.default_rng(seed)
    odds = 2 * generator.normal(size=(count, labels)) + np.linspace(-3, 0, labels)
    targets = (generator.random(odds.shape) < expit(odds)).astype(np.uint8)
    return (2 * odds + 1).astype(np.float32), targets


@pytest.fixture(scope="module")
def trust() -> SeveralTrust:
    return TASK.calibrate(*make_pictures(400), NAMES, "toy, val")


def test_import_is_light() -> None:
    code = "import sys, vitrail.tasks.several; print({'torch', 'matplotlib', 'scipy', 'sklearn'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


# Losses ---------------------------------------------------------------------------------------------------------------


def test_bce_is_the_mean_over_pictures_and_labels() -> None:
    outputs, targets = (torch.as_tensor(each) for each in make_pictures(7))
    shares = torch.sigmoid(outputs.double())
    expected = -(targets * shares.log() + (1 - targets) * (1 - shares).log()).mean(dim=1).mean()
    assert float(TASK.loss(outputs, targets, Goal())) == pytest.approx(float(expected), rel=1e-5)
    smooth = 0.9 * targets + 0.05
    expected = torch.nn.functional.binary_cross_entropy_with_logits(outputs, smooth)
    torch.testing.assert_close(TASK.loss(outputs, targets, Goal(label_smoothing=0.1)), expected)
    torch.testing.assert_close(TASK.loss(outputs, smooth, Goal(loss="bce")), expected)  # mixed pictures


def test_asymmetric_loss_is_that_of_the_paper_and_of_timm() -> None:
    from benchmarks.peers import timm

    outputs, targets = (torch.as_tensor(each) for each in make_pictures(7))
    outputs.requires_grad_()
    found = TASK.loss(outputs, targets, Goal(loss="asymmetric"))
    p = torch.sigmoid(outputs.detach().double())
    lowered = (p - 0.05).clamp(min=0)  # equations 4 and 5, with γ+ = 0 and γ− = 4
    expected = -(targets * p.log() + (1 - targets) * lowered**4 * (1 - lowered).log()).mean()
    assert found.item() == pytest.approx(float(expected), rel=1e-5)
    peer = import_module(f"{timm.__name__}.loss").AsymmetricLossMultiLabel(gamma_neg=4, gamma_pos=0, clip=0.05)
    theirs = peer(outputs, targets) / outputs.numel()
    torch.testing.assert_close(found, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, outputs)[0] for loss in (found, theirs)))


@pytest.mark.parametrize("loss", Several.losses)
def test_losses_stay_finite(loss: str) -> None:
    outputs = torch.tensor([[300.0, -300.0, 300.0, -300.0, 0.0]], requires_grad=True)
    found = TASK.loss(outputs, torch.tensor([[1, 1, 0, 0, 1]]), Goal(loss=loss))
    assert found.isfinite()
    assert torch.autograd.grad(found, outputs)[0].isfinite().all()
    half = TASK.loss(outputs.bfloat16(), torch.tensor([[1, 1, 0, 0, 1]]), Goal(loss=loss))
    assert half.dtype == torch.float32


def test_rare_labels_weigh_more() -> None:
    outputs, targets = (torch.as_tensor(each) for each in make_pictures(50))
    goal = Goal(balance="weight", counts=(10, 50, 90, 0, 1), pictures=100)
    weights = [9.0, 1.0, 1 / 9, MOST_WEIGHT, MOST_WEIGHT]
    assert positive_weights(goal) == pytest.approx(weights)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        outputs, targets.float(), pos_weight=torch.tensor(weights)
    )
    torch.testing.assert_close(TASK.loss(outputs, targets, goal), expected)


def test_validation_does_not_depend_on_batches() -> None:
    outputs, targets = (torch.as_tensor(each) for each in make_pictures(60))
    whole = TASK.summarize([TASK.score(outputs, targets)])
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    cuts = [order[:1], order[1:40], order[40:]]
    parts = TASK.summarize([TASK.score(outputs[cut], targets[cut]) for cut in cuts])
    assert list(whole) == ["loss", *Several.metrics]
    assert parts == pytest.approx(whole, rel=1e-12)
    assert whole["loss"] == pytest.approx(float(TASK.loss(outputs, targets, Goal())), rel=1e-5)
    assert whole["micro_f1"] == pytest.approx(f1_score(targets, outputs > 0, average="micro"))


# Calibration ----------------------------------------------------------------------------------------------------------


def test_scaling_has_the_highest_likelihood() -> None:
    logits, targets = make_pictures(500)
    slopes, offsets = fit_scaling(logits, targets)
    for label in range(5):
        positives = targets[:, label].sum()
        smooth = np.where(targets[:, label], (positives + 1) / (positives + 2), 1 / (500 - positives + 2))  # Platt's

        def nll(numbers: Any, label: int = label, smooth: np.ndarray = smooth) -> float:
            odds = numbers[0] * logits[:, label] + numbers[1]
            return float((np.logaddexp(0, odds) - smooth * odds).sum())

        best: Any = minimize(nll, (1.0, 0.0), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9})
        assert (slopes[label], offsets[label]) == pytest.approx(best.x, abs=2e-4)


@given(st.integers(0, 2**32 - 1), st.sampled_from([50, 80, 300]), st.sampled_from([0.0, 0.1, 1.0, 30.0]))
def test_scaling_never_lowers_the_likelihood(seed: int, count: int, spread: float) -> None:
    generator = np.random.default_rng(seed)
    logits = (spread * generator.normal(size=(count, 4))).round(2)
    told = expit(logits + generator.normal(size=4) * 3) if generator.random() < 0.5 else (logits > 0)
    targets = (generator.random(logits.shape) < told).astype(np.uint8)
    slopes, offsets = fit_scaling(logits, targets)
    before, after = logits, logits * slopes + offsets
    losses = [(np.logaddexp(0, odds) - targets * odds).sum(axis=0) for odds in (before, after)]
    assert (losses[1] <= losses[0]).all()
    assert (slopes > 0).all()
    assert np.isfinite(offsets).all()
    few = np.minimum(targets.sum(axis=0), count - targets.sum(axis=0)) < 10
    assert (slopes[few] == 1).all()
    assert (offsets[few] == 0).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 5, 60]), st.booleans())
def test_no_threshold_has_a_higher_f1(seed: int, count: int, ties: bool) -> None:
    generator = np.random.default_rng(seed)
    shares = generator.uniform(0.01, 0.99, count).round(1 if ties else 6).clip(0.01, 0.99)  # no sigmoid is 0
    targets = generator.integers(0, 2, count).astype(np.uint8)
    targets[0] = 1
    grid = np.append(np.linspace(0, 1, 101), shares)[:, None]
    predicted = shares > grid
    others = 2 * (predicted * targets).sum(axis=1) / (predicted.sum(axis=1) + targets.sum())
    assert f1_score(targets, shares > best_threshold(shares, targets)) >= others.max() - 1e-12


def test_rare_labels_share_a_threshold() -> None:
    shares = np.random.default_rng(0).random((100, 3))
    targets = (shares > [0.9, 0.95, 0.3]).astype(np.uint8)
    thresholds = fit_thresholds(shares, targets)
    assert thresholds[1] == best_threshold(shares.ravel(), targets.ravel())  # of about five pictures
    assert thresholds[2] == pytest.approx(0.3, abs=0.03)
    assert fit_thresholds(shares, np.zeros_like(targets)) == (0.5, 0.5, 0.5)


def test_sets_miss_no_more_than_promised() -> None:
    """On 200 random splits: the mean of what new pictures miss, which the theorem is about."""
    logits, targets = make_pictures(200 * 160)
    shares, labels = expit(logits).reshape(200, 160, 5), targets.reshape(200, 160, 5)
    for coverage in (0.8, 0.95):
        risks = []
        for own, truth in zip(shares, labels, strict=True):
            sets = fit_sets(own[:60], truth[:60])
            assert sets is not None
            new, having = truth[60:], truth[60:].sum(axis=1)
            missed = (new * (own[60:] < sets.threshold(coverage))).sum(axis=1)
            risks.append((missed[having > 0] / having[having > 0]).mean())
        error = np.std(risks) / math.sqrt(200)
        assert np.mean(risks) <= 1 - coverage + 2 * error
        assert np.mean(risks) >= 1 - coverage - 1 / 40 - 3 * error  # and not many fewer: at most 1 / (n + 1) and ties


def test_set_thresholds_are_the_highest_that_keep_the_promise() -> None:
    logits, targets = make_pictures(70, seed=3)
    shares, having = expit(logits), targets.sum(axis=1)
    sets = fit_sets(shares, targets)
    assert sets is not None
    count = int((having > 0).sum())

    def bound(threshold: float) -> float:
        missed = (targets * (shares < threshold)).sum(axis=1)[having > 0] / having[having > 0]
        return count / (count + 1) * missed.mean() + 1 / (count + 1)  # equation 4 of the paper, with B = 1

    assert sets.levels[-1] <= 1 - 1 / (count + 1) < sets.levels[-1] + 0.005
    for level, threshold in zip(sets.levels, sets.thresholds, strict=True):
        assert bound(threshold) <= 1 - level + 1e-9
        assert bound(np.nextafter(threshold, 2)) > 1 - level


def test_fitted_calibration_keeps_its_promise() -> None:
    """The scaling is fitted on the same pictures as the sets, which would miss 10.2 % if it were not made up for."""
    risks, names = list[float](), [str(label) for label in range(20)]
    for seed in range(60):
        logits, targets = make_pictures(360, seed=seed, labels=20)
        trust = TASK.calibrate(logits[:60], targets[:60], names, "toy, val")
        sets = TASK.measure(logits[60:], targets[60:], names, trust, 0.9).sets
        assert sets is not None
        risks.append(float(sets.missed.mean()))
    assert 0.07 < np.mean(risks) < 0.1


def test_coverage_that_cannot_be_promised(trust: SeveralTrust) -> None:
    trust.check_coverage(0.95)
    with pytest.raises(ConfigError, match="coverage=0.9999 is more than the calibration of this model can promise"):
        trust.check_coverage(0.9999)
    with pytest.raises(ConfigError, match="must be between 0 and 1, such as 0.95; got 1"):
        trust.check_coverage(1.0)
    logits, targets = make_pictures(50)
    unlabelled = TASK.calibrate(logits, np.zeros_like(targets), NAMES, "toy, val")
    with pytest.raises(ConfigError, match="needs more validation pictures"):
        unlabelled.check_coverage(0.5)


def test_too_few_pictures() -> None:
    with pytest.raises(DataError, match="a calibration needs at least 50 pictures; toy, val has 49 pictures"):
        TASK.calibrate(*make_pictures(49), NAMES, "toy, val")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slopes": (1.0,)}, "for each label; got 1, 5 and 5"),
        ({"slopes": (1.0, 1.0, 1.0, 1.0, 0.0)}, "above 0"),
        ({"offsets": (0.0, 0.0, 0.0, 0.0, math.inf)}, "finite"),
        ({"thresholds": (0.5, 0.5, 0.5, 0.5, math.nan)}, "from 0 to 1"),
        ({"sets": {"levels": [0.5, 0.6], "thresholds": [0.2, 0.3]}}, "thresholds descend"),
        ({"sets": {"levels": [0.5], "thresholds": [0.2, 0.1]}}, "a threshold for each level"),
        ({"kind": "one"}, "must be one of several"),
    ],
)
def test_damaged_calibrations(trust: SeveralTrust, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict(SeveralTrust, {**to_dict(trust), **change})


# Answers --------------------------------------------------------------------------------------------------------------


def test_files_change_no_answer(trust: SeveralTrust) -> None:
    again = Trust.__parse__(json.loads(json.dumps(to_dict(trust))), "trust")
    assert again == trust
    assert Task.__parse__(json.loads(json.dumps(to_dict(TASK))), "task") == make_task("several") == TASK
    for outputs in make_pictures(20, seed=1)[0]:
        answers = [TASK.answer(outputs, NAMES, each, top_k=5, coverage=0.9) for each in (trust, again)]
        assert answers[0] == answers[1]


def test_answer(trust: SeveralTrust) -> None:
    outputs = np.array([-9.0, 5.0, 0.0, 6.0, -1.0])
    answer = TASK.answer(outputs, NAMES, None, top_k=5, coverage=0.9)
    assert answer.labels == ("fish", "dog")
    assert answer.indices == (3, 1)
    assert answer.scores == pytest.approx((expit(6), expit(5)))
    assert answer.label_set is None
    assert TASK.answer(outputs, NAMES, None, top_k=1, coverage=None).labels == ("fish",)
    assert TASK.answer(np.full(5, -3.0), NAMES, None, top_k=5, coverage=None).labels == ()
    certain = TASK.answer(np.array([50.0, 60.0, -1, -1, -1]), NAMES, None, top_k=5, coverage=None)
    assert certain.labels == ("dog", "cat")  # though both probabilities are 1
    sets = MissRates(levels=(0.8, 0.9), thresholds=(0.7, 0.2))
    made = SeveralTrust(
        data="toy, val",
        pictures=60,
        slopes=(1.0, 1.0, 1.0, 0.5, 1.0),
        offsets=(0.0, 0.0, 0.0, 0.0, 1.0),
        thresholds=(0.5, 0.999, 0.5, 0.5, 0.4),
        sets=sets,
    )
    answer = TASK.answer(outputs, NAMES, made, top_k=5, coverage=0.85)
    assert answer.labels == ("fish", "worm")
    assert answer.scores == pytest.approx((expit(3), 0.5))
    assert answer.label_set == ("dog", "fish", "bird", "worm")
    assert TASK.answer(outputs, NAMES, made, top_k=1, coverage=0.8).label_set == ("dog", "fish")
    turned = made.reordered((4, 3, 2, 1, 0))
    assert TASK.answer(outputs[::-1], NAMES[::-1], turned, top_k=5, coverage=0.85)[0] == ("fish", "worm")
    with pytest.raises(ConfigError, match="of 5 labels; got 3"):
        TASK.probabilities(outputs[:3], made)
    for each in (None, made, trust):
        np.testing.assert_allclose(restore_logits(TASK.probabilities(outputs, each), each), outputs, atol=1e-9)

"""Our metrics against scikit-learn's, torchmetrics' and SciPy's, on random and degenerate inputs."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics as sk
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import InputError
from vitrail.tasks import one_metrics as metrics


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Logits and targets: few or many classes, some perhaps absent, ties perhaps, one sample perhaps."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    classes = draw(st.sampled_from([2, 3, 7, 12]))
    count = draw(st.sampled_from([1, 2, 5, 60]))
    present = draw(st.integers(1, classes))
    logits = generator.normal(scale=draw(st.sampled_from([0.01, 1.0, 8.0])), size=(count, classes))
    if draw(st.booleans()):
        logits = np.round(logits)  # ties
    return logits.astype(np.float32), generator.integers(0, present, count)


@given(cases())
def test_equal_to_scikit_learn(case: tuple[np.ndarray, np.ndarray]) -> None:
    logits, targets = case
    found = metrics.measure(logits, targets)
    labels = np.arange(logits.shape[1])
    predicted = logits.argmax(axis=1)
    probabilities = torch.tensor(logits).double().softmax(1).numpy()
    assert found.top1.value == pytest.approx(sk.accuracy_score(targets, predicted))
    np.testing.assert_array_equal(found.confusion, sk.confusion_matrix(targets, predicted, labels=labels))
    precision, recall, f1, support = sk.precision_recall_fscore_support(
        targets, predicted, labels=labels, zero_division=np.nan
    )
    np.testing.assert_allclose(found.classes.precision, precision)
    np.testing.assert_allclose(found.classes.recall, recall)
    np.testing.assert_allclose(found.classes.f1, f1)
    np.testing.assert_array_equal(found.classes.support, support)
    assert found.macro_f1 == pytest.approx(
        sk.f1_score(targets, predicted, labels=labels, average="macro", zero_division=np.nan)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # classes in the answers that are not in the truth
        assert found.balanced_accuracy == pytest.approx(sk.balanced_accuracy_score(targets, predicted))
    if probabilities.min() > 1e-15:  # scikit-learn clips smaller ones
        assert found.nll == pytest.approx(sk.log_loss(targets, probabilities, labels=labels), rel=1e-6, abs=1e-9)
    assert found.brier == pytest.approx(
        sk.brier_score_loss(targets, probabilities, labels=labels, scale_by_half=False), abs=1e-9
    )


@given(cases())
def test_equal_to_torchmetrics(case: tuple[np.ndarray, np.ndarray]) -> None:
    from benchmarks.peers import torchmetrics  # it takes five seconds

    tm = torchmetrics.classification
    logits, targets = torch.as_tensor(case[0]).double(), torch.as_tensor(case[1])
    classes = logits.shape[1]
    found = metrics.measure(logits, targets)
    top1 = tm.MulticlassAccuracy(classes, average="micro")(logits, targets)
    assert found.top1.value == pytest.approx(float(top1))
    if found.top5 is None:
        assert classes <= 5
    elif len(np.unique(case[0])) == case[0].size:  # of equal logits torchmetrics takes any
        top5 = tm.MulticlassAccuracy(classes, average="micro", top_k=5)(logits, targets)
        assert found.top5.value == pytest.approx(float(top5))
    matrix = tm.MulticlassConfusionMatrix(classes)(logits, targets)
    np.testing.assert_array_equal(found.confusion, matrix)
    assert found.nll == pytest.approx(float(torch.nn.functional.cross_entropy(logits, targets)), rel=1e-9, abs=1e-12)
    probabilities = logits.softmax(1)
    if probabilities.float().max() < 1:  # torchmetrics gives a confidence of exactly 1 a bin of its own
        error = tm.MulticlassCalibrationError(classes, n_bins=15, norm="l1")(probabilities, targets)
        assert found.calibration.error == pytest.approx(float(error), abs=1e-5)


@given(st.integers(0, 500), st.integers(1, 500))
def test_the_interval_is_wilsons(correct: int, total: int) -> None:
    correct = min(correct, total)
    found = metrics.rate(correct, total)
    expected = scipy.stats.binomtest(correct, total).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.low <= found.value <= found.high


def test_losses_and_ranks_by_hand() -> None:
    logits = np.array([[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]])
    np.testing.assert_allclose(metrics.answer(logits, np.array([3, 6])).losses[0], math.log(7))
    for targets in ([4, 2], [5, 1], [6, 0]):  # of equal logits the first count as higher
        assert metrics.answer(logits, np.array(targets)).rank.tolist() == [targets[0], 6 - targets[1]]


def test_calibration_by_hand() -> None:
    logits = np.log([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.5, 0.5]])
    answers = metrics.answer(logits, np.array([0, 1, 0, 0]))
    found = metrics.bin_confidence(answers.confidence, answers.correct, bins=2)
    np.testing.assert_array_equal(found.counts, [0, 4])  # 0.5 belongs to the upper bin
    assert found.error == pytest.approx(abs((0.9 + 0.9 + 0.6 + 0.5) / 4 - 3 / 4))
    assert np.isnan(found.confidence[0])
    sure = metrics.measure(np.array([[1000.0, 0.0]]), [0]).calibration
    assert sure.counts[-1] == 1  # a confidence of exactly 1 is in the last bin
    assert sure.error == 0


def test_one_class() -> None:
    found = metrics.measure(np.zeros((3, 1)), [0, 0, 0])
    assert (found.top1.value, found.nll, found.brier, found.macro_f1) == (1, 0, 0, 1)


def test_a_class_without_samples_is_undefined_and_not_zero() -> None:
    found = metrics.measure([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]], [0, 1])
    assert np.isnan(found.classes.recall[2])
    assert np.isnan(found.classes.precision[2])
    assert np.isnan(found.classes.f1[2])
    assert found.balanced_accuracy == 1


def test_half_precision_tensors_are_taken() -> None:
    logits = torch.tensor([[1.0, 2.0], [3.0, 1.0]], dtype=torch.bfloat16, requires_grad=True)
    assert metrics.measure(logits, torch.tensor([1, 0])).top1.value == 1


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        ([[0.0, math.nan], [1.0, 2.0]], [0, 1], r"1 of 2 rows are not, the first is row 0 \(NaN\)"),
        ([[0.0, 1.0], [1.0, -math.inf]], [0, 1], r"row 1 \(infinite\)"),
        ([[0.0, 1.0]], [2], "from 0 to 1, one per class; got 2"),
        ([[0.0, 1.0]], [-1], "got -1"),
        ([[0.0, 1.0]], [0.0], "whole numbers"),
        ([[0.0, 1.0]], [0, 1], r"got \(1, 2\) and \(2,\)"),
        ([0.0, 1.0], [0], r"must be \(N, classes\)"),
        (np.zeros((0, 3)), np.zeros(0, dtype=int), "N at least 1"),
    ],
)
def test_nonsense_is_refused_by_name(logits: object, targets: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metrics.measure(logits, targets)


def test_importing_it_is_cheap() -> None:
    code = (
        "import sys, vitrail.tasks.one_metrics\n"
        "heavy = {'torch', 'sklearn', 'scipy', 'matplotlib', 'PIL'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr

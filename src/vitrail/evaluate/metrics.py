"""Metrics of logits (N, classes) and integer targets (N,), as arrays or tensors. NumPy alone: cheap to import.

Of equal logits the first class counts as the higher one, in every metric. What is undefined is NaN and not 0: the
recall of a class without samples, the precision of a class that was never predicted.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.errors import InputError

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
BINS = 15
Z = 1.959963984540054  # of a 95 % interval


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A share of correct answers with its 95 % interval (Wilson's score)."""

    correct: int
    total: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassScores:
    """Per class, in the order of the classes."""

    precision: Floats
    recall: Floats
    f1: Floats
    support: Integers


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Confidence against accuracy in equally wide bins, and the expected calibration error."""

    error: float
    counts: Integers  # (bins,)
    confidence: Floats  # mean of each bin, NaN where it is empty
    accuracy: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Metrics:
    """Everything at once."""

    top1: Rate
    top5: Rate | None  # None with five classes or fewer
    nll: float
    brier: float
    calibration: Calibration
    confusion: Integers  # (classes, classes): rows are the truth
    classes: ClassScores

    @property
    def macro_f1(self) -> float:
        """The mean over the classes that have samples or were predicted."""
        return _mean(self.classes.f1)

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall over the classes that have samples."""
        return _mean(self.classes.recall)


def measure(logits: Any, targets: Any) -> Metrics:
    """All metrics of one evaluation."""
    scores, truth = check(logits, targets)
    log_probabilities = log_softmax(scores)
    matrix = confusion_matrix(scores.argmax(axis=1), truth, scores.shape[1])
    return Metrics(
        top1=accuracy(scores, truth),
        top5=accuracy(scores, truth, k=5) if scores.shape[1] > 5 else None,
        nll=float(-log_probabilities[np.arange(len(truth)), truth].mean()),
        brier=_brier(np.exp(log_probabilities), truth),
        calibration=calibrate(scores, truth),
        confusion=matrix,
        classes=score_classes(matrix),
    )


def check(logits: Any, targets: Any) -> tuple[Floats, Integers]:
    """Both as arrays, or an error that says what is wrong with them."""
    scores, truth = _to_array(logits).astype(np.float64), _to_array(targets)
    if scores.ndim != 2 or truth.shape != scores.shape[:1] or not scores.size:
        raise InputError(
            f"logits must be (N, classes) and targets (N,), with N at least 1; got {scores.shape} and {truth.shape}."
        )
    if truth.dtype.kind not in "iu":
        raise InputError(f"targets must be whole numbers, the places of the classes; got {truth.dtype}.")
    broken = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    if len(broken):
        kind = "NaN" if np.isnan(scores[broken[0]]).any() else "infinite"
        raise InputError(
            f"logits must be finite; {len(broken)} of {len(scores)} rows are not, the first is row {broken[0]} "
            f"({kind})."
        )
    if truth.min() < 0 or truth.max() >= scores.shape[1]:
        wrong = truth.min() if truth.min() < 0 else truth.max()
        raise InputError(f"targets must be from 0 to {scores.shape[1] - 1}, one per class; got {wrong}.")
    return scores, truth.astype(np.int64)


def accuracy(logits: Any, targets: Any, k: int = 1) -> Rate:
    """How often the target is among the k highest logits."""
    scores, truth = check(logits, targets)
    own = scores[np.arange(len(truth)), truth][:, None]
    earlier = np.arange(scores.shape[1]) < truth[:, None]
    rank = (scores > own).sum(axis=1) + ((scores == own) & earlier).sum(axis=1)
    return rate(int((rank < k).sum()), len(truth))


def rate(correct: int, total: int) -> Rate:
    """A share with Wilson's 95 % interval, which is sound for few samples and for shares near 0 and 1."""
    share, spread = correct / total, Z * Z / total
    centre = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    low = 0.0 if correct == 0 else max(0.0, centre - half)
    high = 1.0 if correct == total else min(1.0, centre + half)
    return Rate(correct=correct, total=total, value=share, low=low, high=high)


def log_softmax(logits: Floats) -> Floats:
    """The logarithms of the probabilities, (N, classes)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def losses(logits: Any, targets: Any) -> Floats:
    """The cross-entropy of each sample, (N,)."""
    scores, truth = check(logits, targets)
    return -log_softmax(scores)[np.arange(len(truth)), truth]


def confusion_matrix(predicted: Integers, targets: Integers, num_classes: int) -> Integers:
    """How often each class (row) was taken for each (column)."""
    cells = np.bincount(targets * num_classes + predicted, minlength=num_classes * num_classes)
    return cells.reshape(num_classes, num_classes).astype(np.int64)


def score_classes(confusion: Integers) -> ClassScores:
    """Precision, recall, F1 and support of each class."""
    hits = np.diag(confusion).astype(np.float64)
    support, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    return ClassScores(
        precision=_divide(hits, predicted),
        recall=_divide(hits, support),
        f1=_divide(2 * hits, support + predicted),
        support=support,
    )


def calibrate(logits: Any, targets: Any, bins: int = BINS) -> Calibration:
    """Bin the answers by their confidence; the error is the mean gap to the accuracy, weighted by the bins' counts."""
    scores, truth = check(logits, targets)
    confidence = np.exp(log_softmax(scores).max(axis=1))
    correct = scores.argmax(axis=1) == truth
    edges = np.linspace(0, 1, bins + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    means = _divide(np.bincount(place, confidence, bins), counts)
    hits = _divide(np.bincount(place, correct, bins), counts)
    gaps = np.abs(means - hits)[counts > 0]
    error = float((gaps * counts[counts > 0]).sum() / len(truth))
    return Calibration(error=error, counts=counts.astype(np.int64), confidence=means, accuracy=hits)


def _brier(probabilities: Floats, truth: Integers) -> float:
    """The mean squared distance to the one-hot truth, summed over the classes (Brier's own form: 0 to 2)."""
    distance = probabilities.copy()
    distance[np.arange(len(truth)), truth] -= 1
    return float((distance**2).sum(axis=1).mean())


def _divide(above: Any, below: Any) -> Floats:
    return np.divide(above, below, out=np.full(len(above), np.nan), where=np.asarray(below) > 0)


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan


def _to_array(values: Any) -> np.ndarray[Any, Any]:
    if hasattr(values, "detach"):  # a tensor, without importing torch; NumPy has no bfloat16
        values = values.detach().cpu()
        return (values.double() if values.is_floating_point() else values).numpy()
    return np.asarray(values)

"""Metrics of logits (N, classes) and integer targets (N,), as arrays or tensors. It needs NumPy only: cheap to import.

Among equal logits the first class counts as the highest, in every metric. Undefined values are NaN, not 0: the
recall of a class without samples, the precision of a class that was never predicted. Rows are taken in blocks, so that
the logits of thousands of classes are never held a second time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.errors import InputError
from vitrail.tasks.one import LabelSets, OneTrust, log_probabilities, probabilities
from vitrail.tasks.rates import Rate, rate

Integers = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Array = np.ndarray[Any, Any]
BINS = 15
BLOCK = 1 << 20  # logits processed at once


@dataclass(frozen=True, kw_only=True, eq=False)
class Confusion:
    """How often each class was taken for each other: one entry per pair that occurred, by truth, then prediction.

    10,000 classes have 10⁸ pairs, nearly all of them 0. `numpy.asarray(confusion)` is the matrix, whose rows are the
    truth.
    """

    num_classes: int
    targets: Integers  # (pairs,) the true class
    predicted: Integers  # (pairs,) what it was taken for
    counts: Integers  # (pairs,) how often, at least once

    @property
    def support(self) -> Integers:
        """(classes,) how many samples each class has."""
        return self._total(self.targets, self.counts)

    @property
    def predictions(self) -> Integers:
        """(classes,) how often each class was predicted."""
        return self._total(self.predicted, self.counts)

    @property
    def hits(self) -> Integers:
        """(classes,) how often each class was predicted correctly: the diagonal."""
        right = self.targets == self.predicted
        return self._total(self.targets[right], self.counts[right])

    def mistakes(self, most: int | None = None) -> list[tuple[int, int, int]]:
        """(true class, what it was taken for, how often), the most frequent first; ties by class."""
        wrong = np.flatnonzero(self.targets != self.predicted)
        order = wrong[np.argsort(-self.counts[wrong], kind="stable")[:most]]
        columns = (column[order].tolist() for column in (self.targets, self.predicted, self.counts))
        return list(zip(*columns, strict=True))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        matrix = np.zeros((self.num_classes, self.num_classes), dtype=dtype or np.int64)
        matrix[self.targets, self.predicted] = self.counts
        return matrix

    def _total(self, classes: Integers, counts: Integers) -> Integers:
        return np.bincount(classes, counts, self.num_classes).astype(np.int64)


def count_pairs(predicted: Integers, targets: Integers, num_classes: int) -> Confusion:
    """How often each class was taken for each other."""
    cells, counts = np.unique(targets.astype(np.int64) * num_classes + predicted, return_counts=True)
    truth, taken_for = np.divmod(cells, num_classes)
    return Confusion(num_classes=num_classes, targets=truth, predicted=taken_for, counts=counts.astype(np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassScores:
    """Per class, in the order of the classes."""

    precision: Floats
    recall: Floats
    f1: Floats
    support: Integers


@dataclass(frozen=True, kw_only=True, eq=False)
class Reliability:
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
    calibration: Reliability
    confusion: Confusion
    classes: ClassScores

    @property
    def macro_f1(self) -> float:
        """The mean over the classes that have samples or were predicted."""
        return _mean(self.classes.f1)

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall over the classes that have samples."""
        return _mean(self.classes.recall)


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """What follows from each row of logits, (N,) each."""

    predicted: Integers
    confidence: Floats  # the probability of the predicted class
    rank: Integers  # how many classes are ahead of the target
    losses: Floats  # the cross-entropy
    brier: Floats  # the squared distance to the one-hot truth

    @property
    def correct(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return self.rank < 1


def measure(logits: Any, targets: Any) -> Metrics:
    """All metrics of one evaluation."""
    scores, truth = check(logits, targets)
    return sum_up(answer(scores, truth), truth, scores.shape[1])


def sum_up(answers: Answers, targets: Integers, num_classes: int) -> Metrics:
    """All metrics, from the answers of all rows."""
    count = len(targets)
    confusion = count_pairs(answers.predicted, targets, num_classes)
    return Metrics(
        top1=rate(int(answers.correct.sum()), count),
        top5=rate(int((answers.rank < 5).sum()), count) if num_classes > 5 else None,
        nll=float(answers.losses.mean()),
        brier=float(answers.brier.mean()),
        calibration=bin_confidence(answers.confidence, answers.correct),
        confusion=confusion,
        classes=score_classes(confusion),
    )


def check(logits: Any, targets: Any) -> tuple[Array, Integers]:
    """Both as arrays, or an error that explains what is wrong with them."""
    scores, truth = _to_array(logits), _to_array(targets)
    if scores.ndim != 2 or truth.shape != scores.shape[:1] or not scores.size:
        raise InputError(
            f"logits must be (N, classes) and targets (N,), with N at least 1; got {scores.shape} and {truth.shape}."
        )
    if truth.dtype.kind not in "iu":
        raise InputError(f"targets must be whole numbers, the indices of the classes; got {truth.dtype}.")
    broken = np.flatnonzero(np.concatenate([~np.isfinite(block).all(axis=1) for _, block in blocks(scores)]))
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


def blocks(logits: Array) -> Iterator[tuple[slice, Floats]]:
    """Slices of the rows, in order, with their logits in double precision."""
    size = max(1, BLOCK // max(logits.shape[1], 1))
    for start in range(0, len(logits), size):
        rows = slice(start, min(start + size, len(logits)))
        yield rows, logits[rows].astype(np.float64)


def answer(logits: Array, targets: Integers, trust: OneTrust | None = None) -> Answers:
    """The answers of all rows of logits and targets that have been checked, as a calibration found them to mean."""
    count = len(logits)
    predicted, rank = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    confidence, loss, brier = np.empty(count), np.empty(count), np.empty(count)
    for rows, scores in blocks(logits):
        truth = targets[rows]
        each = np.arange(len(truth))
        predicted[rows] = scores.argmax(axis=1)
        rank[rows] = _rank(scores, scores[each, truth], truth)
        logs = log_probabilities(scores, trust)
        loss[rows] = -logs[each, truth]
        confidence[rows] = np.exp(logs.max(axis=1))
        probabilities = np.exp(logs)
        probabilities[each, truth] -= 1
        brier[rows] = np.square(probabilities, out=probabilities).sum(axis=1)
    return Answers(predicted=predicted, confidence=confidence, rank=rank, losses=loss, brier=brier)


def _rank(scores: Floats, own: Floats, truth: Integers) -> Integers:
    """How many classes are ahead of the target: those with a higher logit, and earlier ones with an equal logit."""
    rank = (scores > own[:, None]).sum(axis=1)
    equal = scores == own[:, None]
    tied = np.flatnonzero(equal.sum(axis=1) > 1)
    rank[tied] += (equal[tied] & (np.arange(scores.shape[1]) < truth[tied, None])).sum(axis=1)
    return rank


def score_classes(confusion: Confusion) -> ClassScores:
    """Precision, recall, F1 and support of each class."""
    hits, support, predictions = confusion.hits.astype(np.float64), confusion.support, confusion.predictions
    return ClassScores(
        precision=_divide(hits, predictions),
        recall=_divide(hits, support),
        f1=_divide(2 * hits, support + predictions),
        support=support,
    )


def bin_confidence(confidence: Floats, correct: Array, bins: int = BINS) -> Reliability:
    """Bins of the confidences (N,) of answers that are `correct` (N,) or not.

    The error is the mean gap to the accuracy, weighted by the bins' counts.
    """
    edges = np.linspace(0, 1, bins + 1)
    bin_numbers = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, bins - 1)
    counts = np.bincount(bin_numbers, minlength=bins)
    means = _divide(np.bincount(bin_numbers, confidence, bins), counts)
    hits = _divide(np.bincount(bin_numbers, correct, bins), counts)
    gaps = np.abs(means - hits)[counts > 0]
    error = float((gaps * counts[counts > 0]).sum() / len(confidence))
    return Reliability(error=error, counts=counts.astype(np.int64), confidence=means, accuracy=hits)


def _divide(above: Any, below: Any) -> Floats:
    return np.divide(above, below, out=np.full(len(above), np.nan), where=np.asarray(below) > 0)


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan


def _to_array(values: Any) -> np.ndarray[Any, Any]:
    if hasattr(values, "detach"):  # a tensor, without importing torch; NumPy has no bfloat16
        values = values.detach().cpu()
        return (values.float() if values.is_floating_point() and values.element_size() < 4 else values).numpy()
    return np.asarray(values)


@dataclass(frozen=True, kw_only=True, eq=False)
class SetScores:
    """Label sets of one coverage on some pictures."""

    requested: float
    coverage: Rate  # how often the set holds the truth
    sizes: Integers  # (N,)
    classes: tuple[Rate | None, ...]  # the coverage of each class; None without pictures
    class_sizes: Floats  # the mean size for each class, NaN without pictures

    @property
    def mean_size(self) -> float:
        return float(self.sizes.mean())


def measure_sets(sets: LabelSets, logits: Array, targets: Integers, trust: OneTrust, coverage: float) -> SetScores:
    """How often the sets of one coverage hold the truth, and how large they are, overall and for each class."""
    sizes = np.concatenate([sets.sizes(probabilities(rows, trust), coverage) for _, rows in blocks(logits)])
    holds = answer(logits, targets).rank < sizes
    counts, held, totals = (np.bincount(targets, each, logits.shape[1]) for each in (None, holds, sizes))
    return SetScores(
        requested=coverage,
        coverage=rate(int(holds.sum()), len(targets)),
        sizes=sizes,
        classes=tuple(rate(int(part), int(count)) if count else None for part, count in zip(held, counts, strict=True)),
        class_sizes=_divide(totals, counts),
    )

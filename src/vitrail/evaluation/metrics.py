"""Metrics of logits (N, classes) and integer targets (N,), as arrays or tensors. It needs NumPy only: cheap to import.

Among equal logits the first class counts as the highest, in every metric. Undefined values are NaN, not 0: the
recall of a class without samples, the precision of a class that was never predicted. Rows are taken in blocks, so that
the logits of thousands of classes are never held a second time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.errors import InputError
from vitrail.weights.trust import LabelSets, Trust, log_probabilities, probabilities

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Confusion:
    """How often each class was taken for each other: one entry per pair that occurred, by truth, then prediction.

    `numpy.asarray(confusion)` is the matrix, whose rows are the truth.
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
        return [
            (int(self.targets[index]), int(self.predicted[index]), int(self.counts[index])) for index in order.tolist()
        ]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        matrix = np.zeros((self.num_classes, self.num_classes), dtype=dtype or np.int64)
        matrix[self.targets, self.predicted] = self.counts
        return matrix

    def _total(self, classes: Integers, counts: Integers) -> Integers:
        total = np.zeros(self.num_classes, dtype=np.int64)
        np.add.at(total, classes, counts)
        return total


def count_pairs(predicted: Integers, targets: Integers, num_classes: int) -> Confusion:
    """How often each class was taken for each other."""
    cells, counts = np.unique(targets.astype(np.int64) * num_classes + predicted, return_counts=True)
    return Confusion(
        num_classes=num_classes,
        targets=cells // num_classes,
        predicted=cells % num_classes,
        counts=counts.astype(np.int64),
    )


Floats = np.ndarray[Any, np.dtype[np.float64]]
Array = np.ndarray[Any, Any]
BINS = 15
BLOCK = 1 << 20  # logits processed at once
Z = 1.959963984540054  # standard deviations of a 95 % interval


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


def measure(logits: Any, targets: Any) -> Metrics:
    """All metrics of one evaluation."""
    scores, truth = check(logits, targets)
    return sum_up(answer(scores, truth), truth, scores.shape[1])


def sum_up(answers: Answers, targets: Integers, num_classes: int) -> Metrics:
    """All metrics, from the answers of all rows."""
    count = len(targets)
    confusion = count_pairs(answers.predicted, targets, num_classes)
    return Metrics(
        top1=rate(int((answers.rank < 1).sum()), count),
        top5=rate(int((answers.rank < 5).sum()), count) if num_classes > 5 else None,
        nll=float(answers.losses.mean()),
        brier=float(answers.brier.mean()),
        calibration=bin_confidence(answers.confidence, answers.predicted == targets),
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


def answer(logits: Array, targets: Integers, trust: Trust | None = None) -> Answers:
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


def accuracy(logits: Any, targets: Any, k: int = 1) -> Rate:
    """How often the target is among the k highest logits."""
    scores, truth = check(logits, targets)
    return rate(int((answer(scores, truth).rank < k).sum()), len(truth))


def rate(correct: int, total: int) -> Rate:
    """A share with Wilson's 95 % interval, which is reliable for few samples and for shares near 0 and 1."""
    share, spread = correct / total, Z * Z / total
    centre = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / total + spread / (4 * total)) / (1 + spread)
    low = 0.0 if correct == 0 else max(0.0, centre - half)
    high = 1.0 if correct == total else min(1.0, centre + half)
    return Rate(correct=correct, total=total, value=share, low=low, high=high)


def losses(logits: Any, targets: Any) -> Floats:
    """The cross-entropy of each sample, (N,)."""
    return answer(*check(logits, targets)).losses


def score_classes(confusion: Confusion) -> ClassScores:
    """Precision, recall, F1 and support of each class."""
    hits, support, predictions = confusion.hits.astype(np.float64), confusion.support, confusion.predictions
    return ClassScores(
        precision=_divide(hits, predictions),
        recall=_divide(hits, support),
        f1=_divide(2 * hits, support + predictions),
        support=support,
    )


def calibrate(logits: Any, targets: Any, bins: int = BINS) -> Calibration:
    """Bin the answers by their confidence; the error is the mean gap to the accuracy, weighted by the bins' counts."""
    scores, truth = check(logits, targets)
    answers = answer(scores, truth)
    return bin_confidence(answers.confidence, answers.predicted == truth, bins)


def bin_confidence(confidence: Floats, correct: Array, bins: int = BINS) -> Calibration:
    """The same from the answers' confidences (N,) and whether they are correct (N,)."""
    edges = np.linspace(0, 1, bins + 1)
    bin_numbers = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, bins - 1)
    counts = np.bincount(bin_numbers, minlength=bins)
    means = _divide(np.bincount(bin_numbers, confidence, bins), counts)
    hits = _divide(np.bincount(bin_numbers, correct, bins), counts)
    gaps = np.abs(means - hits)[counts > 0]
    error = float((gaps * counts[counts > 0]).sum() / len(confidence))
    return Calibration(error=error, counts=counts.astype(np.int64), confidence=means, accuracy=hits)


def _divide(above: Any, below: Any) -> Floats:
    return np.divide(above, below, out=np.full(len(above), np.nan), where=np.asarray(below) > 0)


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan


def _to_array(values: Any) -> np.ndarray[Any, Any]:
    if hasattr(values, "detach"):  # a tensor, without importing torch; NumPy has no bfloat16
        values = values.detach().cpu()
        return (values.float() if values.is_floating_point() and values.element_size() < 4 else values).numpy()
    return np.asarray(values)


# Coverages that a table holds: in between, the next higher one counts.
LEVELS = (*(number / 200 for number in range(100, 198)), *(number / 1000 for number in range(990, 1000)))
FREE_RANKS, PENALTY = 1, 0.01


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


def fit_sets(logits: Array, targets: Integers, trust: Trust) -> LabelSets | None:
    """The thresholds of every level that so many pictures can promise; None if they cannot promise any.

    Of n scores, the one at place ⌈(n + 1) · level⌉ in ascending order is the threshold, so that the promise holds for
    any number of pictures that are like these.
    """
    plain = LabelSets(levels=(0.5,), thresholds=(0.0,), free_ranks=FREE_RANKS, penalty=PENALTY)
    scores = np.sort(_scores_of_truth(plain, logits, targets, trust))
    places = {level: math.ceil(round((len(scores) + 1) * level, 6)) for level in LEVELS}
    levels = tuple(level for level, place in places.items() if place <= len(scores))
    if not levels:
        return None
    thresholds = tuple(float(scores[places[level] - 1]) for level in levels)
    return LabelSets(levels=levels, thresholds=thresholds, free_ranks=FREE_RANKS, penalty=PENALTY)


def measure_sets(sets: LabelSets, logits: Array, targets: Integers, trust: Trust, coverage: float) -> SetScores:
    """How often the sets of one coverage hold the truth, and how large they are, overall and for each class."""
    sizes = np.concatenate([sets.sizes(probabilities(rows, trust), coverage) for _, rows in blocks(logits)])
    holds = answer(logits, targets).rank < sizes
    counts = np.bincount(targets, minlength=logits.shape[1])
    held = np.bincount(targets, holds, minlength=logits.shape[1])
    totals = np.bincount(targets, sizes, minlength=logits.shape[1])
    return SetScores(
        requested=coverage,
        coverage=rate(int(holds.sum()), len(targets)),
        sizes=sizes,
        classes=tuple(rate(int(part), int(count)) if count else None for part, count in zip(held, counts, strict=True)),
        class_sizes=np.divide(totals, counts, out=np.full(len(counts), np.nan), where=counts > 0),
    )


def _scores_of_truth(sets: LabelSets, logits: Array, targets: Integers, trust: Trust) -> Floats:
    ranks = answer(logits, targets).rank
    parts = [
        sets.scores(probabilities(scores, trust))[np.arange(len(scores)), ranks[rows]]
        for rows, scores in blocks(logits)
    ]
    return np.concatenate(parts)

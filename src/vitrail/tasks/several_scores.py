"""The numbers of a model of several labels on some pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from vitrail.tasks.one_metrics import bin_confidence
from vitrail.tasks.rates import Rate, Z, rate
from vitrail.tasks.several import SeveralTrust, scale, sigmoid, thresholds_of
from vitrail.tasks.several_metrics import (
    Array,
    Floats,
    Hits,
    Integers,
    Ranking,
    Spread,
    average_precision,
    bootstrap_precision,
    check,
    count_hits,
    log_losses,
    mean,
    rank,
)

CURVE = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)  # coverages of the curve of label sets


class SetScores(NamedTuple):
    """The label sets of one coverage on some pictures."""

    requested: float
    truth: Array  # (N, L) whether a picture has the label
    held: Array  # (N, L) whether its set has it

    @property
    def sizes(self) -> Integers:
        """(N,) how many labels each set holds."""
        return self.held.sum(axis=1)

    @property
    def missed(self) -> Floats:
        """The share of its labels that its set misses, for each picture that has labels."""
        labels = self.truth.sum(axis=1)
        return (self.truth & ~self.held).sum(axis=1)[labels > 0] / labels[labels > 0]

    def facts(self) -> dict[str, Any]:
        """As JSON; the interval is a normal one."""
        found = {"requested": self.requested, "missed": None, "missed_low": None, "missed_high": None}
        if len(missed := self.missed):
            middle, half = float(missed.mean()), Z * float(missed.std()) / math.sqrt(len(missed))
            found |= {"missed": middle, "missed_low": max(0.0, middle - half), "missed_high": min(1.0, middle + half)}
        return {**found, "mean_size": float(self.sizes.mean())}


@dataclass(eq=False)
class SeveralScores:
    """Outputs (N, L) for pictures with targets (N, L) of 0 and 1, and all that follows from them."""

    outputs: Array
    targets: Array
    names: Sequence[str]
    trust: SeveralTrust | None
    coverage: float

    def __post_init__(self) -> None:
        self.outputs, self.targets = check(self.outputs, self.targets)
        self.odds = scale(self.outputs, self.trust)
        self.shares = sigmoid(self.odds)
        self.thresholds = thresholds_of(self.trust, len(self.names))
        self.truth = self.targets.astype(bool)
        self.predicted = self.shares > self.thresholds

    @cached_property
    def losses(self) -> Floats:
        """(N,) the binary cross-entropy of each picture, averaged over the labels."""
        return log_losses(self.odds, self.targets)

    @cached_property
    def hits(self) -> Hits:
        return count_hits(self.predicted, self.targets)

    @cached_property
    def correct(self) -> Array:
        """(N,) whether all labels of a picture are right."""
        return (self.predicted == self.truth).all(axis=1)

    @cached_property
    def exact_match(self) -> Rate:
        return rate(int(self.correct.sum()), len(self.correct))

    @cached_property
    def average_precision(self) -> Floats:
        """(L,) NaN for labels that no picture has."""
        return average_precision(self.odds, self.targets)

    @cached_property
    def spread(self) -> Spread:
        """The intervals of average precision."""
        return bootstrap_precision(self.odds, self.targets)

    @property
    def mean_average_precision(self) -> float:
        """The mean over the labels that some picture has."""
        return mean(self.average_precision)

    @cached_property
    def hamming(self) -> float:
        """The share of wrong answers among all, a yes or a no for each label of each picture."""
        return float((self.predicted != self.truth).mean())

    @cached_property
    def calibration_error(self) -> float:
        """How far probabilities are from frequencies, over all labels of all pictures."""
        return bin_confidence(self.shares.ravel(), self.targets.ravel()).error

    @cached_property
    def uncalibrated_error(self) -> float:
        """The same without the calibration."""
        return bin_confidence(sigmoid(scale(self.outputs, None)).ravel(), self.targets.ravel()).error

    @cached_property
    def sets(self) -> SetScores | None:
        """The label sets of the coverage; None where the calibration cannot promise it."""
        return self.sets_at(self.coverage)

    def sets_at(self, coverage: float) -> SetScores | None:
        """The label sets of another coverage."""
        sets = None if self.trust is None else self.trust.sets
        if sets is None or coverage > sets.levels[-1]:
            return None
        return SetScores(coverage, self.truth, self.shares >= sets.threshold(coverage))

    @cached_property
    def curve(self) -> list[SetScores]:
        """The label sets of every coverage of `CURVE` that the calibration can promise."""
        return [sets for level in CURVE if (sets := self.sets_at(level)) is not None]

    @cached_property
    def confusion(self) -> Integers:
        """(L, L) how many pictures with the label of the row were wrongly given that of the column; on the diagonal,
        how many were not given their own.
        """
        truth, wrong = self.truth.astype(np.float32), (self.predicted & ~self.truth).astype(np.float32)
        pairs = np.rint(truth.T @ wrong).astype(np.int64)
        np.fill_diagonal(pairs, self.hits.support - self.hits.hits)
        return pairs

    def ranking(self, label: int) -> Ranking:
        """A label's pictures in the order of their probabilities."""
        return rank(self.odds[:, label], self.targets[:, label])

    def worst_labels(self) -> list[int]:
        """The labels from the lowest average precision to the highest, undefined ones last."""
        found = self.average_precision
        return sorted(range(len(found)), key=lambda label: (math.isnan(found[label]), found[label]))

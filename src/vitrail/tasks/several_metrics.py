"""Metrics of scores (N, labels) and targets (N, labels) of 0 and 1. It needs NumPy only: cheap to import.

Among equal scores no picture is ahead of another, as in scikit-learn. Undefined values are NaN, not 0: the average
precision and the recall of a label that no picture has, the precision of a label that was never predicted.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vitrail.errors import InputError
from vitrail.rng import Draws

Array = np.ndarray[Any, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
RESAMPLES, FEWEST_RESAMPLES = 200, 20
WORK = 400_000_000  # scores × resamples, about: beyond it, there are fewer resamples
FEWEST_POSITIVES = 5  # of a label whose average precision gets an interval


def check(outputs: Any, targets: Any) -> tuple[Array, Array]:
    """Both as arrays, or an error that explains what is wrong with them."""
    scores, truth = np.asarray(outputs), np.asarray(targets)
    if scores.ndim != 2 or truth.shape != scores.shape or not scores.size:
        raise InputError(
            f"logits and targets must be (N, labels), with N at least 1; got {scores.shape} and {truth.shape}."
        )
    broken = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    if len(broken):
        raise InputError(f"logits must be finite; {len(broken)} of {len(scores)} rows are not: row {broken[0]}.")
    if not np.isin(truth, (0, 1)).all():
        raise InputError("targets must be 0 or 1: whether a picture has the label.")
    return scores, truth.astype(np.uint8)


def log_losses(odds: Floats, targets: Array) -> Floats:  # (N, L), both → (N,)
    """The binary cross-entropy of each picture, averaged over the labels."""
    return (np.logaddexp(0, odds) - targets * odds).mean(axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Hits:
    """How often labels were predicted, and rightly so; (L,) each."""

    hits: Integers
    predictions: Integers
    support: Integers

    @property
    def precision(self) -> Floats:
        return divide(self.hits, self.predictions)

    @property
    def recall(self) -> Floats:
        return divide(self.hits, self.support)

    @property
    def f1(self) -> Floats:
        return divide(2 * self.hits, self.predictions + self.support)

    @property
    def micro_f1(self) -> float:
        """Of all labels of all pictures together."""
        below = int(self.predictions.sum() + self.support.sum())
        return 2 * int(self.hits.sum()) / below if below else math.nan

    @property
    def macro_f1(self) -> float:
        """The mean over the labels that some picture has or was predicted to have."""
        return mean(self.f1)


def count_hits(predicted: Array, targets: Array) -> Hits:  # (N, L), both
    """How often each label was predicted, and rightly so."""
    predicted, targets = predicted.astype(bool), targets.astype(bool)
    columns = (predicted & targets, predicted, targets)
    hits, predictions, support = (column.sum(axis=0, dtype=np.int64) for column in columns)
    return Hits(hits=hits, predictions=predictions, support=support)


class Ranking(NamedTuple):
    """A label's pictures, from the highest score to the lowest."""

    order: Integers  # (N,) indices of the pictures
    ends: Integers  # (distinct scores,) the last place of each score
    positives: Integers  # (distinct scores,) how many pictures up to there have the label

    @property
    def precision(self) -> Floats:
        return self.positives / (self.ends + 1)

    @property
    def recall(self) -> Floats:
        return self.positives / self.positives[-1] if self.positives[-1] else np.full(len(self.ends), np.nan)


def rank(scores: Array, targets: Array) -> Ranking:  # (N,), both
    """A label's pictures in the order of their scores."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    return Ranking(order, ends, np.cumsum(targets[order], dtype=np.int64)[ends])


def average_precision(scores: Array, targets: Array) -> Floats:  # (N, L), both → (L,)
    """The area below each label's precision over recall, in steps."""
    return np.array([_area(rank(scores[:, label], targets[:, label])) for label in range(scores.shape[1])])


def _area(ranking: Ranking) -> float:
    total = int(ranking.positives[-1])
    return float((np.diff(ranking.positives, prepend=0) * ranking.precision).sum() / total) if total else math.nan


class Spread(NamedTuple):
    """95 % intervals of average precision."""

    low: Floats  # (L,)
    high: Floats
    mean_low: float  # of the mean over the labels
    mean_high: float


def bootstrap_precision(scores: Array, targets: Array) -> Spread:  # (N, L), both
    """Intervals from resampled pictures, always the same ones: NaN for a label that too few pictures have.

    Resamples repeat pictures, which raises average precision a little: by less than the spread of a label, but not of
    the mean over labels, whose interval is mirrored for it (the basic bootstrap).
    """
    weights = _resample(*scores.shape)
    columns = range(scores.shape[1])
    areas = np.stack([_areas(scores[:, label], targets[:, label], weights) for label in columns], axis=1)
    values = average_precision(scores, targets)
    low, high = _quantiles(areas)
    few = targets.sum(axis=0) < FEWEST_POSITIVES
    low, high = (np.where(few, np.nan, edge) for edge in (np.minimum(low, values), np.maximum(high, values)))
    seen, middle = np.isfinite(areas), mean(values)
    means = divide(np.where(seen, areas, 0).sum(axis=1), seen.sum(axis=1))
    edges = (2 * middle - float(edge[0]) for edge in _quantiles(means[:, None])[::-1])
    mean_low, mean_high = (min(max(edge, 0.0), 1.0) if edge == edge else edge for edge in edges)
    return Spread(low, high, min(mean_low, middle), max(mean_high, middle))


def _resample(pictures: int, labels: int) -> Array:
    """(resamples, N) how often each picture is drawn."""
    count = int(np.clip(WORK // (pictures * labels), FEWEST_RESAMPLES, RESAMPLES))
    drawn = (Draws(0, 0, [number]).uniform("bootstrap", pictures)[0] for number in range(count))
    counts = (np.bincount((each * pictures).astype(np.int64), minlength=pictures) for each in drawn)
    return np.stack([np.minimum(each, 255).astype(np.uint8) for each in counts])


def _areas(scores: Array, targets: Array, weights: Array) -> Floats:  # (N,), (N,), (R, N) → (R,)
    """A label's average precision for each resample."""
    order, ends, _ = rank(scores, targets)
    starts = np.append(0, ends[:-1] + 1)
    positive = np.add.reduceat(targets[order], starts, dtype=np.int64) > 0
    if not positive.any():
        return np.full(len(weights), np.nan)
    # Precision is needed only at scores that some positive has: sums up to there, each from where the last ended.
    lasts = ends[positive]
    drawn = np.add.reduceat(weights[:, order], np.append(0, lasts[:-1] + 1), axis=1, dtype=np.int32)
    if lasts[-1] + 1 < len(order):
        drawn[:, -1] -= weights[:, order[lasts[-1] + 1 :]].sum(axis=1, dtype=np.int32)
    own = np.flatnonzero(targets[order])
    hits = np.add.reduceat(weights[:, order[own]], np.searchsorted(own, starts[positive]), axis=1, dtype=np.int32)
    precision = np.cumsum(hits, axis=1) / np.maximum(np.cumsum(drawn, axis=1), 1)
    return divide((hits * precision).sum(axis=1), hits.sum(axis=1))


def _quantiles(resampled: Floats) -> tuple[Floats, Floats]:  # (R, L) → (L,), both
    """Where the middle 95 % of the resamples begin and end; NaN where all are undefined."""
    edges, defined = np.full((2, resampled.shape[1]), np.nan), np.isfinite(resampled).any(axis=0)
    edges[:, defined] = np.nanquantile(resampled[:, defined], (0.025, 0.975), axis=0)
    return edges[0], edges[1]


def divide(above: Any, below: Any) -> Floats:
    """A quotient, NaN where nothing is counted."""
    return np.divide(above, below, out=np.full(len(above), np.nan), where=np.asarray(below) > 0)


def mean(values: Floats) -> float:
    """The mean of the defined values."""
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan

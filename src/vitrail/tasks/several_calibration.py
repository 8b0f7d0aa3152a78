"""What validation pictures tell of a model of several labels: what its outputs mean (Platt, 1999), above which
probability each label applies, and sets of labels that miss no more than promised (conformal risk control).
"""

import math
from typing import Any, NamedTuple

import numpy as np

from vitrail.errors import DataError
from vitrail.tasks.several import THRESHOLD, MissRates, SeveralTrust, sigmoid
from vitrail.tasks.several_metrics import Array, Floats, check, rank
from vitrail.wording import counted

FEWEST = 50  # pictures from which anything is fitted
FOLDS = 5  # of which each is judged by the others
FEWEST_POSITIVES = 10  # pictures with, and without, a label from which something of its own is fitted
STEPS, HALVINGS, TOLERANCE = 50, 20, 1e-6  # of Newton's method
RIDGE = 1e-9  # so that every system of equations has a solution
LARGEST = 1e4  # of the numbers that are kept
MOST_POOLED = 4_000_000  # scores of which the common threshold is found
# Coverages that a table holds: in between, the next higher one counts.
LEVELS = (*(number / 200 for number in range(100, 198)), *(number / 1000 for number in range(990, 1000)))


def fit_trust(outputs: Any, targets: Any, data: str) -> SeveralTrust:
    """The scaling, the thresholds and the label sets; too few pictures are an error."""
    logits, truth = check(outputs, targets)
    if len(truth) < FEWEST:
        raise DataError(f"a calibration needs at least {FEWEST} pictures; {data} has {counted(len(truth), 'picture')}.")
    scaling = fit_scaling(logits, truth)
    return SeveralTrust(
        data=data,
        pictures=len(truth),
        slopes=tuple(scaling.slopes.tolist()),
        offsets=tuple(scaling.offsets.tolist()),
        thresholds=fit_thresholds(scaling.probabilities(logits), truth),
        sets=fit_sets(held_out(logits, truth), truth),
    )


def held_out(logits: Array, targets: Array) -> Floats:  # (N, L), each
    """Probabilities of pictures by a scaling that was fitted on others.

    What was fitted on the same pictures fits them better than new ones, and could not promise anything about these.
    """
    shares, parts = np.empty(logits.shape), np.arange(len(logits)) % FOLDS
    for part in range(FOLDS):
        own = parts == part
        shares[own] = fit_scaling(logits[~own], targets[~own]).probabilities(logits[own])
    return shares


class Scaling(NamedTuple):
    """What the outputs of each label are multiplied by, and what is added; (L,) each."""

    slopes: Floats
    offsets: Floats

    def probabilities(self, logits: Array) -> Floats:  # (N, L), both
        return sigmoid(logits * self.slopes + self.offsets)


def fit_scaling(logits: Array, targets: Array) -> Scaling:  # (N, L), both
    """The scaling of each label with the highest likelihood; of too few examples, none.

    Platt's prior, of one picture with the label and one without, keeps a label that is told without a mistake from
    becoming absolutely certain. The likelihood never falls: where it would, and where the order of the pictures would
    be reversed, nothing changes.
    """
    count, labels = logits.shape
    slopes, offsets = np.ones(labels), np.zeros(labels)
    positives = targets.sum(axis=0, dtype=np.int64)
    enough = np.flatnonzero(np.minimum(positives, count - positives) >= FEWEST_POSITIVES)
    step = max(1, (1 << 20) // count)
    for some in (enough[start : start + step] for start in range(0, len(enough), step)):
        numbers, truth = logits[:, some].astype(np.float64), targets[:, some].astype(np.float64)
        high, low = (positives[some] + 1) / (positives[some] + 2), 1 / (count - positives[some] + 2)
        slope, offset = (np.round(found, 4) for found in _solve(numbers, truth * high + (1 - truth) * low))
        better = _nll(numbers * slope + offset, truth) < _nll(numbers, truth)
        fits = better & (slope > 0) & (np.maximum(np.abs(slope), np.abs(offset)) < LARGEST)
        slopes[some], offsets[some] = np.where(fits, slope, 1.0), np.where(fits, offset, 0.0)
    return Scaling(slopes, offsets)


def _nll(odds: Floats, targets: Floats) -> Floats:  # (N, L), both → (L,)
    return (np.logaddexp(0, odds) - targets * odds).sum(axis=0)


def _solve(numbers: Floats, targets: Floats) -> Scaling:  # (N, L), both
    """Newton's method for all labels at once (Lin, Lin and Weng, 2007); steps that do not help are halved."""
    slope, offset = np.ones(numbers.shape[1]), np.zeros(numbers.shape[1])
    loss = _nll(numbers, targets)
    for _ in range(STEPS):
        shares = sigmoid(numbers * slope + offset)
        error, spread = shares - targets, shares * (1 - shares)
        gradient = (error * numbers).sum(axis=0), error.sum(axis=0)
        aa, ab, bb = (spread * numbers**2).sum(axis=0), (spread * numbers).sum(axis=0), spread.sum(axis=0)
        aa, bb = aa + RIDGE, bb + RIDGE
        determinant = np.maximum(aa * bb - ab * ab, np.finfo(np.float64).tiny)
        steps = (
            (bb * gradient[0] - ab * gradient[1]) / determinant,
            (aa * gradient[1] - ab * gradient[0]) / determinant,
        )
        part, worse = np.ones(len(slope)), np.ones(len(slope), dtype=bool)
        for _ in range(HALVINGS):
            trial = _nll(numbers * (slope - part * steps[0]) + (offset - part * steps[1]), targets)
            worse = ~(trial <= loss)
            part = np.where(worse, part / 2, part)
            if not worse.any():
                break
        part = np.where(worse, 0.0, part)
        slope, offset = slope - part * steps[0], offset - part * steps[1]
        before, loss = loss, _nll(numbers * slope + offset, targets)
        if (before - loss <= TOLERANCE * np.abs(before)).all():
            break
    return Scaling(slope, offset)


def fit_thresholds(shares: Floats, targets: Array) -> tuple[float, ...]:  # (N, L), both
    """The threshold of each label with the highest F1; labels with few pictures have one in common."""
    positives = targets.sum(axis=0, dtype=np.int64)
    step = math.ceil(shares.size / MOST_POOLED)
    common = best_threshold(shares[::step].ravel(), targets[::step].ravel())
    return tuple(
        best_threshold(shares[:, label], targets[:, label]) if positives[label] >= FEWEST_POSITIVES else common
        for label in range(shares.shape[1])
    )


def best_threshold(shares: Floats, targets: Array) -> float:  # (n,), both
    """The probability above which a label must apply for the highest F1; of several, the highest.

    It lies midway between two probabilities that occurred, so that rounding elsewhere changes no answer.
    """
    order, ends, positives = rank(shares, targets)
    if not positives[-1]:
        return THRESHOLD
    place = int(np.argmax(positives / (ends + 1 + positives[-1])))  # F1 is twice this
    edge = float(shares[order[ends[place]]])
    below = float(shares[order[ends[place + 1]]]) if place + 1 < len(ends) else 0.0
    middle = (edge + below) / 2
    return middle if middle < edge else below


def fit_sets(shares: Floats, targets: Array) -> MissRates | None:  # (N, L), both
    """The threshold of every coverage level that this number of pictures can guarantee; None if it is too small.

    Pictures without labels have none to miss, and do not count. Of n others that miss the shares r of their labels, the
    highest threshold counts for which (Σ r + 1) / (n + 1) ≤ 1 − level.
    """
    labels = targets.sum(axis=1, dtype=np.int64)
    pictures, columns = np.nonzero(targets)
    count = int((labels > 0).sum())
    found = shares[pictures, columns]
    order = np.argsort(found, kind="stable")
    edges = np.append(found[order], 1.0)
    # What is missed if only labels from an edge on belong to a set: all below it, of equal ones none.
    missed = np.append(0.0, np.cumsum(1 / labels[pictures[order]]))
    missed = missed[np.searchsorted(edges, edges, side="left")]
    allowed = {level: (count + 1) * (1 - level) - 1 + 1e-9 for level in LEVELS}
    places = {level: int(np.searchsorted(missed, most, side="right")) for level, most in allowed.items() if most >= 0}
    if not places or not count:
        return None
    return MissRates(levels=tuple(places), thresholds=tuple(float(edges[place - 1]) for place in places.values()))

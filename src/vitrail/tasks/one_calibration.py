"""What validation pictures tell of a model of one class: a temperature (Guo et al., 2017), perhaps one number more, and
label sets with a guarantee (conformal prediction).
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from vitrail.tasks.coverage import FEWEST, refuse_few, score_levels
from vitrail.tasks.one import LabelSets, OneTrust, calibrate, probabilities
from vitrail.tasks.one_metrics import Array, Integers, answer, blocks, check

ENOUGH = 10_000  # of which two numbers are fitted as well as from more
LOWEST, HIGHEST = math.log(0.05), math.log(20.0)  # temperatures
MOST_SMOOTHING = 0.5
FREE_RANKS, PENALTY = 1, 0.01


def fit_trust(logits: Array, targets: Integers, data: str) -> OneTrust:
    """The scaling and the label sets; too few pictures are an error."""
    refuse_few(len(targets), data)
    scaling = fit_scaling(logits, targets)
    assert scaling is not None
    trust = OneTrust(data=data, pictures=len(targets), **scaling._asdict())
    return replace(trust, sets=fit_sets(logits, targets, trust))


class Scaling(NamedTuple):
    """What logits are divided by, and the share of the probability, spread evenly over the classes, to subtract."""

    temperature: float = 1.0
    smoothing: float = 0.0


def fit_scaling(logits: Any, targets: Any) -> Scaling | None:
    """The scaling with the lowest NLL on these pictures, which must not be training pictures; None: too few of them.

    The targets are smoothed as Platt's are, by one picture in total, so that a model without a single mistake on them
    does not become absolutely certain. A second number, the smoothing, is kept only if it lowers the NLL enough (by the
    Bayesian information criterion). The NLL of the unsmoothed targets never rises: where it would, nothing changes.
    """
    scores, truth = check(logits, targets)
    if len(truth) < FEWEST:
        return None
    step = math.ceil(len(truth) / ENOUGH)
    some, few = scores[::step], truth[::step]

    def loss(exponent: float, smoothing: float = 0.0) -> float:
        return _nll(some, few, Scaling(math.exp(exponent), smoothing), 1 / (len(few) + 2))

    def loss_of_both(numbers: Any) -> float:
        return loss(*numbers)

    bounds, tolerance = (LOWEST, HIGHEST), {"xatol": 1e-4}
    one: Any = minimize_scalar(loss, bounds=bounds, method="bounded", options=tolerance)
    limits = (bounds, (0.0, MOST_SMOOTHING))
    two: Any = minimize(loss_of_both, (one.x, 0.05), method="Nelder-Mead", bounds=limits, options=tolerance)
    worth = 2 * len(few) * (one.fun - two.fun) > math.log(len(few))
    exponent, smoothing = two.x if worth else (one.x, 0.0)
    best = Scaling(round(math.exp(exponent), 4), round(float(smoothing), 4))
    return best if _nll(scores, truth, best) < _nll(scores, truth, Scaling()) else Scaling()


def _nll(logits: Array, targets: Integers, scaling: Scaling, smoothed: float = 0.0) -> float:
    """The mean cross-entropy; `smoothed` is the share of the targets that is spread over all classes."""
    total = 0.0
    for rows, scores in blocks(logits):
        logs = calibrate(scores, *scaling)
        own = logs[np.arange(len(logs)), targets[rows]]
        spread = logs.mean(axis=1) if smoothed else 0.0
        total -= float(((1 - smoothed) * own + smoothed * spread).sum())
    return total / len(targets)


def fit_sets(logits: Array, targets: Integers, trust: OneTrust) -> LabelSets | None:
    """The thresholds of every coverage level that this number of pictures can guarantee; None if it is too small."""
    plain = LabelSets(levels=(0.5,), thresholds=(0.0,), free_ranks=FREE_RANKS, penalty=PENALTY)
    ranks = answer(logits, targets).rank
    of_truth = [
        plain.scores(probabilities(rows, trust))[np.arange(len(rows)), ranks[where]] for where, rows in blocks(logits)
    ]
    thresholds = {level: float(score) for level, score in score_levels(np.concatenate(of_truth)).items()}
    if not thresholds:
        return None
    return replace(plain, levels=tuple(thresholds), thresholds=tuple(thresholds.values()))

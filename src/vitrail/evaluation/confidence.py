"""How far to trust a model's answers, fitted on pictures that it was not trained on."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from vitrail.evaluation.metrics import Array, Integers, blocks, check
from vitrail.weights.trust import calibrate

FEWEST = 50  # pictures from which a temperature is fitted
ENOUGH = 10_000  # of which two numbers are fitted as well as from more
LOWEST, HIGHEST = math.log(0.05), math.log(20.0)  # temperatures
MOST_SMOOTHING = 0.5


class Scaling(NamedTuple):
    """What logits are divided by, and the evenly spread share of the probability that is then taken away."""

    temperature: float = 1.0
    smoothing: float = 0.0


def fit_scaling(logits: Any, targets: Any) -> Scaling | None:
    """The scaling with the lowest NLL on these pictures, which must not be training pictures; None: too few of them.

    The targets are smoothed as Platt's are, by one picture in all, so that a model that made no mistake on them is not
    told that it never will. Smoothing is taken away only if the NLL falls by more than a second number is worth
    (the Bayesian information criterion). The NLL of the unsmoothed targets never rises: nothing changes where it would.
    """
    scores, truth = check(logits, targets)
    if len(truth) < FEWEST:
        return None
    step = math.ceil(len(truth) / ENOUGH)
    some, few = scores[::step], truth[::step]

    def loss(numbers: Any) -> float:
        return _nll(some, few, Scaling(math.exp(numbers[0]), numbers[1]), 1 / (len(few) + 2))

    bounds, last = (LOWEST, HIGHEST), (0.0, MOST_SMOOTHING)
    one: Any = minimize_scalar(partial(_alone, loss), bounds=bounds, method="bounded", options={"xatol": 1e-4})
    two: Any = minimize(loss, (one.x, 0.05), method="Nelder-Mead", bounds=(bounds, last), options={"xatol": 1e-4})
    worth = 2 * len(few) * (one.fun - two.fun) > math.log(len(few))
    exponent, smoothing = two.x if worth else (one.x, 0.0)
    found = Scaling(round(math.exp(exponent), 4), round(float(smoothing), 4))
    return found if _nll(scores, truth, found) < _nll(scores, truth, Scaling()) else Scaling()


def _alone(loss: Callable[[Any], float], exponent: float) -> float:
    return loss((exponent, 0.0))


def _nll(logits: Array, targets: Integers, scaling: Scaling, smoothed: float = 0.0) -> float:
    """The mean cross-entropy; `smoothed` is the share of the targets that is spread over all classes."""
    total = 0.0
    for rows, scores in blocks(logits):
        logs = calibrate(scores, *scaling)
        own = logs[np.arange(len(logs)), targets[rows]]
        spread = logs.mean(axis=1) if smoothed else 0.0
        total -= float(((1 - smoothed) * own + smoothed * spread).sum())
    return total / len(targets)

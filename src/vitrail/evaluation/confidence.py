"""`fit_trust`: how far to trust a model, from pictures that it was not trained on, and from what it was trained on.

It finds what makes a model as sure as it is right: a temperature (Guo et al., 2017), and perhaps one number more; label
sets with a guarantee (conformal prediction); and which pictures are unlike the training pictures (`ood`).
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from vitrail.data.source import Dataset, refuse_broken
from vitrail.errors import DataError
from vitrail.evaluation.measurement import Measurement, Singles, align_classes, choose, make_measurement, run
from vitrail.evaluation.metrics import Array, Integers, answer, blocks, check
from vitrail.evaluation.ood import TRAINING_PICTURES, fit_familiarity
from vitrail.prediction import Predictor
from vitrail.progress import Advance
from vitrail.weights.trust import LabelSets, Trust, calibrate, probabilities
from vitrail.wording import counted

FEWEST = 50  # pictures from which a temperature is fitted
ENOUGH = 10_000  # of which two numbers are fitted as well as from more
LOWEST, HIGHEST = math.log(0.05), math.log(20.0)  # temperatures
MOST_SMOOTHING = 0.5
# Coverages that a table holds: in between, the next higher one counts.
LEVELS = (*(number / 200 for number in range(100, 198)), *(number / 1000 for number in range(990, 1000)))
FREE_RANKS, PENALTY = 1, 0.01


class SplitOutputs(NamedTuple):
    """What a model computes for some pictures of a split."""

    samples: Integers  # (n,) those that can be read
    logits: Singles  # (n, classes) in the order of the data
    features: Singles  # (n, D)
    broken: dict[str, str]  # the others, and why


def count_pictures(dataset: Dataset, split: str = "val") -> int:
    """How many pictures `fit_trust` looks at."""
    return len(dataset.split(split)) + min(TRAINING_PICTURES, len(dataset.split("train")))


def fit_trust(
    predictor: Predictor,
    dataset: Dataset,
    split: str = "val",
    *,
    by_position: bool = False,
    known: Callable[[str, Integers, list[int]], SplitOutputs | None] = lambda _split, _samples, _order: None,
    progress: Advance = lambda _: None,
) -> tuple[Trust, Measurement]:
    """What a calibration on a split finds, and what was measured for it; too few pictures are an error.

    Args:
        known: what is known already of these samples of a split, by the order of the classes; None: nothing is.
    """
    if len(dataset.split(split)) < FEWEST:
        raise DataError(
            f"a calibration needs at least {FEWEST} pictures that were not trained on; {split} has "
            f"{counted(len(dataset.split(split)), 'picture')}."
        )
    order = align_classes(predictor, dataset.classes, by_position=by_position)

    def outputs_of(name: str, limit: int | None = None) -> SplitOutputs:
        samples = choose(len(dataset.split(name)), limit)
        return known(name, samples, order) or _compute(predictor, dataset, name, order, samples, progress)

    start = time.perf_counter()
    kept, logits, features, broken = outputs_of(split)
    seconds = time.perf_counter() - start
    seen, _, trained_on, _ = outputs_of("train", TRAINING_PICTURES)
    measurement = make_measurement(dataset, split, kept, logits, broken, seconds)
    targets = measurement.targets
    scaling = fit_scaling(logits, targets)
    if scaling is None:  # some could not be read
        raise DataError(f"a calibration needs at least {FEWEST} pictures; {len(kept)} of {split} could be read.")
    trust = Trust(data=f"{dataset.name}, {split}", pictures=len(kept), **scaling._asdict())
    familiarity = fit_familiarity(trained_on, dataset.split("train").labels[seen], features)
    trust = replace(trust, sets=fit_sets(logits, targets, trust), familiarity=familiarity)
    return trust, replace(measurement, familiarity=None if familiarity is None else familiarity.scores(features))


def _compute(
    predictor: Predictor, dataset: Dataset, split: str, order: list[int], samples: Integers, progress: Advance
) -> SplitOutputs:
    def compute(images: Singles) -> Singles:
        logits, features = predictor.runtime.logits_and_features(images)
        return np.concatenate([logits[:, order], features], axis=1)

    kept, numbers, broken = run(predictor, dataset.split(split), samples, compute, progress=progress)
    refuse_broken(broken, len(samples), dataset.max_broken_rate)
    return SplitOutputs(kept, np.ascontiguousarray(numbers[:, : len(order)]), numbers[:, len(order) :], broken)


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


def fit_sets(logits: Array, targets: Integers, trust: Trust) -> LabelSets | None:
    """The thresholds of every coverage level that this number of pictures can guarantee; None if it is too small.

    Of n scores, the one at place ⌈(n + 1) · level⌉ in ascending order is the threshold, so that the guarantee holds
    for any number of pictures that are like these.
    """
    plain = LabelSets(levels=(0.5,), thresholds=(0.0,), free_ranks=FREE_RANKS, penalty=PENALTY)
    ranks = answer(logits, targets).rank
    of_truth = [
        plain.scores(probabilities(rows, trust))[np.arange(len(rows)), ranks[where]] for where, rows in blocks(logits)
    ]
    scores = np.sort(np.concatenate(of_truth))
    places = {level: math.ceil(round((len(scores) + 1) * level, 6)) for level in LEVELS}
    thresholds = {level: float(scores[place - 1]) for level, place in places.items() if place <= len(scores)}
    if not thresholds:
        return None
    return replace(plain, levels=tuple(thresholds), thresholds=tuple(thresholds.values()))

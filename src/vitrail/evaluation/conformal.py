"""Label sets with a guarantee: fitted on pictures that were not trained on, measured on others. NumPy only."""

import math
from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.metrics import Array, Floats, Integers, Rate, answer, blocks, rate
from vitrail.weights.trust import LabelSets, Trust, probabilities

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

"""What folds and trials have measured: the scores, their mean and its interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from vitrail.evaluation.measurement import Measurement
from vitrail.training.objectives import SplitScore
from vitrail.wording import show_metric

LEVEL = 0.95
INTERVAL = "95 %, corrected resampled t (Nadeau and Bengio, 2003)"


class Spread(NamedTuple):
    """A metric over the folds."""

    mean: float
    std: float  # of the folds
    low: float  # of the mean: the interval
    high: float


class FoldResults(NamedTuple):
    """All folds of a run."""

    scores: tuple[SplitScore, ...]
    best_epochs: tuple[int, ...]
    held_out: Measurement  # each picture once, by the model of the fold that it is in
    repeats: int
    seconds: float

    def calibrating(self, epochs: int) -> "FoldResults":
        """The results, without familiarity if only some of the models, or only the last one, learned from outliers.

        Models that did are judged by their logits too (`tasks/familiarity.py`), on another scale than the others; only
        models that were trained for no epoch did not.
        """
        if len({each > 0 for each in (*self.best_epochs, epochs)}) == 1:
            return self
        return self._replace(held_out=replace(self.held_out, familiarity=None))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a search has tried, and what came of it."""

    number: int  # from 1
    settings: Mapping[str, Any]
    metric: str
    value: float  # of that metric, in validation or on average over the folds
    seconds: float
    best: bool = False
    error: str = ""  # why it failed; then there is no value

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
        value = self.value if math.isfinite(self.value) else None
        return {**vars(self), "settings": dict(self.settings), "value": value}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Trial":
        """The inverse of `facts`."""
        values: dict[str, Any] = {**facts}
        values["value"] = math.nan if facts["value"] is None else float(facts["value"])
        return cls(**values)


def show_setting(value: Any) -> str:
    """A value that was tried, for people."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def describe_best(trials: Sequence[Trial]) -> str:
    """Which trial was best, in one line; "" without any."""
    best = next((trial for trial in trials if trial.best), None)
    if best is None:
        return ""
    settings = ", ".join(f"{name} {show_setting(value)}" for name, value in best.settings.items())
    reached = f"{best.metric.replace('_', ' ')} {show_metric(best.metric, best.value)}"
    return f"trial {best.number} of {len(trials)} is the best, {reached}: {settings}"


def spread_of(scores: Sequence[SplitScore], repeats: int = 1) -> dict[str, Spread]:
    """Mean and interval of each metric that all folds have, and of the loss.

    The folds' training pictures overlap, so that their results are not independent: the variance of the mean is taken
    as s² (1/n + test/train) instead of s²/n, with test/train = 1/(folds - 1) (Nadeau and Bengio, 2003).
    """
    names = [name for name in scores[0].metrics if all(name in score.metrics for score in scores)]
    values = {name: [score.metrics[name] for score in scores] for name in names}
    values["loss"] = [score.loss for score in scores]
    return {name: _spread(np.array(each), len(scores) // repeats) for name, each in values.items()}


def _spread(values: Any, folds: int) -> Spread:
    count, mean = len(values), float(values.mean())
    std = float(values.std(ddof=1))
    half = float(student.ppf((1 + LEVEL) / 2, count - 1)) * std * math.sqrt(1 / count + 1 / (folds - 1))
    return Spread(mean, std, mean - half, mean + half)

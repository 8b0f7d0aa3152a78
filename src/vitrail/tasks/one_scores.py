"""The numbers of a model of one class per picture: answers, metrics, label sets, the classes, the confusions."""

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from vitrail.tasks.coverage import CURVE
from vitrail.tasks.one import OneTrust
from vitrail.tasks.one_metrics import Answers, Array, Metrics, SetScores, answer, check, measure, measure_sets, sum_up

SET_COLUMNS = ("coverage", "coverage_low", "coverage_high", "mean_set_size")
UNEVEN = 3  # times as many pictures of one class as of another: plain accuracy says little about the rare one


class ClassSets(NamedTuple):
    """How often the label sets of a class hold the truth, with its interval, and their mean size."""

    coverage: float = math.nan
    low: float = math.nan
    high: float = math.nan
    mean_size: float = math.nan


class OneScores:
    """What follows from logits (N, classes) and classes (N,), each computed when it is first asked for."""

    def __init__(
        self, outputs: Array, targets: Array, names: Sequence[str], trust: OneTrust | None, coverage: float
    ) -> None:
        self.logits, self.targets = check(outputs, targets)
        self.names, self.trust, self.coverage = names, trust, coverage
        self._counts: Sequence[int] = ()  # training pictures of each class, if they are known

    def trained_on(self, counts: Sequence[int]) -> Self:
        other = copy.copy(self)
        other._counts = counts
        other.__dict__.pop("is_uneven", None)
        return other

    @cached_property
    def answers(self) -> Answers:
        """The prediction for each picture, its confidence, and its loss."""
        return answer(self.logits, self.targets, self.trust)

    @property
    def metrics(self) -> Metrics:
        return self._metrics

    @cached_property
    def _metrics(self) -> Metrics:
        return sum_up(self.answers, self.targets, len(self.names))

    @cached_property
    def uncalibrated(self) -> Metrics:
        """The metrics as they would be without the calibration."""
        return self.metrics if self.trust is None else measure(self.logits, self.targets)

    @cached_property
    def label_sets(self) -> SetScores | None:
        """How often the label sets of the coverage hold the truth; None if the model was not calibrated for them."""
        return self.label_sets_at(self.coverage)

    def label_sets_at(self, coverage: float) -> SetScores | None:
        if self.trust is None or self.trust.sets is None:
            return None
        return measure_sets(self.trust.sets, self.logits, self.targets, self.trust, coverage)

    def coverage_curve(self) -> list[SetScores]:
        """The label sets at every coverage of `CURVE` that the calibration can promise."""
        highest = 0.0 if self.trust is None or self.trust.sets is None else self.trust.sets.levels[-1]
        return [sets for level in CURVE if level <= highest and (sets := self.label_sets_at(level)) is not None]

    @cached_property
    def is_uneven(self) -> bool:
        """Whether a class has several times the training pictures of another; or those measured here, beyond chance."""
        if self._counts and max(self._counts) > UNEVEN * min(self._counts):
            return True
        support = self.metrics.classes.support
        most, least = (int(edge(support[support > 0])) for edge in (np.max, np.min))
        return most > UNEVEN * least and most - least > 3 * math.sqrt(most + least)

    def lowest_recalls(self, count: int) -> list[tuple[str, float]]:
        """The classes that are recognised least, of those that have pictures."""
        recall = self.metrics.classes.recall.tolist()
        known = [index for index in worst_first(recall) if not math.isnan(recall[index])]
        return [(self.names[index], recall[index]) for index in known[:count]]

    def confusions(self, count: int) -> list[tuple[str, str, int]]:
        """The most frequent mistakes: (true class, what it was taken for, how often)."""
        mistakes = self.metrics.confusion.mistakes(count)
        return [(self.names[truth], self.names[predicted], often) for truth, predicted, often in mistakes]

    def class_sets(self, index: int) -> ClassSets:
        """The label sets of a class; NaN without label sets, and for a class without pictures."""
        sets = self.label_sets
        if sets is None or (held := sets.classes[index]) is None:
            return ClassSets()
        return ClassSets(held.value, held.low, held.high, float(sets.class_sizes[index]))

    def class_facts(self, index: int) -> dict[str, Any]:
        """The numbers of a class, as JSON values."""
        scores = self.metrics.classes
        return {
            "name": self.names[index],
            "precision": json_number(scores.precision[index]),
            "recall": json_number(scores.recall[index]),
            "f1": json_number(scores.f1[index]),
            "support": int(scores.support[index]),
            **dict(zip(SET_COLUMNS, map(json_number, self.class_sets(index)), strict=True)),
        }

    def set_facts(self) -> dict[str, Any] | None:
        """The label sets as JSON values: at the coverage that was requested, and a curve over others."""

        def describe(sets: SetScores) -> dict[str, Any]:
            return {"requested": sets.requested, "coverage": asdict(sets.coverage), "mean_size": sets.mean_size}

        if self.label_sets is None:
            return None
        return {**describe(self.label_sets), "curve": [describe(sets) for sets in self.coverage_curve()]}


def worst_first(values: Sequence[float]) -> list[int]:
    """The indices of the values from the lowest to the highest, undefined ones last."""
    return sorted(range(len(values)), key=lambda index: (math.isnan(values[index]), values[index]))


def json_number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else float(value)

"""Which class was taken for which, as counts of pairs that occurred: 10,000 classes have 10⁸ cells, nearly all 0."""

from dataclasses import dataclass
from typing import Any

import numpy as np

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

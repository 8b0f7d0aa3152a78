"""Metrics of measured values, (N, C) predicted and true, with bootstrap intervals. It needs NumPy only.

Undefined numbers are NaN, not 0: R² and the rank correlation of a constant truth, intervals of a single picture.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
RESAMPLES = 500
MOST_CELLS = 40_000  # pictures times values that are resampled; more are drawn from, and the intervals scaled
BLOCK = 1 << 21  # numbers that are held at once
LARGEST, SMALLEST = 1e9, 1e-4  # between which numbers are written without an exponent


# Of the scores, in the order of `ValueScores`: which have units, and what each can be.
ERRORS = [0, 1, 4]
LIMITS = ((0.0, math.inf), (0.0, math.inf), (-math.inf, 1.0), (-1.0, 1.0), (-math.inf, math.inf))


class Estimate(NamedTuple):
    """A number with its 95 % interval; all are written with three digits of `unit`."""

    value: float
    low: float = math.nan
    high: float = math.nan
    unit: float = 0.1

    def text(self, number: float | None = None) -> str:
        """The value, or another number with as many decimals."""
        return format_number(self.value if number is None else number, self.unit)

    def interval(self) -> str:
        """Its interval only; empty if there is none, as for a single picture."""
        return "" if math.isnan(self.low) else f"95 %: {self.text(self.low)} to {self.text(self.high)}"

    def __str__(self) -> str:
        return f"{self.text()} ({self.interval()})" if self.interval() else self.text()

    def facts(self) -> dict[str, float | None]:
        """As JSON values."""
        return {name: known(getattr(self, name)) for name in ("value", "low", "high")}


class ValueScores(NamedTuple):
    """How good the predictions of one value are."""

    mae: Estimate  # the mean absolute error
    rmse: Estimate
    r2: Estimate
    rank_correlation: Estimate  # Spearman's, ties averaged
    bias: Estimate  # the mean error: above 0 if predictions are too high


def measure_values(predicted: Floats, truth: Floats, scale: Floats) -> tuple[ValueScores, list[ValueScores]]:
    """The mean over the values of all scores, with errors in units of `scale` (C,); and the scores of each value.

    Intervals are percentiles of pictures drawn with replacement. Of very many pictures some are drawn from, and the
    interval is narrowed by the square root of their share.
    """
    count, values = truth.shape
    some = min(count, max(2000, MOST_CELLS // values))
    generator = np.random.default_rng(0)
    chosen = np.arange(count) if some == count else generator.choice(count, some, replace=False)
    drawn = np.concatenate(list(_resample(predicted[chosen], truth[chosen], generator)))  # (resamples, 5, C)
    full, part = (
        score_draws(predicted[rows], truth[rows], np.arange(len(rows))[None])[0] for rows in (np.arange(count), chosen)
    )
    units = np.ones((5, values))
    units[ERRORS] = 1 / scale
    shrunk = math.sqrt(some / count)

    def estimate(row: int, value: float, centre: float, resampled: Floats) -> Estimate:
        defined = resampled[np.isfinite(resampled)]
        low = high = math.nan
        if count > 1 and len(defined) and not math.isnan(value):
            low, high = np.clip(value + shrunk * (np.quantile(defined, (0.025, 0.975)) - centre), *LIMITS[row])
        unit = float(value or high) if row in ERRORS else 0.1
        return Estimate(float(value), float(low), float(high), unit)

    each = [
        ValueScores(*(estimate(row, full[row, value], part[row, value], drawn[:, row, value]) for row in range(5)))
        for value in range(values)
    ]
    if values == 1:
        return each[0], each
    means = (_mean(full * units), _mean(part * units), _mean(drawn * units))
    return ValueScores(*(estimate(row, means[0][row], means[1][row], means[2][:, row]) for row in range(5))), each


def _mean(scores: Floats) -> Floats:
    """Over the values for which a score is defined."""
    known = np.isfinite(scores)
    total = np.where(known, scores, 0.0).sum(axis=-1)
    return np.divide(total, known.sum(axis=-1), out=np.full(total.shape, np.nan), where=known.any(axis=-1))


def _resample(predicted: Floats, truth: Floats, generator: np.random.Generator) -> Iterator[Floats]:
    count = len(truth)
    rows = max(1, BLOCK // count)
    for start in range(0, RESAMPLES, rows):
        draws = generator.integers(0, count, (min(rows, RESAMPLES - start), count))
        yield score_draws(predicted, truth, draws)


def score_draws(predicted: Floats, truth: Floats, draws: Integers) -> Floats:  # (R, N) → (R, 5, C)
    """The scores of each row of draws: mae, rmse, R², rank correlation, bias."""
    scores = np.empty((len(draws), 5, truth.shape[1]))
    for value in range(truth.shape[1]):
        errors = predicted[:, value] - truth[:, value]
        centred = truth[:, value] - truth[:, value].mean()
        ranks, ranks_of_truth = (_rank(column[:, value], draws) for column in (predicted, truth))
        spread, own = (np.square(each).sum(axis=1) for each in (ranks, ranks_of_truth))
        mean, square = centred[draws].mean(axis=1), np.square(centred)[draws].mean(axis=1)
        mse = np.square(errors)[draws].mean(axis=1)
        scores[:, 0, value] = np.abs(errors)[draws].mean(axis=1)
        scores[:, 1, value] = np.sqrt(mse)
        scores[:, 2, value] = 1 - _divide(mse, np.where(own > 0, square - mean**2, 0.0))
        scores[:, 3, value] = _divide((ranks * ranks_of_truth).sum(axis=1), np.sqrt(spread * own))
        scores[:, 4, value] = errors[draws].mean(axis=1)
    return scores


def _rank(values: Floats, draws: Integers) -> Floats:  # (N,), (R, N) → (R, N)
    """The ranks of the drawn values within each row, ties averaged, minus their mean; without sorting each row."""
    distinct, places = np.unique(values, return_inverse=True)
    drawn = places[draws]  # (R, N)
    offsets = np.arange(len(draws))[:, None] * len(distinct)
    counts = np.bincount((drawn + offsets).ravel(), minlength=len(draws) * len(distinct)).reshape(len(draws), -1)
    ranks = np.cumsum(counts, axis=1) - (counts - 1) / 2
    return np.take_along_axis(ranks, drawn, axis=1) - (draws.shape[1] + 1) / 2


def _divide(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)


def format_number(value: float, unit: float | None = None) -> str:
    """A number for people, with three digits of `unit`, such as the spread of the values; by default, of itself."""
    size = abs(value if unit is None else unit)
    if not math.isfinite(value):
        return "–"
    if not size or not SMALLEST <= size < LARGEST or abs(value) >= LARGEST:
        digits = 3 + math.floor(math.log10(abs(value) / size)) if size and value else 3
        return f"{value:.{min(max(digits, 3), 15)}g}"
    decimals = max(0, 2 - math.floor(math.log10(size)))
    return f"{round(float(value), decimals) + 0.0:,.{decimals}f}"  # + 0.0: there is no -0.00


def known(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None

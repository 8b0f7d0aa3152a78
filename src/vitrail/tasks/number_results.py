"""What predictions of measured values are worth: the numbers, and how the command, the page and the files show them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.tasks.coverage import CURVE
from vitrail.tasks.number_metrics import Estimate, ValueScores, measure_values
from vitrail.tasks.rates import Rate, rate
from vitrail.tasks.task import Drawing, Integers, Results

if TYPE_CHECKING:
    from vitrail.blocks import Block, Fact, Table
    from vitrail.tasks.number import NumberTrust

Floats = np.ndarray[Any, np.dtype[np.float64]]
LONG_NAMES = ("mean absolute error", "root mean squared error", "R²", "rank correlation", "bias")
ERRORS = ("mae", "rmse", "bias")  # scores in units, not between 0 and 1
MOST_IN_CAPTION = 3  # values
LARGEST, SMALLEST = 1e9, 1e-4  # between which numbers are written without an exponent


@dataclass(frozen=True, kw_only=True, eq=False)
class NumberResults(Results):
    """Results of (N, C) values, in the user's units. Of several values, whose units may differ, scores over all of them
    are in standard deviations of the training pictures.
    """

    predicted: Floats
    truth: Floats
    names: tuple[str, ...]
    scale: Floats  # (C,) the standard deviations
    trust: "NumberTrust | None"
    requested: float  # coverage of the intervals

    @cached_property
    def errors(self) -> Floats:
        return self.predicted - self.truth

    @cached_property
    def _relative(self) -> Floats:  # (N, C)
        return np.abs(self.errors) / self.scale

    @cached_property
    def _scores(self) -> tuple[ValueScores, list[ValueScores]]:
        return measure_values(self.predicted, self.truth, self.scale)

    @property
    def overall(self) -> ValueScores:
        """Of the only value, in its units; of several, their mean, with errors in standard deviations."""
        return self._scores[0]

    @property
    def values(self) -> list[ValueScores]:
        """Of each value, in its units."""
        return self._scores[1]

    @property
    def is_single(self) -> bool:
        return len(self.names) == 1

    @cached_property
    def half_widths(self) -> Floats | None:
        """(C,) of the intervals; None for a model that was not calibrated."""
        return None if self.trust is None else self.trust.half_widths_at(self.requested)

    def coverage_at(self, requested: float) -> list[Rate]:
        """How often the intervals of a coverage hold the truth, for each value."""
        assert self.trust is not None
        held = np.abs(self.errors) <= self.trust.half_widths_at(requested)
        return [rate(int(count), len(held)) for count in held.sum(axis=0)]

    @cached_property
    def coverage_curve(self) -> "list[tuple[float, list[Rate], Floats]]":
        """At each coverage that the calibration can promise: how often intervals hold the truth, and half-widths."""
        if self.trust is None:
            return []
        levels = [level for level in CURVE if level <= self.trust.levels[-1]]
        return [(level, self.coverage_at(level), self.trust.half_widths_at(level)) for level in levels]

    # Texts ---------------------------------------------------------------------------------------------------------

    def verdict(self, model: str, pictures: str) -> str:
        """The result in one sentence."""
        mae, r2 = self.overall.mae, self.overall.r2
        unit, mean = ("", "") if self.is_single else (" standard deviations", "mean ")
        over = "" if self.is_single else f" over {len(self.names)} values"
        sure = "" if math.isnan(mae.low) else f" (95 % interval: {_number(mae.low, mae)} to {_number(mae.high, mae)})"
        fit = "" if math.isnan(r2.value) else f"; {mean}R² {r2.value:.2f}"
        return f"{model} is off by {_number(mae.value, mae)}{unit} on average{over}{sure} for {pictures}{fit}."

    def headline(self) -> "list[Fact]":
        """The numbers that a reader wants first, with their intervals."""
        from vitrail.blocks import Fact

        mae, rmse, r2, correlation, _ = self.overall
        notes = ("", "") if self.is_single else (f"mean over {len(self.names)} values; ", "in standard deviations; ")
        facts = [
            Fact("mean absolute error", _number(mae.value, mae), "".join(notes) + _interval(mae)),
            Fact("root mean squared error", _number(rmse.value, rmse), "".join(notes) + _interval(rmse)),
            Fact("R²", _share(r2.value), notes[0] + _interval(r2, _share)),
            Fact("rank correlation", _share(correlation.value), notes[0] + _interval(correlation, _share)),
        ]
        return facts + ([] if self.trust is None else self._interval_facts())

    def _interval_facts(self) -> "list[Fact]":
        from vitrail.blocks import Fact

        assert self.half_widths is not None
        rates, asked = self.coverage_at(self.requested), f"{100 * self.requested:.4g} % requested"
        if self.is_single:
            note = f"{asked}; 95 %: {rates[0].low:.2%} to {rates[0].high:.2%}"
            width = Fact("width of an interval", format_number(2 * self.half_widths[0]), "in the unit of the value")
        else:
            note = f"{asked}; mean over {len(self.names)} values"
            mean = float((2 * self.half_widths / self.scale).mean())
            width = Fact("width of an interval", format_number(mean), f"in standard deviations; {note.split('; ')[1]}")
        held = float(np.mean([each.value for each in rates]))
        return [Fact("intervals that hold the truth", f"{held:.2%}", note), width]

    def rows(self) -> list[tuple[str, str]]:
        """What the command prints: a name and a number with its interval each."""
        unit = "" if self.is_single else ", in standard deviations"
        rows = [
            (name + (unit if short in ERRORS else ""), _estimate_text(estimate, short))
            for name, short, estimate in zip(LONG_NAMES, ValueScores._fields, self.overall, strict=True)
        ]
        extra = [] if self.trust is None else self._interval_facts()
        return rows + [(fact.name, f"{fact.value} ({fact.note})") for fact in extra]

    def table(self) -> "Table":
        """A row for each value."""
        from vitrail.blocks import Table

        head = ("value", "MAE", "RMSE", "R²", "rank correlation", "mean", "pictures")
        rows = [
            (
                name,
                _estimate_text(scores.mae, "mae"),
                *(_number(scores.rmse.value, scores.rmse), _share(scores.r2.value)),
                *(_share(scores.rank_correlation.value), format_number(float(mean), scale)),
                f"{len(self.truth):,}",
            )
            for name, scores, mean, scale in zip(
                self.names, self.values, self.truth.mean(axis=0), self.scale, strict=True
            )
        ]
        return Table(head, rows, "Errors and means are in the unit of each value; intervals are of 95 %.")

    def caption(self, index: int) -> str:
        """What was predicted for a picture, and what is true; of many values, where it is farthest off."""
        order = np.argsort(-self._relative[index], kind="stable")[:MOST_IN_CAPTION]
        return "; ".join(
            f"{self.names[value]} {format_number(self.predicted[index, value], self.scale[value])} "
            f"(true {format_number(self.truth[index, value], self.scale[value])})"
            for value in (order if len(self.names) > MOST_IN_CAPTION else range(len(self.names)))
        )

    # Files ---------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """All numbers as JSON values; undefined ones are None."""
        return {
            "pictures": len(self.truth),
            **_estimate_facts(self.overall),
            "in_standard_deviations": not self.is_single,
            "values": [
                {"name": name, **_estimate_facts(each)} for name, each in zip(self.names, self.values, strict=True)
            ],
            "calibration": None if self.trust is None else self.trust.facts(),
            "intervals": self._coverage_facts(),
        }

    def _coverage_facts(self) -> dict[str, Any] | None:
        if self.half_widths is None:
            return None

        def describe(requested: float, rates: list[Rate], half_widths: Floats) -> dict[str, Any]:
            values = [
                {"name": name, "coverage": asdict(each), "width": 2 * float(half)}
                for name, each, half in zip(self.names, rates, half_widths, strict=True)
            ]
            return {"requested": requested, "values": values}

        curve = [describe(*point) for point in self.coverage_curve]
        return {**describe(self.requested, self.coverage_at(self.requested), self.half_widths), "curve": curve}

    def columns(self) -> tuple[str, ...]:
        """The columns of predictions.csv between the picture and the error."""
        kinds = ("true", "predicted", "difference", "low", "high")
        return kinds if self.is_single else tuple(f"{name}_{kind}" for name in self.names for kind in kinds)

    def predictions(self) -> Iterator[Sequence[Any]]:
        """The cells of these columns for each picture, in order; no bounds for a model that was not calibrated."""
        half = self.half_widths
        for truth, predicted in zip(self.truth, self.predicted, strict=True):
            bounds = [None] * len(truth), [None] * len(truth)
            if half is not None:
                bounds = (predicted - half).tolist(), (predicted + half).tolist()
            parts = (truth.tolist(), predicted.tolist(), (predicted - truth).tolist(), *bounds)
            yield [cell for cells in zip(*parts, strict=True) for cell in cells]

    def tables(self) -> dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]]:
        """values.csv: all scores of each value with their intervals; undefined ones are empty."""
        scores = [f"{name}{end}" for name in ValueScores._fields for end in ("", "_low", "_high")]
        head = ("value", *scores, "pictures", "coverage", "coverage_low", "coverage_high", "width")
        return {"values.csv": (head, self._value_rows())}

    def _value_rows(self) -> Iterator[Sequence[Any]]:
        rates = None if self.half_widths is None else self.coverage_at(self.requested)
        for index, (name, scores) in enumerate(zip(self.names, self.values, strict=True)):
            held: tuple[Any, ...] = (None,) * 4
            if rates is not None and self.half_widths is not None:
                one = rates[index]
                held = (one.value, one.low, one.high, 2 * float(self.half_widths[index]))
            yield (name, *(_known(number) for each in scores for number in each), len(self.truth), *held)

    # Pictures ------------------------------------------------------------------------------------------------------

    def drawings(self, title: str) -> dict[str, Drawing]:
        """Figures by the name of their file."""
        from vitrail.tasks import number_plots

        shown = number_plots.MOST_VALUES
        first = f" The first {shown} of {len(self.names)} values." if len(self.names) > shown else ""
        band = (
            "" if self.trust is None else f" The band holds the truth for {100 * self.requested:.4g} % of the pictures."
        )
        alt = "Predicted against true values"
        return {
            "predicted_values.png": Drawing(
                partial(number_plots.predicted_figure, self, title),
                alt,
                f"{alt}; on the line they are equal.{band}{first}",
            ),
            "errors_by_truth.png": Drawing(
                partial(number_plots.errors_by_truth_figure, self, title),
                "Errors against true values",
                f"Predicted minus true. The line is the mean error of pictures with similar truth.{first}",
            ),
            "error_histogram.png": Drawing(
                partial(number_plots.histogram_figure, self, title),
                "Histogram of the errors",
                f"Predicted minus true. The first and the last bar hold whatever lies beyond.{first}",
            ),
        }

    def blocks(self) -> "list[Block]":
        """What the numbers stand for."""
        from vitrail.blocks import Paragraph

        text = "R² is the share of the variation among the pictures that the predictions explain: 1 is perfect, and "
        text += "always answering the mean gives 0. The rank correlation asks only for the right order."
        if not self.is_single:
            text += " Units may differ from value to value, so numbers over all of them are in standard deviations of "
            text += "the training pictures; the table has each value in its own unit."
        bias = [
            f"{name} is predicted {'too high' if scores.bias.value > 0 else 'too low'} by "
            f"{_number(abs(scores.bias.value), scores.bias)}"
            for name, scores in zip(self.names, self.values, strict=True)
            if scores.bias.low > 0 or scores.bias.high < 0
        ]
        shown = "; ".join(bias[:MOST_IN_CAPTION]) + (
            f"; and {len(bias) - 3} more" if len(bias) > MOST_IN_CAPTION else ""
        )
        return [Paragraph(text, quiet=True), *([Paragraph(f"On average, {shown}.")] if bias else [])]

    def trust_blocks(self) -> "list[Block]":
        """What the page says of the calibration; nothing without one."""
        from vitrail.blocks import Curve, Numbers, Paragraph, Plot, Plots, Table

        if self.half_widths is None:
            return []
        curve, across = self.coverage_curve, "requested coverage"
        measured = [(level, float(np.mean([each.value for each in rates]))) for level, rates, _ in curve]
        unit = 1.0 if self.is_single else self.scale
        widths = [(level, float((2 * halves / unit).mean())) for level, _, halves in curve]
        requested = Curve("requested", [(level, level) for level, _, _ in curve], style="second")
        width = "Width of an interval" + ("" if self.is_single else ", in standard deviations")
        plots = [
            Plot("Intervals that hold the truth", [Curve("measured", measured), requested], across, percent=True),
            Plot(width, [Curve("measured", widths)], across),
        ]
        text = "An interval around a prediction holds the true value as often as requested, over all pictures."
        text += (
            "" if self.is_single else " The promise is for each value by itself; the curves are means over the values."
        )
        rates = self.coverage_at(self.requested)
        head = ("value", f"intervals that hold the truth, {100 * self.requested:.4g} % requested", "width")
        rows = [
            (name, f"{each.value:.2%} (95 %: {each.low:.2%} to {each.high:.2%})", format_number(2 * float(half)))
            for name, each, half in zip(self.names, rates, self.half_widths, strict=True)
        ]
        return [
            Numbers(self._interval_facts()),
            Paragraph(text),
            Plots(plots),
            *([] if self.is_single else [Table(head, rows)]),
        ]

    def worst(self, count: int) -> Integers:
        """The pictures farthest off in any value, in standard deviations, the worst first."""
        size = self._relative.max(axis=1)
        order = np.argsort(-size, kind="stable")[:count]
        return order[size[order] > 0]

    def best(self, count: int) -> Integers:
        """The most accurate picture of each of `count` parts of the range of the first value."""
        parts = np.array_split(np.argsort(self.truth[:, 0], kind="stable"), max(1, min(count, len(self.truth))))
        size = self._relative.max(axis=1)
        return np.array([part[size[part].argmin()] for part in parts], dtype=np.int64)[:count]

    def explained(self, index: int) -> int:
        """The value that is farthest off."""
        return int(self._relative[index].argmax())


def format_number(value: float, scale: float | None = None) -> str:
    """A number for people, with three digits of `scale`, such as the spread of the values; by default, of itself."""
    size = abs(value if scale is None else scale)
    if not math.isfinite(value):
        return "–"
    if not size or not SMALLEST <= size < LARGEST or abs(value) >= LARGEST:
        digits = 3 + math.floor(math.log10(abs(value) / size)) if size and value else 3
        return f"{value:.{min(max(digits, 3), 15)}g}"
    decimals = max(0, 2 - math.floor(math.log10(size)))
    return f"{round(float(value), decimals) + 0.0:,.{decimals}f}"  # + 0.0: there is no -0.00


def _number(value: float, estimate: Estimate) -> str:
    """An error with as many decimals as the interval that it belongs to."""
    return format_number(value, estimate.value or estimate.high)


def _share(value: float) -> str:
    return format_number(value, 0.1)


def _interval(estimate: Estimate, show: Any = None) -> str:
    if math.isnan(estimate.low):
        return "no interval for so few pictures"
    write = show or partial(_number, estimate=estimate)
    return f"95 %: {write(estimate.low)} to {write(estimate.high)}"


def _estimate_text(estimate: Estimate, name: str) -> str:
    show = partial(_number, estimate=estimate) if name in ERRORS else _share
    return f"{show(estimate.value)} ({_interval(estimate, show)})" if math.isfinite(estimate.value) else "–"


def _estimate_facts(scores: ValueScores) -> dict[str, Any]:
    fields = zip(ValueScores._fields, scores, strict=True)
    return {name: {key: _known(number) for key, number in each._asdict().items()} for name, each in fields}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None

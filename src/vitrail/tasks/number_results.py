"""What predictions of measured values are worth: the numbers, and how the command, the page and the files show them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.tasks.coverage import CURVE
from vitrail.tasks.number_metrics import ERRORS, ValueScores, format_number, measure_values
from vitrail.tasks.rates import Rate, rate
from vitrail.tasks.task import Drawing, Integers, Results
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.blocks import Block, Fact, Table
    from vitrail.tasks.number import NumberTrust

Floats = np.ndarray[Any, np.dtype[np.float64]]
LONG_NAMES = ("mean absolute error", "root mean squared error", "R²", "rank correlation", "bias")
MOST_IN_CAPTION = 3  # values


@dataclass(frozen=True, kw_only=True, eq=False)
class NumberResults(Results):
    """Results of (N, C) values, in the user's units. Of several values, whose units may differ, scores over all of them
    are in standard deviations of the training pictures.
    """

    galleries = ("Largest errors", "Small errors")
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

    @property
    def metrics(self) -> ValueScores:
        return self.overall

    def title(self) -> str:
        """The mean error, for the titles of figures."""
        return f"off by {self.overall.mae.text()}{'' if self.is_single else ' standard deviations'} on average"

    def verdict(self, model: str, pictures: str) -> str:
        """The result in one sentence."""
        mae, r2 = self.overall.mae, self.overall.r2
        unit, mean = ("", "") if self.is_single else (" standard deviations", "mean ")
        over = "" if self.is_single else f" over {len(self.names)} values"
        sure = mae.interval().replace("95 %:", "95 % interval:")
        sure = f" ({sure})" if sure else ""
        fit = "" if math.isnan(r2.value) else f"; {mean}R² {r2.value:.2f}"
        return f"{model} is off by {mae.text()}{unit} on average{over}{sure} for {pictures}{fit}."

    def headline(self) -> "list[Fact]":
        """The numbers that a reader wants first, with their intervals."""
        from vitrail.blocks import Fact

        mean = "" if self.is_single else f"mean over {len(self.names)} values"
        unit = "" if self.is_single else "in standard deviations"
        notes = [(mean, unit if row in ERRORS else "", score.interval()) for row, score in enumerate(self.overall)]
        facts = [
            Fact(name, score.text(), "; ".join(filter(None, note)))
            for name, score, note in zip(LONG_NAMES, self.overall, notes, strict=True)
        ][:-1]
        return facts + ([] if self.trust is None else self._interval_facts())

    def _interval_facts(self) -> "list[Fact]":
        from vitrail.blocks import Fact

        assert self.half_widths is not None
        rates, asked = self.coverage_at(self.requested), f"{100 * self.requested:.4g} % requested"
        held = float(np.mean([each.value for each in rates]))
        if self.is_single:
            sure, unit, divisor = f"95 %: {rates[0].low:.2%} to {rates[0].high:.2%}", "the unit of the value", 1.0
        else:
            sure, unit, divisor = f"mean over {len(self.names)} values", "standard deviations", self.scale
        mean = float((2 * self.half_widths / divisor).mean())
        return [
            Fact("intervals that hold the truth", f"{held:.2%}", f"{asked}; {sure}"),
            Fact("width of an interval", format_number(mean), f"in {unit}"),
        ]

    def rows(self) -> list[tuple[str, str]]:
        """What the command prints: a name and a number with its interval each."""
        unit = "" if self.is_single else ", in standard deviations"
        rows = [
            (name + (unit if row in ERRORS else ""), str(score))
            for row, (name, score) in enumerate(zip(LONG_NAMES, self.overall, strict=True))
        ]
        extra = [] if self.trust is None else self._interval_facts()
        return rows + [(fact.name, f"{fact.value} ({fact.note})") for fact in extra]

    def table(self) -> "Table":
        """A row for each value."""
        from vitrail.blocks import Table

        head = ("value", "MAE", "RMSE", "R²", "rank correlation", "mean", "pictures")
        rows = [
            (
                *(name, str(scores.mae), *(score.text() for score in scores[1:4])),
                *(format_number(float(mean), scale), f"{len(self.truth):,}"),
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
            **_facts(self.overall),
            "in_standard_deviations": not self.is_single,
            "values": [{"name": name, **_facts(each)} for name, each in zip(self.names, self.values, strict=True)],
            "calibration": None if self.trust is None else self.trust.facts(),
            "intervals": self._coverage_facts(),
        }

    def calibration_facts(self) -> dict[str, float]:
        """Means over the values; a calibration changes no prediction, and without one there are no intervals."""
        if self.half_widths is None:
            return {}
        held = [each.value for each in self.coverage_at(self.requested)]
        return {"coverage": float(np.mean(held)), "width": float((2 * self.half_widths).mean())}

    def calibration_rows(self) -> dict[str, str]:
        """The same as texts."""
        return {} if self.trust is None else {fact.name: fact.value for fact in self._interval_facts()}

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
            yield (name, *(number for each in scores for number in each.facts().values()), len(self.truth), *held)

    # Pictures ------------------------------------------------------------------------------------------------------

    def drawings(self, title: str) -> dict[str, Drawing]:
        """Figures by the name of their file."""
        from vitrail.tasks import number_plots

        asked = f"{100 * self.requested:.4g} %"
        band = "" if self.trust is None else f" The band is the interval for a coverage of {asked}."
        far = " Whatever lies far outside is drawn at the edge."
        most = number_plots.MOST_VALUES
        first = f" The first {most} of {len(self.names)} values." if len(self.names) > most else ""
        figures = {
            "predicted_values.png": (number_plots.predicted_figure, "Predicted against true values", band + far),
            "errors_by_truth.png": (
                number_plots.errors_by_truth_figure,
                "Errors, predicted minus true, against true values",
                " The line is their mean for pictures with similar true values." + far,
            ),
            "error_histogram.png": (
                number_plots.histogram_figure,
                "Histogram of the errors, predicted minus true",
                " The first and the last bar count whatever lies beyond, too.",
            ),
        }
        return {
            file: Drawing(partial(draw, self, title or alt.partition(",")[0].lower()), alt, f"{alt}.{about}{first}")
            for file, (draw, alt, about) in figures.items()
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
            f"{scores.bias.text(abs(scores.bias.value))}"
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

    def true_label(self, index: int) -> str:
        """The true values, as far as there is room."""
        pairs = zip(self.names, self.truth[index], self.scale, strict=True)
        texts = [f"{name} {format_number(value, scale)}" for name, value, scale in pairs]
        return ", ".join(texts[:MOST_IN_CAPTION]) + (", …" if len(texts) > MOST_IN_CAPTION else "")

    def sheet_caption(self, index: int) -> str:
        """The value that is farthest off."""
        value = self.explained(index)
        predicted, truth = (
            format_number(each[index, value], self.scale[value]) for each in (self.predicted, self.truth)
        )
        return f"{'' if self.is_single else f'{self.names[value]} '}{predicted}\ntrue: {truth}"

    def about_sheet(self, shown: int) -> str:
        """What the pictures on the sheet are."""
        return f"the {shown} of {counted(len(self.truth), 'picture')} that are farthest off" if shown else "no errors"

    def about_worst(self, shown: int) -> str:
        """What the first gallery shows."""
        values = "" if self.is_single else " in one of their values"
        return f"The predictions that are farthest off{values}." if shown else "No prediction is off."

    def about_best(self, shown: int) -> str:
        """What the second gallery shows."""
        return f"The most accurate prediction of each part of the range of {self.names[0]}."

    def explained(self, index: int) -> int:
        """The value that is farthest off."""
        return int(self._relative[index].argmax())


def _facts(scores: ValueScores) -> dict[str, Any]:
    return {name: score.facts() for name, score in scores._asdict().items()}

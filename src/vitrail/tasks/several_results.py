"""What a model of several labels is worth on some pictures: the numbers, and how to show them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from vitrail.blocks import Block, Curve, Fact, Numbers, Paragraph, Plot, Plots, Table
from vitrail.tasks.rates import Share
from vitrail.tasks.several_metrics import Array, Integers
from vitrail.tasks.several_scores import SetScores, SeveralScores
from vitrail.tasks.task import Compared, Drawing, Results, Right
from vitrail.wording import counted, cut

ORDERED, MOST_LABELS = 12, 40  # labels up to which a table keeps their order, and rows of a table
MOST_FACTS = 1000  # labels in the facts, the worst ones; labels.csv has them all
SHOWN = 5  # labels that a paragraph or a caption names
LABEL_COLUMNS = (
    *("label", "average_precision", "average_precision_low", "average_precision_high"),
    *("precision", "recall", "f1", "threshold", "pictures"),
)


class SeveralResults(SeveralScores, Results):
    """The numbers as texts, tables and figures, and the pictures behind them."""

    @property
    def metrics(self) -> SeveralScores:
        return self

    def right(self) -> Right:
        return Right("exactly right", "exact_match", self.correct)

    def compared(self) -> Compared:
        found, spread = self.mean_average_precision, self.spread
        return Compared("mean average precision", Share(value=found, low=spread.mean_low, high=spread.mean_high))

    # Texts ----------------------------------------------------------------------------------------------------------

    def verdict(self, model: str, pictures: str) -> str:
        found, spread = self.mean_average_precision, self.spread
        exact = f"finds exactly the labels of {self.exact_match.value:.2%} of"
        if math.isnan(found):
            return f"{model} {exact} {pictures}, none of which has a label."
        interval = f"95 % interval: {spread.mean_low:.2%} to {spread.mean_high:.2%}"
        return f"{model} reaches a mean average precision of {found:.2%} ({interval}) on {pictures}, and {exact} them."

    def title(self) -> str:
        return f"mean average precision {_number(self.mean_average_precision, '.1%')} of {len(self.truth):,}"

    def headline(self) -> list[Fact]:
        spread, exact = self.spread, self.exact_match
        gap = "how far probabilities are from frequencies"
        if self.trust is not None:
            gap += f"; {self.uncalibrated_error:.2%} without the calibration"
        note = _interval(spread.mean_low, spread.mean_high)
        return [
            Fact("mean average precision", _percent(self.mean_average_precision), note),
            Fact("exactly right", f"{exact.value:.2%}", _interval(exact.low, exact.high)),
            Fact("calibration error", f"{self.calibration_error:.2%}", gap),
        ]

    def rows(self) -> list[tuple[str, str]]:
        spread, exact, sets = self.spread, self.exact_match, self.sets
        before = f" ({self.uncalibrated_error:.2%} without the calibration)" if self.trust is not None else ""
        rows = [
            ("mean average precision", _between(self.mean_average_precision, spread.mean_low, spread.mean_high)),
            ("exactly right", _between(exact.value, exact.low, exact.high)),
            ("micro F1", _number(self.hits.micro_f1)),
            ("macro F1", _number(self.hits.macro_f1)),
            ("Hamming loss", f"{self.hamming:.4f}"),
            ("calibration error", f"{self.calibration_error:.2%}{before}"),
        ]
        if sets is not None:
            name = f"labels missed at a coverage of {sets.requested:g}"
            rows += [(name, _missed(sets)), ("labels in a set", f"{sets.sizes.mean():.2f}")]
        return rows

    def table(self) -> Table:
        count = len(self.names)
        labels, note = range(count), ""
        if count > ORDERED:
            labels, note = self.worst_labels()[:MOST_LABELS], "The worst label first."
        if count > MOST_LABELS:
            note = f"The {MOST_LABELS} worst of {count:,} labels, the worst first; labels.csv has all of them."
        rows = [
            (
                self.names[label],
                _between(self.average_precision[label], self.spread.low[label], self.spread.high[label]),
                *(_number(column[label]) for column in (self.hits.precision, self.hits.recall, self.hits.f1)),
                f"{self.hits.support[label]:,}",
            )
            for label in labels
        ]
        return Table(("label", "average precision", "precision", "recall", "F1", "pictures"), rows, note)

    def blocks(self) -> list[Block]:
        numbers = [
            Fact("micro F1", _number(self.hits.micro_f1), "all labels together"),
            Fact("macro F1", _number(self.hits.macro_f1), "the mean over labels"),
            Fact("Hamming loss", f"{self.hamming:.4f}", "wrong answers among all labels of all pictures"),
            Fact("NLL", f"{self.losses.mean():.4f}", "for each label"),
        ]
        hits = self.hits
        texts = {
            "Most often missed": self._most(hits.support - hits.hits, hits.support),
            "Most often predicted wrongly": self._most(hits.predictions - hits.hits, hits.predictions),
        }
        return [Numbers(numbers), *(Paragraph(f"{name}: {text}.") for name, text in texts.items() if text)]

    def _most(self, counts: Integers, totals: Integers) -> str:
        order = [int(label) for label in np.argsort(-counts, kind="stable")[:SHOWN] if counts[label]]
        return ", ".join(f"{cut(self.names[label], 32)} ({counts[label]:,} of {totals[label]:,})" for label in order)

    def trust_blocks(self) -> list[Block]:
        if self.trust is None:
            return []
        note = f"{self.uncalibrated_error:.2%} without the calibration"
        facts = [Fact("calibration error", f"{self.calibration_error:.2%}", note)]
        if (sets := self.sets) is None:
            return [Numbers(facts)]
        found = sets.facts()
        note = f"at most {100 * (1 - sets.requested):.4g} % promised"
        if found["missed"] is not None:
            note += f"; {_interval(found['missed_low'], found['missed_high'])}"
        facts.append(Fact("labels that sets miss", _percent(found["missed"]), note))
        facts.append(Fact("labels in a set", f"{found['mean_size']:.2f}", "on average"))
        curve, across = [each.facts() for each in self.curve], "requested coverage"
        promised = Curve("promised", [(each["requested"], 1 - each["requested"]) for each in curve], style="second")
        measured = [(each["requested"], each["missed"]) for each in curve if each["missed"] is not None]
        sizes = Curve("measured", [(each["requested"], each["mean_size"]) for each in curve])
        plots = [
            Plot("Labels that sets miss", [Curve("measured", measured), promised], across, percent=True),
            Plot("Labels in a set, on average", [sizes], across),
        ]
        text = (
            "A label set holds every label that is probable enough for the sets to miss, on average over pictures that "
        )
        text += "have labels, at most the promised share of a picture's labels. It may be empty."
        return [Numbers(facts), Paragraph(text), Plots(plots)]

    # Files ----------------------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        spread, sets, labels = self.spread, self.sets, range(len(self.names))
        if len(self.names) > MOST_FACTS:
            labels = self.worst_labels()[:MOST_FACTS]
        return {
            "map": _json(self.mean_average_precision),
            "map_low": _json(spread.mean_low),
            "map_high": _json(spread.mean_high),
            "exact_match": asdict(self.exact_match),
            "micro_f1": _json(self.hits.micro_f1),
            "macro_f1": _json(self.hits.macro_f1),
            "hamming_loss": self.hamming,
            "nll": float(self.losses.mean()),
            "calibration_error": self.calibration_error,
            "calibration_error_before": self.uncalibrated_error,
            "calibration": None if self.trust is None else self.trust.facts(),
            "label_sets": None if sets is None else {**sets.facts(), "curve": [each.facts() for each in self.curve]},
            "num_labels": len(self.names),
            "labels": [dict(zip(LABEL_COLUMNS, self._label_row(label), strict=True)) for label in labels],
        }

    def calibration_facts(self) -> dict[str, float]:
        shares = {"exact_match": self.exact_match.value, "micro_f1": self.hits.micro_f1}
        return {"nll": float(self.losses.mean()), "calibration_error": self.calibration_error, **shares}

    def calibration_rows(self) -> dict[str, str]:
        return {
            "calibration error": f"{self.calibration_error:.2%}",
            "NLL": f"{self.losses.mean():.4f}",
            "exactly right": f"{self.exact_match.value:.2%}",
            "micro F1": _number(self.hits.micro_f1),
        }

    def _label_row(self, label: int) -> tuple[Any, ...]:
        hits, spread = self.hits, self.spread
        columns = (self.average_precision, spread.low, spread.high, hits.precision, hits.recall, hits.f1)
        numbers = (_json(column[label]) for column in (*columns, self.thresholds))
        return (self.names[label], *numbers, int(hits.support[label]))

    def columns(self) -> tuple[str, ...]:
        return (*("true", "predicted", "scores", "missed", "extra", "correct", "loss"), "set_size", "missed_in_set")

    def predictions(self) -> Iterator[Sequence[Any]]:
        held = None if self.sets is None else self.sets.held
        for index, (truth, predicted) in enumerate(zip(self.truth, self.predicted, strict=True)):
            best = self._ordered(index, predicted)
            yield (
                self._join(np.flatnonzero(truth)),
                self._join(best),
                "|".join(f"{self.shares[index, label]:.6f}" for label in best),
                self._join(np.flatnonzero(truth & ~predicted)),
                self._join(np.flatnonzero(predicted & ~truth)),
                bool(self.correct[index]),
                float(self.losses[index]),
                None if held is None else int(held[index].sum()),
                None if held is None else self._join(np.flatnonzero(truth & ~held[index])),
            )

    def _join(self, labels: Iterable[int]) -> str:
        return "|".join(self.names[label] for label in labels)

    def _ordered(self, index: int, chosen: Array) -> list[int]:
        """Some labels of a picture, the most probable first."""
        return [int(label) for label in np.argsort(-self.odds[index], kind="stable") if chosen[label]]

    def tables(self) -> dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]]:
        found, names = self.confusion, self.names
        pairs = ((row, column) for row, column in zip(*np.nonzero(found), strict=True) if row != column)
        return {
            "labels.csv": (LABEL_COLUMNS, map(self._label_row, range(len(names)))),
            "confusion.csv": (
                ("true", "wrongly_predicted", "pictures"),
                ((names[row], names[column], int(found[row, column])) for row, column in pairs),
            ),
        }

    def drawings(self, title: str) -> dict[str, Drawing]:
        from vitrail.tasks.several_plots import confusion_figure, curves_figure, precision_figure

        found = self.mean_average_precision
        return {
            "average_precision.png": Drawing(
                partial(precision_figure, self, title),
                f"Average precision of {counted(len(self.names), 'label')}; their mean is {_percent(found)}.",
                "With 95 % intervals; the number of pictures behind each label.",
            ),
            "precision_recall.png": Drawing(
                partial(curves_figure, self, title),
                "Precision over recall for some labels, from the worst to the best, and for all together.",
                "Dots: where the thresholds are.",
            ),
            "label_confusion.png": Drawing(
                partial(confusion_figure, self, title),
                "Which labels are wrongly predicted for pictures that have which labels.",
                "Rows are true labels: how often the label of a column was wrongly predicted beside them, or, on the "
                "diagonal, how often their own was missed.",
            ),
        }

    # Pictures -------------------------------------------------------------------------------------------------------

    def worst(self, count: int) -> Integers:
        wrong = np.flatnonzero(~self.correct)
        return wrong[np.argsort(-self.losses[wrong], kind="stable")[:count]]

    def best(self, count: int) -> Integers:
        """For each label in turn, the picture with the lowest loss among those that have it and are right."""
        right = np.flatnonzero(self.correct)
        right = right[np.argsort(self.losses[right], kind="stable")]
        chosen: list[int] = []
        for label in range(len(self.names)):
            own = right[self.truth[right, label] & ~np.isin(right, chosen)]
            chosen += own[:1].tolist()
        return np.array(chosen[:count], dtype=np.int64)

    def caption(self, index: int) -> str:
        truth, predicted = self.truth[index], self.predicted[index]
        best, missed = self._ordered(index, predicted), self._ordered(index, truth & ~predicted)
        texts = [f"{self._scored(index, label)}{'' if truth[label] else ' (wrong)'}" for label in best]
        text = f"predicted {_listed(texts) or 'no label'}"
        missing = _listed([f"{self.names[label]} ({self.shares[index, label]:.0%})" for label in missed])
        return f"{text}; missed {missing}" if missed else text

    def _scored(self, index: int, label: int) -> str:
        return f"{self.names[label]} {self.shares[index, label]:.0%}"

    def sheet_caption(self, index: int) -> str:
        predicted = [self.names[label] for label in self._ordered(index, self.predicted[index])]
        return f"{', '.join(predicted) or 'no label'}\ntrue: {self.true_label(index)}"

    def true_label(self, index: int) -> str:
        return ", ".join(self.names[int(label)] for label in np.flatnonzero(self.truth[index])) or "no label"

    def about_sheet(self, shown: int) -> str:
        which = f", the {shown} with the highest loss" if self._wrong > shown else ""
        return f"{self._wrong:,} of {len(self.truth):,} not exactly right{which}"

    def about_worst(self, shown: int) -> str:
        if not self._wrong:
            return "Every picture has exactly its labels."
        which = "; these have the highest loss" if self._wrong > shown else ""
        what = "lacks a label or has one too many" if self._wrong == 1 else "lack a label or have one too many"
        return f"{counted(self._wrong, 'picture')} {what}{which}."

    def about_best(self, shown: int) -> str:
        return "Pictures with exactly their labels." if shown else "No picture has exactly its labels."

    @property
    def _wrong(self) -> int:
        return int((~self.correct).sum())

    def explained(self, index: int) -> int:
        """Of a mistake the label that is most wrong, otherwise the most probable one."""
        if self.correct[index]:
            return int(self.odds[index].argmax())
        wrong = self.predicted[index] != self.truth[index]
        errors = np.where(self.truth[index], -self.odds[index], self.odds[index])
        return int(np.where(wrong, errors, -np.inf).argmax())


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more


def _json(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else float(value)


def _number(value: float, form: str = ".3f") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}"


def _percent(value: float | None) -> str:
    return "–" if value is None else _number(value, ".2%")


def _interval(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"95 %: {low:.2%} to {high:.2%}"


def _between(value: float, low: float, high: float) -> str:
    interval = _interval(low, high)
    return f"{_percent(value)} ({interval})" if interval else _percent(value)


def _missed(sets: SetScores) -> str:
    found = sets.facts()
    return "–" if found["missed"] is None else _between(found["missed"], found["missed_low"], found["missed_high"])

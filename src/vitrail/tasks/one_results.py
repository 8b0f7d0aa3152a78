"""What a model of one class per picture is worth, and how to show it: accuracy, calibration, confusions, label sets."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import numpy as np

from vitrail.blocks import Block, Curve, Fact, Numbers, Paragraph, Plot, Plots, Table
from vitrail.tasks.one_metrics import Integers, SetScores
from vitrail.tasks.one_plots import MOST_NAMES, confusion_figure, reliability_figure
from vitrail.tasks.one_scores import SET_COLUMNS, OneScores, json_number, worst_first
from vitrail.tasks.rates import Rate, interval_text, rate_text
from vitrail.tasks.task import Compared, Drawing, Results, Right
from vitrail.wording import cut

CLASS_COLUMNS = ("class", "precision", "recall", "f1", "pictures", *SET_COLUMNS)
MOST_FACTS = 1000  # classes in metrics.json, the worst ones; classes.csv has them all
MOST_CELLS = 100  # classes up to which metrics.json holds the confusion matrix; confusion.csv has every pair
MOST_MISTAKES = 100  # pairs of classes in metrics.json
MOST_ROWS = 40  # of a table
ORDERED = 12  # classes up to which a table keeps the data's order
NAMED = 5  # mistakes, or classes with the lowest recall, that a sentence names


class OneResults(OneScores, Results):
    """The numbers as texts, tables and figures. Where classes are uneven, their recalls come before the accuracy."""

    def right(self) -> Right:
        return Right("top-1 accuracy", "top1", self.answers.correct)

    def compared(self) -> Compared:
        return Compared("top-1 accuracy", self.metrics.top1)

    # Texts -----------------------------------------------------------------------------------------------------------

    def verdict(self, model: str, pictures: str) -> str:
        top1 = self.metrics.top1
        text = f"{model} classifies {top1.value:.2%} of {pictures} correctly "
        text += f"(95 % interval: {top1.low:.2%} to {top1.high:.2%})."
        uneven = f" The classes are uneven: their mean recall is {self.metrics.balanced_accuracy:.2%}."
        return text + (uneven if self.is_uneven else "")

    def title(self) -> str:
        return f"top-1 {self.metrics.top1.value:.1%} of {self.metrics.top1.total:,}"

    def headline(self) -> list[Fact]:
        metrics, gap, facts = self.metrics, "how far confidence is from accuracy", list[Fact]()
        if self.is_uneven:
            note = "the mean recall of the classes, which are uneven"
            facts.append(Fact("balanced accuracy", f"{metrics.balanced_accuracy:.2%}", note))
            name, recall = self.lowest_recalls(1)[0]
            facts.append(Fact("lowest recall", f"{recall:.2%}", name))
        facts.append(Fact("top-1 accuracy", f"{metrics.top1.value:.2%}", interval_text(metrics.top1)))
        if metrics.top5:
            facts.append(Fact("top-5 accuracy", f"{metrics.top5.value:.2%}", interval_text(metrics.top5)))
        if self.trust is not None:
            gap += f"; {self.uncalibrated.calibration.error:.2%} without the calibration"
        return [*facts, Fact("calibration error", f"{metrics.calibration.error:.2%}", gap)]

    def rows(self) -> list[tuple[str, str]]:
        metrics, sets = self.metrics, self.label_sets
        balanced = [("balanced accuracy", f"{metrics.balanced_accuracy:.2%}")]
        if self.is_uneven:
            balanced.append(("lowest recalls", self._recall_text()))
        rows = [
            *(balanced if self.is_uneven else []),
            ("top-1", _spaced(metrics.top1)),
            *([("top-5", _spaced(metrics.top5))] if metrics.top5 else []),
            ("macro F1", f"{metrics.macro_f1:.3f}"),
            *([] if self.is_uneven else balanced),
            ("calibration error", self._calibration_text("  ")),
            ("NLL, Brier", f"{metrics.nll:.4f}, {metrics.brier:.4f}"),
        ]
        if sets is not None:
            held = f"{_spaced(sets.coverage)} hold the truth, {sets.mean_size:.2f} labels each"
            rows.append((f"{100 * sets.requested:.4g} % label sets", held))
        return rows

    def summary(self) -> list[tuple[str, str]]:
        metrics = self.metrics
        balanced = [("balanced accuracy", f"{metrics.balanced_accuracy:.2%}")]
        return [
            *([*balanced, ("lowest recalls", self._recall_text())] if self.is_uneven else []),
            ("top-1 accuracy", rate_text(metrics.top1)),
            *([("top-5 accuracy", rate_text(metrics.top5))] if metrics.top5 else []),
            ("macro F1", f"{metrics.macro_f1:.3f}"),
            *([] if self.is_uneven else balanced),
            ("calibration error", self._calibration_text(" ")),
        ]

    def remarks(self) -> list[str]:
        worst = [f"{truth} → {other} {count}×" for truth, other, count in self.confusions(NAMED)]
        return ["most frequent mistakes (true → predicted): " + ", ".join(worst)] if worst else []

    def _calibration_text(self, gap: str) -> str:
        error, before = self.metrics.calibration.error, self.uncalibrated.calibration.error
        return f"{error:.2%}" + (f"{gap}({before:.2%} without the calibration)" if self.trust is not None else "")

    def _recall_text(self) -> str:
        return ", ".join(f"{cut(name, 32)} {recall:.1%}" for name, recall in self.lowest_recalls(NAMED))

    # Tables ----------------------------------------------------------------------------------------------------------

    def table(self) -> Table:
        """Precision, recall and F1; of many classes the worst ones, the worst first."""
        scores, count = self.metrics.classes, len(self.names)
        indices, note = range(count), ""
        if count > ORDERED:
            indices, note = worst_first(scores.f1.tolist())[:MOST_ROWS], "The worst class first."
        if count > MOST_ROWS:
            note = f"The {MOST_ROWS} worst of {count:,} classes, the worst first; classes.csv has all of them."
        columns = (scores.precision, scores.recall, scores.f1)
        rows = [
            (self.names[index], *(_number(column[index]) for column in columns), f"{scores.support[index]:,}")
            for index in indices
        ]
        return Table(("class", "precision", "recall", "F1", "pictures"), rows, note)

    def short_table(self, most: int) -> Table:
        """Every class, or the worst ones if there are many; with the label sets of each."""
        scores, places, title = self.metrics.classes, list(range(len(self.names))), "class"
        if len(places) > most:
            places = worst_first(scores.f1.tolist())[:most]
            title = f"the {most} worst of {len(self.names):,} classes"
        sets = ("coverage", "set size") if self.label_sets is not None else ()
        rows: list[list[str]] = []
        for place in places:
            numbers = (scores.precision[place], scores.recall[place], scores.f1[place])
            held = self.class_sets(place)
            numbers += (held.coverage, held.mean_size) if sets else ()
            rows.append([self.names[place], *map(_number, numbers), f"{scores.support[place]:,}"])
        return Table((title, "precision", "recall", "F1", *sets, "pictures"), rows)

    def columns(self) -> tuple[str, ...]:
        return ("true", "predicted", "score", "true_score", "correct", "set_size", "in_set")

    def predictions(self) -> Iterator[Sequence[Any]]:
        names, answers, sets = self.names, self.answers, self.label_sets
        in_sets = (None, None) if sets is None else (sets.sizes, answers.rank < sets.sizes)
        numbers = (answers.confidence, np.exp(-answers.losses), answers.correct, *in_sets)
        return zip(
            [names[truth] for truth in self.targets],
            [names[predicted] for predicted in answers.predicted],
            *([None] * len(self.targets) if column is None else column.tolist() for column in numbers),
            strict=True,
        )

    def tables(self) -> dict[str, tuple[Sequence[str], Iterable[Sequence[Any]]]]:
        confusion, names = self.metrics.confusion, self.names
        pairs = zip(confusion.targets, confusion.predicted, confusion.counts.tolist(), strict=True)
        return {
            "classes.csv": (CLASS_COLUMNS, (list(self.class_facts(index).values()) for index in range(len(names)))),
            "confusion.csv": (
                ("true", "predicted", "pictures"),
                ((names[truth], names[predicted], count) for truth, predicted, count in pairs),
            ),
        }

    def facts(self) -> dict[str, Any]:
        metrics = self.metrics
        return {
            "top1": asdict(metrics.top1),
            "top5": None if metrics.top5 is None else asdict(metrics.top5),
            "balanced_accuracy": json_number(metrics.balanced_accuracy),
            "macro_f1": json_number(metrics.macro_f1),
            "nll": metrics.nll,
            "brier": metrics.brier,
            "calibration_error": metrics.calibration.error,
            "calibration_error_before": self.uncalibrated.calibration.error,
            "calibration": None if self.trust is None else self.trust.facts(),
            "label_sets": self.set_facts(),
        }

    def details(self) -> dict[str, Any]:
        """Of very many classes, only the worst, and no matrix."""
        indices = range(len(self.names))
        if len(indices) > MOST_FACTS:
            indices = worst_first(self.metrics.classes.f1.tolist())[:MOST_FACTS]
        mistakes = self.confusions(MOST_MISTAKES)
        return {
            "num_classes": len(self.names),
            "classes": [self.class_facts(index) for index in indices],
            "confusion": np.asarray(self.metrics.confusion).tolist() if len(self.names) <= MOST_CELLS else None,
            "mistakes": [dict(zip(("true", "predicted", "count"), mistake, strict=True)) for mistake in mistakes],
        }

    def calibration_facts(self) -> dict[str, float]:
        return {"nll": self.metrics.nll, "calibration_error": self.metrics.calibration.error}

    def calibration_rows(self) -> dict[str, str]:
        return {"calibration error": f"{self.metrics.calibration.error:.2%}", "NLL": f"{self.metrics.nll:.4f}"}

    # The page --------------------------------------------------------------------------------------------------------

    def blocks(self) -> list[Block]:
        metrics = self.metrics
        numbers = [
            Fact("macro F1", _number(metrics.macro_f1)),
            Fact("balanced accuracy", _number(metrics.balanced_accuracy, ".2%")),
            Fact("NLL", f"{metrics.nll:.4f}"),
            Fact("Brier score", f"{metrics.brier:.4f}"),
        ]
        pairs = [(cut(truth, 32), cut(predicted, 32), count) for truth, predicted, count in self.confusions(NAMED)]
        worst = ", ".join(f"{truth} → {predicted} ({count:,}×)" for truth, predicted, count in pairs)
        text = [Paragraph(f"Most frequent mistakes (true → predicted): {worst}.")] if worst else []
        return [Numbers(numbers), *text]

    def trust_blocks(self) -> list[Block]:
        if self.trust is None:
            return []
        before, sets = self.uncalibrated.calibration.error, self.label_sets
        note = f"{before:.2%} without the calibration"
        facts = [Fact("calibration error", f"{self.metrics.calibration.error:.2%}", note)]
        if sets is None:
            return [Numbers(facts)]
        note = f"{100 * sets.requested:.4g} % requested; {interval_text(sets.coverage)}"
        facts.append(Fact("label sets that hold the truth", f"{sets.coverage.value:.2%}", note))
        facts.append(Fact("labels in a set", f"{sets.mean_size:.2f}", "on average"))
        return [Numbers(facts), *self._set_blocks(), self._set_table(sets)]

    def _set_blocks(self) -> list[Block]:
        """The coverage curve."""
        curve, across = self.coverage_curve(), "requested coverage"
        measured = Curve("measured", [(sets.requested, sets.coverage.value) for sets in curve])
        requested = Curve("requested", [(sets.requested, sets.requested) for sets in curve], style="second")
        sizes = Curve("measured", [(sets.requested, sets.mean_size) for sets in curve])
        plots = [
            Plot("Sets that hold the truth", [measured, requested], across, percent=True),
            Plot("Labels in a set, on average", [sizes], across),
        ]
        text = "A label set holds as many of the most likely labels as it takes to hold the truth as often as "
        text += "requested, over all pictures. It always holds one, so a coverage below the accuracy is exceeded."
        return [Paragraph(text), Plots(plots)]

    def _set_table(self, sets: SetScores) -> Table:
        """How often the sets of each class hold the truth, the worst class first if there are many."""
        indices = list(range(len(self.names)))
        note = "The promise is for all pictures together, not for each class."
        if len(indices) > MOST_ROWS:
            indices = worst_first([self.class_sets(index).coverage for index in indices])[:MOST_ROWS]
            note += f" The {MOST_ROWS} worst of {len(self.names):,} classes; classes.csv has all of them."
        rows = [
            (self.names[index], *(("–", "–") if held is None else (rate_text(held), f"{size:.2f}")))
            for index, held, size in ((index, sets.classes[index], sets.class_sizes[index]) for index in indices)
        ]
        head = ("class", f"label sets that hold the truth, {100 * sets.requested:.4g} % requested", "labels in a set")
        return Table(head, rows, note)

    def drawings(self, title: str) -> dict[str, Drawing]:
        metrics, names, many = self.metrics, self.names, len(self.names) > MOST_NAMES
        matrix = title or ("most confused classes" if many else "confusion matrix")
        return {
            "confusion_matrix.png": Drawing(
                partial(confusion_figure, metrics.confusion, names, matrix),
                f"Which of {len(names):,} classes are taken for which; {metrics.top1.value:.1%} are correct.",
                "confusion.csv has every pair." if many else "Rows are the truth, shaded by their share.",
            ),
            "reliability.png": Drawing(
                partial(reliability_figure, metrics.calibration, title or "reliability"),
                f"Accuracy against confidence in bins; the calibration error is {metrics.calibration.error:.1%}.",
                "Bars on the dashed line: the model's confidence matches its accuracy.",
            ),
        }

    # Pictures --------------------------------------------------------------------------------------------------------

    @cached_property
    def _wrong(self) -> int:
        return int((~self.answers.correct).sum())

    def worst(self, count: int) -> Integers:
        """The mistakes with the highest loss."""
        wrong = np.flatnonzero(~self.answers.correct)
        return wrong[np.argsort(-self.answers.losses[wrong], kind="stable")[:count]]

    def best(self, count: int) -> Integers:
        """The first picture of some classes, as far apart as possible."""
        right = np.flatnonzero(self.answers.correct)
        _, first = np.unique(self.targets[right], return_index=True)
        return right[first[:: max(1, len(first) // count)][:count]]

    def about_sheet(self, shown: int) -> str:
        which = f", the {shown} with the highest loss" if self._wrong > shown else ""
        return f"{self._wrong:,} of {len(self.targets):,} misclassified{which}"

    def about_worst(self, shown: int) -> str:
        if self._wrong < 2:
            return "One picture is misclassified." if self._wrong else "No picture is misclassified."
        return f"{self._wrong:,} pictures are misclassified" + (
            "; these have the highest loss." if self._wrong > shown else "."
        )

    def about_best(self, shown: int) -> str:
        return "One picture each of some classes." if shown else "No picture is classified correctly."

    def true_label(self, index: int) -> str:
        return self.names[int(self.targets[index])]

    def caption(self, index: int) -> str:
        answers, target = self.answers, self.targets[index]
        text = f"predicted {self.names[answers.predicted[index]]} ({answers.confidence[index]:.0%})"
        if answers.predicted[index] == target:
            return text
        return f"{text}, true class {self.names[target]} ({np.exp(-answers.losses[index]):.0%})"

    def sheet_caption(self, index: int) -> str:
        predicted = self.names[self.answers.predicted[index]]
        return f"{self.answers.confidence[index]:.0%} {predicted}\ntrue: {self.true_label(index)}"

    def explained(self, index: int) -> int:
        return int(self.answers.predicted[index])


def _number(value: float, form: str = ".3f") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}"


def _spaced(rate: Rate) -> str:
    return f"{rate.value:.2%}  ({interval_text(rate)})"

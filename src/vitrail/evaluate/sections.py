"""The parts of a report that an evaluation and its data can tell by themselves."""

import math
from collections.abc import Sequence

import numpy as np

from vitrail.data.source import Dataset
from vitrail.evaluate import plots
from vitrail.evaluate.evaluation import Evaluation
from vitrail.evaluate.metrics import Rate
from vitrail.evaluate.records import confusions
from vitrail.evaluate.report import Block, Drawings, Fact, Facts, Paragraph, Picture, Section, Table, encode_figure
from vitrail.evaluate.robustness import Robustness

MOST_CLASSES = 40  # rows of a table
SPLITS = ("train", "val", "test")
ORDERED = 12  # classes up to which a table keeps the data's order


def verdict(model: str, found: Evaluation) -> str:
    """The result in one line."""
    top1 = found.metrics.top1
    where = "pictures" if found.split == "all" else f"{found.split} pictures"
    return (
        f"{model} names {top1.value:.2%} of {top1.total:,} {where} of {found.data} right "
        f"(95 % interval: {top1.low:.2%} to {top1.high:.2%})."
    )


def headline(found: Evaluation) -> list[Fact]:
    """The numbers that a reader wants first."""
    metrics = found.metrics
    facts = [_rate_fact("top-1 accuracy", metrics.top1)]
    facts += [_rate_fact("top-5 accuracy", metrics.top5)] if metrics.top5 else []
    gap = "how far confidence is from accuracy"
    return [*facts, Fact(name="calibration error", value=f"{metrics.calibration.error:.2%}", note=gap)]


def _rate_fact(name: str, rate: Rate) -> Fact:
    return Fact(name=name, value=f"{rate.value:.2%}", note=f"95 %: {rate.low:.2%} to {rate.high:.2%}")


def data_section(dataset: Dataset, split_from: str = "") -> Section:
    """How many pictures of which class are in which split, and where the splits are from."""
    splits = sorted(dataset.splits, key=lambda name: (*SPLITS, name).index(name))
    counts = {name: np.bincount(dataset.split(name).labels, minlength=len(dataset.classes)) for name in splits}
    total = sum(int(count.sum()) for count in counts.values())
    shown = range(min(len(dataset.classes), MOST_CLASSES))
    rows = [(dataset.classes[place], *(f"{count[place]:,}" for count in counts.values())) for place in shown]
    rows.append(("all classes", *(f"{count.sum():,}" for count in counts.values())))
    hidden = len(dataset.classes) - len(shown)
    made = (
        " Splits that the data did not have were made by vitrail, from names and a seed." if dataset.made_split else ""
    )
    said = f" Splits: {split_from}." if split_from else made
    return Section(
        title="Data",
        blocks=[
            Paragraph(text=f"{dataset.name}: {total:,} pictures, {len(dataset.classes):,} classes.{said}"),
            Table(
                head=("class", *counts),
                rows=rows,
                note=f"The first {len(shown)} classes; {hidden:,} more are counted in the last row." if hidden else "",
            ),
        ],
    )


def result_section(found: Evaluation, curves: Robustness | None = None) -> Section:
    """The numbers, the classes, and what is taken for what."""
    metrics = found.metrics
    numbers = [
        Fact(name="macro F1", value=_number(metrics.macro_f1)),
        Fact(name="balanced accuracy", value=_share(metrics.balanced_accuracy)),
        Fact(name="NLL", value=f"{metrics.nll:.4f}"),
        Fact(name="Brier score", value=f"{metrics.brier:.4f}"),
        Fact(name="throughput", value=f"{found.images_per_second:,.0f}", note="pictures per second, file to answer"),
    ]
    blocks: list[Block] = [Facts(facts=numbers), _class_table(found)]
    worst = [f"{_brief(truth)} → {_brief(said)} ({count:,}×)" for truth, said, count in confusions(found, 5)]
    if worst:
        blocks.append(Paragraph(text="Most frequent mistakes (true → said): " + ", ".join(worst) + "."))
    if found.broken:
        blocks.append(Paragraph(text=f"{len(found.broken):,} pictures could not be read and were left out."))
    blocks.append(Drawings(pictures=_drawings(found)))
    if curves is not None:
        figure = plots.robustness_figure(curves, "accuracy under corruptions")
        told = f"Accuracy against severity of {', '.join(curves.curves)}; mean {curves.mean:.1%}."
        blocks.append(Drawings(pictures=[encode_figure(figure, told)]))
    return Section(title=f"Results on {found.split}", blocks=blocks)


def _drawings(found: Evaluation) -> list[Picture]:
    metrics = found.metrics
    return [
        encode_figure(
            plots.confusion_figure(metrics.confusion, found.classes, "confusion matrix"),
            f"Confusion matrix of {len(found.classes)} classes; {metrics.top1.value:.1%} lie on the diagonal.",
            "Rows are the truth, shaded by their share; the diagonal is right.",
        ),
        encode_figure(
            plots.reliability_figure(metrics.calibration, "reliability"),
            f"Accuracy against confidence in bins; the calibration error is {metrics.calibration.error:.1%}.",
            "Bars on the dashed line: the model is as sure as it is right.",
        ),
    ]


def _class_table(found: Evaluation) -> Table:
    """Precision, recall and F1; of many classes the worst ones, the worst first."""
    scores, count = found.metrics.classes, len(found.classes)
    places = list(range(count))
    note = ""
    if count > ORDERED:
        places = worst_first(scores.f1.tolist())[:MOST_CLASSES]
        note = "The worst class first."
        if count > MOST_CLASSES:
            note = f"The {MOST_CLASSES} worst of {count:,} classes, the worst first; metrics.json has all of them."
    rows = [
        (
            found.classes[place],
            _number(scores.precision[place]),
            _number(scores.recall[place]),
            _number(scores.f1[place]),
            f"{scores.support[place]:,}",
        )
        for place in places
    ]
    return Table(head=("class", "precision", "recall", "F1", "pictures"), rows=rows, note=note)


def worst_first(values: Sequence[float]) -> list[int]:
    """The places of the values from the lowest to the highest, what is undefined last."""
    return sorted(range(len(values)), key=lambda place: (math.isnan(values[place]), values[place]))


def _brief(name: str, length: int = 32) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2%}"

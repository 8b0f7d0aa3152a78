"""The sections of a report about the data, the training and the results."""

import math
from collections.abc import Sequence

import numpy as np

from vitrail.blocks import (
    Block,
    Curve,
    Drawings,
    EncodedPicture,
    Fact,
    Numbers,
    Paragraph,
    Plot,
    Plots,
    Section,
    Table,
    encode_figure,
)
from vitrail.data.check.findings import CheckRecord
from vitrail.data.source import Dataset
from vitrail.data.split import SPLITS
from vitrail.evaluation import plots
from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.output import confusions, worst_first
from vitrail.evaluation.robustness import Robustness
from vitrail.tasks.rates import Rate
from vitrail.training.curves import Choice, EpochRow, best_row
from vitrail.wording import SHARES, counted, cut, show_metric

MOST_CLASSES = 40  # rows of a table
ORDERED = 12  # classes up to which a table keeps the data's order


def verdict(model: str, measurement: Measurement) -> str:
    """The result in one line."""
    top1 = measurement.metrics.top1
    where = "pictures" if measurement.split == "all" else f"{measurement.split} pictures"
    return (
        f"{model} classifies {top1.value:.2%} of {top1.total:,} {where} of {measurement.data} correctly "
        f"(95 % interval: {top1.low:.2%} to {top1.high:.2%})."
        + (" Val also chose the epoch, so this is slightly optimistic." if measurement.chose_epoch else "")
    )


def headline(measurement: Measurement) -> list[Fact]:
    """The numbers that a reader wants first."""
    metrics, gap = measurement.metrics, "how far confidence is from accuracy"
    caution = "; val also chose the epoch" if measurement.chose_epoch else ""
    facts = [Fact("top-1 accuracy", f"{metrics.top1.value:.2%}", interval_text(metrics.top1) + caution)]
    if metrics.top5:
        facts.append(Fact("top-5 accuracy", f"{metrics.top5.value:.2%}", interval_text(metrics.top5)))
    if measurement.trust is not None:
        gap += f"; {measurement.uncalibrated.calibration.error:.2%} without the calibration"
    return [*facts, Fact("calibration error", f"{metrics.calibration.error:.2%}", gap)]


def calibration_text(measurement: Measurement) -> str:
    """The calibration error, and what it is without the calibration, in one line."""
    error, before = measurement.metrics.calibration.error, measurement.uncalibrated.calibration.error
    return f"{error:.2%}" + (f" ({before:.2%} without the calibration)" if measurement.trust is not None else "")


def rate_text(rate: Rate) -> str:
    """A rate with its interval, in one line."""
    return f"{rate.value:.2%} ({interval_text(rate)})"


def interval_text(rate: Rate) -> str:
    """Its interval only."""
    return f"95 %: {rate.low:.2%} to {rate.high:.2%}"


def data_section(dataset: Dataset, split_from: str = "", check: Sequence[Block] = ()) -> Section:
    """How many pictures of which class are in which split, where the splits are from, and what a check found."""
    splits = sorted(dataset.splits, key=lambda name: (*SPLITS, name).index(name))
    counts = {name: np.bincount(dataset.split(name).labels, minlength=len(dataset.classes)) for name in splits}
    total = sum(int(count.sum()) for count in counts.values())
    rows = [
        (name, *(f"{count[index]:,}" for count in counts.values()))
        for index, name in enumerate(dataset.classes[:MOST_CLASSES])
    ]
    hidden = len(dataset.classes) - len(rows)
    note = f"The first {len(rows)} classes; {hidden:,} more are counted in the last row." if hidden else ""
    rows.append(("all classes", *(f"{count.sum():,}" for count in counts.values())))
    origin = " Splits that the data did not have were made by vitrail, from names and a seed."
    origin = f" Splits: {split_from}." if split_from else origin if dataset.made_split else ""
    text = f"{dataset.name}: {total:,} pictures, {len(dataset.classes):,} classes.{origin}"
    return Section("Data", [Paragraph(text), Table(("class", *counts), rows, note), *check])


def check_blocks(record: CheckRecord | None, data: str) -> list[Block]:
    """What the data check found before training, or that there was none."""
    if record is None:
        text = f"These pictures were not checked before training; vitrail data check {data} looks for damaged "
        return [Paragraph(text + "files, duplicates, the same picture in two splits, and imbalance.")]
    looked = f"The data check before training looked at {record.pictures:,} pictures"
    notes = len(record.findings) - len(record.serious)
    rest = f" and made {counted(notes, 'note')}" if notes else ""
    if not record.serious:
        return [Paragraph(f"{looked}, found no problems{rest}.")]
    rows = [
        (item.finding, item.severity, f"{item.count:,}", f"{item.example} {item.detail}".strip())
        for item in record.serious
    ]
    head, note = ("finding", "severity", "count", "example"), f"vitrail data check {data} names all of them."
    text = f"{looked}{rest}; training went ahead despite these findings:"
    return [Paragraph(text), Table(head, rows, note, texts=(1, 3))]


def training_section(rows: Sequence[EpochRow], rates: dict[str, float], took: str, choice: Choice) -> Section:
    """Loss, the metric that chose the epoch, and learning rates; `rates` are the highest of each group of weights."""
    losses = [(row.epoch, row.val_loss) for row in rows if row.val_loss is not None]
    rights = [(row.epoch, row.metrics[choice.metric]) for row in rows if choice.metric in row.metrics]
    curves = [Curve("training", [(row.epoch, row.train_loss) for row in rows])]
    curves += [Curve("validation", losses, style="second")] if losses else []
    plots, text = [Plot("Loss", curves)], f"{took}."
    if rights:
        kept = best_row([row for row in rows if choice.metric in row.metrics], choice)
        best = (kept.epoch, kept.metrics[choice.metric])
        curve = Curve("validation", rights, style="second", mark=best)
        plots.append(Plot(f"Validation {choice.title}", [curve], percent=choice.metric in SHARES))
        when = f"after epoch {best[0]}" if best[0] else "of the head before fine-tuning"
        text += f" The best validation {choice.title} is {show_metric(choice.metric, best[1])}, {when}"
        chose = ", whose weights were kept: val chose the epoch, so its figures are slightly optimistic."
        text += chose if len(rights) > 1 else "."
    if losses and rows[-1].train_loss > losses[-1][1]:
        text += (
            " The training loss is above validation's because it is averaged over each epoch, on augmented pictures."
        )
    plots.append(Plot("Learning rate", _rate_curves(rows, rates), named=True))
    return Section("Training", [Paragraph(text), Plots(plots)])


def _rate_curves(rows: Sequence[EpochRow], rates: dict[str, float]) -> list[Curve]:
    """One curve per group of weights: a row holds the highest rate, and the others keep their share of it."""
    highest = max(rates.values())
    return [
        Curve(name, [(row.epoch, row.lr * rate / highest if highest else row.lr) for row in rows], style)
        for (name, rate), style in zip(rates.items(), ("first", "second", "third", "fourth"), strict=False)
    ]


def result_section(measurement: Measurement, curves: Robustness | None = None) -> Section:
    """The numbers, the classes, and the confusions."""
    metrics, blocks = measurement.metrics, list[Block]()
    if measurement.chose_epoch:
        which = "val, which is among them," if measurement.split == "all" else measurement.split
        text = f"A caution: {which} also chose the epoch whose weights were kept, so these figures are slightly "
        text += "optimistic; only pictures that played no part in training are a fair test."
        blocks.append(Paragraph(text))
    numbers = [
        Fact("macro F1", _number(metrics.macro_f1)),
        Fact("balanced accuracy", _number(metrics.balanced_accuracy, ".2%")),
        Fact("NLL", f"{metrics.nll:.4f}"),
        Fact("Brier score", f"{metrics.brier:.4f}"),
    ]
    if (speed := measurement.images_per_second) is not None:
        numbers.append(Fact("throughput", f"{speed:,.0f}", "pictures per second, from file to prediction"))
    blocks += [Numbers(numbers), _class_table(measurement)]
    pairs = [(cut(truth, 32), cut(predicted, 32), count) for truth, predicted, count in confusions(measurement, 5)]
    worst = [f"{truth} → {predicted} ({count:,}×)" for truth, predicted, count in pairs]
    if worst:
        blocks.append(Paragraph("Most frequent mistakes (true → predicted): " + ", ".join(worst) + "."))
    if measurement.broken:
        was = "was" if len(measurement.broken) == 1 else "were"
        text = f"{counted(len(measurement.broken), 'picture')} could not be read and {was} left out."
        blocks.append(Paragraph(text))
    blocks.append(Drawings([_confusion_drawing(measurement), _reliability_drawing(measurement)]))
    if curves is not None:
        alt = f"Accuracy against severity of {', '.join(curves.curves)}; mean {curves.mean:.1%}."
        title = "accuracy under corruptions"
        blocks.append(Drawings([encode_figure(lambda theme: plots.robustness_figure(curves, title, theme), alt)]))
    return Section(f"Results on {measurement.split}", blocks)


def _confusion_drawing(measurement: Measurement) -> EncodedPicture:
    """The confusion matrix; of many classes, the most confused ones."""
    metrics, many = measurement.metrics, len(measurement.classes) > plots.MOST_NAMES
    title = "most confused classes" if many else "confusion matrix"
    return encode_figure(
        lambda theme: plots.confusion_figure(metrics.confusion, measurement.classes, title, theme),
        f"Which of {len(measurement.classes):,} classes are taken for which; {metrics.top1.value:.1%} are correct.",
        "confusion.csv has every pair." if many else "Rows are the truth, shaded by their share.",
    )


def _reliability_drawing(measurement: Measurement) -> EncodedPicture:
    calibration = measurement.metrics.calibration
    return encode_figure(
        lambda theme: plots.reliability_figure(calibration, "reliability", theme),
        f"Accuracy against confidence in bins; the calibration error is {calibration.error:.1%}.",
        "Bars on the dashed line: the model's confidence matches its accuracy.",
    )


def _class_table(measurement: Measurement) -> Table:
    """Precision, recall and F1; of many classes the worst ones, the worst first."""
    scores, count = measurement.metrics.classes, len(measurement.classes)
    indices, note = range(count), ""
    if count > ORDERED:
        indices, note = worst_first(scores.f1.tolist())[:MOST_CLASSES], "The worst class first."
    if count > MOST_CLASSES:
        note = f"The {MOST_CLASSES} worst of {count:,} classes, the worst first; classes.csv has all of them."
    columns = (scores.precision, scores.recall, scores.f1)
    rows = [
        (measurement.classes[index], *(_number(column[index]) for column in columns), f"{scores.support[index]:,}")
        for index in indices
    ]
    return Table(("class", "precision", "recall", "F1", "pictures"), rows, note)


def _number(value: float, form: str = ".3f") -> str:
    return "–" if math.isnan(value) else f"{value:{form}}"

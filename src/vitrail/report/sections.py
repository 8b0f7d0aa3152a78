"""The sections of a report about the data, the training and the results."""

import math
from collections.abc import Sequence

import numpy as np

from vitrail.data.check.findings import CheckRecord
from vitrail.data.source import Dataset
from vitrail.evaluation import plots
from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.metrics import Rate
from vitrail.evaluation.output import confusions, worst_first
from vitrail.evaluation.robustness import Robustness
from vitrail.report.blocks import (
    Block,
    Curve,
    Drawings,
    Fact,
    Facts,
    Paragraph,
    Picture,
    Plot,
    Plots,
    Section,
    Table,
    encode_figure,
)
from vitrail.training.curves import EpochRow, best_row

MOST_CLASSES = 40  # rows of a table
SPLITS = ("train", "val", "test")
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


def chosen_by(measurement: Measurement) -> str:
    """Why the numbers of a split that chose the epoch are optimistic."""
    which = "val, which is among them," if measurement.split == "all" else measurement.split
    return (
        f"A caution: {which} also chose the epoch whose weights were kept, so these figures are slightly optimistic; "
        "only pictures that played no part in training are a fair test."
    )


def headline(measurement: Measurement) -> list[Fact]:
    """The numbers that a reader wants first."""
    metrics = measurement.metrics
    facts = [_rate_fact("top-1 accuracy", metrics.top1, "val also chose the epoch" if measurement.chose_epoch else "")]
    facts += [_rate_fact("top-5 accuracy", metrics.top5)] if metrics.top5 else []
    gap = "how far confidence is from accuracy"
    if measurement.trust is not None:
        gap += f"; {measurement.uncalibrated.calibration.error:.2%} without the calibration"
    return [*facts, Fact(name="calibration error", value=f"{metrics.calibration.error:.2%}", note=gap)]


def calibration_text(measurement: Measurement) -> str:
    """The calibration error, and what it is without the calibration, in one line."""
    error, before = measurement.metrics.calibration.error, measurement.uncalibrated.calibration.error
    return f"{error:.2%}" + (f" ({before:.2%} without the calibration)" if measurement.trust is not None else "")


def _rate_fact(name: str, rate: Rate, caution: str = "") -> Fact:
    interval = interval_text(rate)
    return Fact(name=name, value=f"{rate.value:.2%}", note=f"{interval}; {caution}" if caution else interval)


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
    shown = range(min(len(dataset.classes), MOST_CLASSES))
    rows = [(dataset.classes[index], *(f"{count[index]:,}" for count in counts.values())) for index in shown]
    rows.append(("all classes", *(f"{count.sum():,}" for count in counts.values())))
    hidden = len(dataset.classes) - len(shown)
    made = (
        " Splits that the data did not have were made by vitrail, from names and a seed." if dataset.made_split else ""
    )
    origin = f" Splits: {split_from}." if split_from else made
    return Section(
        title="Data",
        blocks=[
            Paragraph(text=f"{dataset.name}: {total:,} pictures, {len(dataset.classes):,} classes.{origin}"),
            Table(
                head=("class", *counts),
                rows=rows,
                note=f"The first {len(shown)} classes; {hidden:,} more are counted in the last row." if hidden else "",
            ),
            *check,
        ],
    )


def check_blocks(record: CheckRecord | None, data: str) -> list[Block]:
    """What the data check found before training, or that there was none."""
    if record is None:
        text = f"These pictures were not checked before training; vitrail data check {data} looks for damaged "
        return [Paragraph(text=text + "files, duplicates, the same picture in two splits, and imbalance.")]
    looked = f"The data check before training looked at {record.pictures:,} pictures"
    notes = len(record.findings) - len(record.serious)
    rest = "" if not notes else " and made 1 note" if notes == 1 else f" and made {notes} notes"
    if not record.serious:
        return [Paragraph(text=f"{looked}, found no problems{rest}.")]
    rows = [
        (item.finding, item.severity, f"{item.count:,}", f"{item.example} {item.detail}".strip())
        for item in record.serious
    ]
    return [
        Paragraph(text=f"{looked}{rest}; training went ahead despite these findings:"),
        Table(
            head=("finding", "severity", "count", "example"),
            rows=rows,
            note=f"vitrail data check {data} names all of them.",
            texts=(1, 3),
        ),
    ]


def result_section(measurement: Measurement, curves: Robustness | None = None) -> Section:
    """The numbers, the classes, and the confusions."""
    metrics = measurement.metrics
    numbers = [
        Fact(name="macro F1", value=_number(metrics.macro_f1)),
        Fact(name="balanced accuracy", value=_share(metrics.balanced_accuracy)),
        Fact(name="NLL", value=f"{metrics.nll:.4f}"),
        Fact(name="Brier score", value=f"{metrics.brier:.4f}"),
    ]
    if (speed := measurement.images_per_second) is not None:
        numbers.append(
            Fact(name="throughput", value=f"{speed:,.0f}", note="pictures per second, from file to prediction")
        )
    blocks: list[Block] = [Paragraph(text=chosen_by(measurement))] if measurement.chose_epoch else []
    blocks += [Facts(facts=numbers), _class_table(measurement)]
    worst = [
        f"{_brief(truth)} → {_brief(predicted)} ({count:,}×)" for truth, predicted, count in confusions(measurement, 5)
    ]
    if worst:
        blocks.append(Paragraph(text="Most frequent mistakes (true → predicted): " + ", ".join(worst) + "."))
    if measurement.broken:
        blocks.append(Paragraph(text=f"{len(measurement.broken):,} pictures could not be read and were left out."))
    blocks.append(Drawings(pictures=_drawings(measurement)))
    if curves is not None:
        alt = f"Accuracy against severity of {', '.join(curves.curves)}; mean {curves.mean:.1%}."
        drawn = encode_figure(
            lambda theme: plots.robustness_figure(curves, "accuracy under corruptions", theme),
            alt,
        )
        blocks.append(Drawings(pictures=[drawn]))
    return Section(title=f"Results on {measurement.split}", blocks=blocks)


def _drawings(measurement: Measurement) -> list[Picture]:
    metrics, many = measurement.metrics, len(measurement.classes) > plots.MOST_NAMES
    title = "most confused classes" if many else "confusion matrix"
    caption = "confusion.csv has every pair." if many else "Rows are the truth, shaded by their share."
    return [
        encode_figure(
            lambda theme: plots.confusion_figure(metrics.confusion, measurement.classes, title, theme),
            f"Which of {len(measurement.classes):,} classes are taken for which; {metrics.top1.value:.1%} are correct.",
            caption,
        ),
        encode_figure(
            lambda theme: plots.reliability_figure(metrics.calibration, "reliability", theme),
            f"Accuracy against confidence in bins; the calibration error is {metrics.calibration.error:.1%}.",
            "Bars on the dashed line: the model's confidence matches its accuracy.",
        ),
    ]


def _class_table(measurement: Measurement) -> Table:
    """Precision, recall and F1; of many classes the worst ones, the worst first."""
    scores, count = measurement.metrics.classes, len(measurement.classes)
    indices = list(range(count))
    note = ""
    if count > ORDERED:
        indices = worst_first(scores.f1.tolist())[:MOST_CLASSES]
        note = "The worst class first."
        if count > MOST_CLASSES:
            note = f"The {MOST_CLASSES} worst of {count:,} classes, the worst first; classes.csv has all of them."
    rows = [
        (
            measurement.classes[index],
            _number(scores.precision[index]),
            _number(scores.recall[index]),
            _number(scores.f1[index]),
            f"{scores.support[index]:,}",
        )
        for index in indices
    ]
    return Table(head=("class", "precision", "recall", "F1", "pictures"), rows=rows, note=note)


def _brief(name: str, length: int = 32) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2%}"


def training_section(rows: Sequence[EpochRow], rates: dict[str, float], took: str) -> Section:
    """Loss, validation accuracy and learning rates; `rates` are the highest of each group of weights."""
    losses = [(row.epoch, row.val_loss) for row in rows if row.val_loss is not None]
    rights = [(row.epoch, row.val_accuracy) for row in rows if row.val_accuracy is not None]
    curves = [Curve(name="training", points=[(row.epoch, row.train_loss) for row in rows])]
    curves += [Curve(name="validation", points=losses, style="second")] if losses else []
    plots = [Plot(title="Loss", curves=curves)]
    text = f"{took}."
    if rights:
        kept = best_row([row for row in rows if row.val_accuracy is not None])
        best = (kept.epoch, kept.val_accuracy or 0.0)
        curve = Curve(name="validation", points=rights, style="second", mark=best)
        plots.append(Plot(title="Validation accuracy", curves=[curve], percent=True))
        when = f"after epoch {best[0]}" if best[0] else "of the head before fine-tuning"
        text += f" The best validation accuracy is {best[1]:.2%}, {when}"
        text += (
            ", whose weights were kept: val chose the epoch, so its figures are slightly optimistic."
            if len(rights) > 1
            else "."
        )
    if losses and rows[-1].train_loss > losses[-1][1]:
        text += (
            " The training loss is above validation's because it is averaged over each epoch, on augmented pictures."
        )
    plots.append(Plot(title="Learning rate", curves=_rate_curves(rows, rates), named=True))
    return Section(title="Training", blocks=[Paragraph(text=text), Plots(plots=plots)])


def _rate_curves(rows: Sequence[EpochRow], rates: dict[str, float]) -> list[Curve]:
    """One curve per group of weights: a row holds the highest rate, and the others keep their share of it."""
    highest = max(rates.values())
    styles = ("first", "second", "third", "fourth")
    return [
        Curve(
            name=name,
            points=[(row.epoch, row.lr * rate / highest if highest else row.lr) for row in rows],
            style=style,
        )
        for (name, rate), style in zip(rates.items(), styles, strict=False)
    ]

"""The parts of a report that an evaluation and its data can tell by themselves."""

import math
from collections.abc import Sequence

import numpy as np

from vitrail.data.check.record import CheckRecord
from vitrail.data.source import Dataset
from vitrail.evaluation import plots
from vitrail.evaluation.evaluation import Evaluation
from vitrail.evaluation.metrics import Rate
from vitrail.evaluation.records import confusions, worst_first
from vitrail.evaluation.report import Block, Drawings, Fact, Facts, Paragraph, Picture, Section, Table, encode_figure
from vitrail.evaluation.robustness import Robustness

MOST_CLASSES = 40  # rows of a table
SPLITS = ("train", "val", "test")
ORDERED = 12  # classes up to which a table keeps the data's order


def verdict(model: str, found: Evaluation) -> str:
    """The result in one line."""
    top1 = found.metrics.top1
    where = "pictures" if found.split == "all" else f"{found.split} pictures"
    return (
        f"{model} classifies {top1.value:.2%} of {top1.total:,} {where} of {found.data} correctly "
        f"(95 % interval: {top1.low:.2%} to {top1.high:.2%})."
        + (" Val also chose the epoch, so this is a little too good." if found.chose_epoch else "")
    )


def chosen_by(found: Evaluation) -> str:
    """Why numbers of a split that chose the epoch are no fair ones."""
    which = "val, which is among them," if found.split == "all" else found.split
    return (
        f"A caution: {which} also chose the epoch whose weights were kept, so these figures are a little too good; "
        "only pictures that had no part in training are a fair test."
    )


def headline(found: Evaluation) -> list[Fact]:
    """The numbers that a reader wants first."""
    metrics = found.metrics
    facts = [_rate_fact("top-1 accuracy", metrics.top1, "val also chose the epoch" if found.chose_epoch else "")]
    facts += [_rate_fact("top-5 accuracy", metrics.top5)] if metrics.top5 else []
    gap = "how far confidence is from accuracy"
    return [*facts, Fact(name="calibration error", value=f"{metrics.calibration.error:.2%}", note=gap)]


def _rate_fact(name: str, rate: Rate, caution: str = "") -> Fact:
    interval = f"95 %: {rate.low:.2%} to {rate.high:.2%}"
    return Fact(name=name, value=f"{rate.value:.2%}", note=f"{interval}; {caution}" if caution else interval)


def data_section(dataset: Dataset, split_from: str = "", check: Sequence[Block] = ()) -> Section:
    """How many pictures of which class are in which split, where the splits are from, and what a check found."""
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
            *check,
        ],
    )


def check_blocks(record: CheckRecord | None, data: str) -> list[Block]:
    """What the data check found before the training, or that there was none."""
    if record is None:
        text = f"These pictures were not checked before the training; vitrail data check {data} looks for damaged "
        return [Paragraph(text=text + "files, duplicates, the same picture in two splits, and imbalance.")]
    looked = f"The data check before the training looked at {record.pictures:,} pictures"
    notes = len(record.findings) - len(record.serious)
    rest = "" if not notes else " and made 1 note" if notes == 1 else f" and made {notes} notes"
    if not record.serious:
        return [Paragraph(text=f"{looked}, found nothing wrong{rest}.")]
    rows = [
        (item.finding, item.severity, f"{item.count:,}", f"{item.example} {item.detail}".strip())
        for item in record.serious
    ]
    return [
        Paragraph(text=f"{looked}{rest}; the training went on with what it found:"),
        Table(
            head=("found", "severity", "how many", "for example"),
            rows=rows,
            note=f"vitrail data check {data} names all of them.",
            texts=(1, 3),
        ),
    ]


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
    blocks: list[Block] = [Paragraph(text=chosen_by(found))] if found.chose_epoch else []
    blocks += [Facts(facts=numbers), _class_table(found)]
    worst = [f"{_brief(truth)} → {_brief(said)} ({count:,}×)" for truth, said, count in confusions(found, 5)]
    if worst:
        blocks.append(Paragraph(text="Most frequent mistakes (true → said): " + ", ".join(worst) + "."))
    if found.broken:
        blocks.append(Paragraph(text=f"{len(found.broken):,} pictures could not be read and were left out."))
    blocks.append(Drawings(pictures=_drawings(found)))
    if curves is not None:
        alt = f"Accuracy against severity of {', '.join(curves.curves)}; mean {curves.mean:.1%}."
        drawn = encode_figure(
            lambda theme: plots.robustness_figure(curves, "accuracy under corruptions", theme),
            alt,
        )
        blocks.append(Drawings(pictures=[drawn]))
    return Section(title=f"Results on {found.split}", blocks=blocks)


def _drawings(found: Evaluation) -> list[Picture]:
    metrics, many = found.metrics, len(found.classes) > plots.MOST_NAMES
    title = "confused most" if many else "confusion matrix"
    caption = "confusion.csv has every pair." if many else "Rows are the truth, shaded by their share."
    return [
        encode_figure(
            lambda theme: plots.confusion_figure(metrics.confusion, found.classes, title, theme),
            f"Which of {len(found.classes):,} classes are taken for which; {metrics.top1.value:.1%} are right.",
            caption,
        ),
        encode_figure(
            lambda theme: plots.reliability_figure(metrics.calibration, "reliability", theme),
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
            note = f"The {MOST_CLASSES} worst of {count:,} classes, the worst first; classes.csv has all of them."
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


def _brief(name: str, length: int = 32) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2%}"

"""The sections of a report about the data, the training and the results."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from vitrail.blocks import Block, Curve, Drawings, Fact, Numbers, Paragraph, Plot, Plots, Section, Table, encode_figure
from vitrail.data.check.findings import CheckRecord
from vitrail.data.label_kinds import Labels
from vitrail.data.source import Dataset
from vitrail.data.split import SPLITS
from vitrail.evaluation import plots
from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.robustness import Robustness
from vitrail.registry import labels_of
from vitrail.tasks.task import make_task
from vitrail.training.curves import Choice, EpochRow, best_row
from vitrail.wording import SHARES, counted, cut, name_metric, show_metric

STYLES = ("first", "second", "third", "fourth")  # of curves
MOST_CLASSES = 40  # rows of a table
MOST_VALUES = 4  # numbers whose distribution is drawn
MOST_BINS = 20  # of such a drawing


def verdict(model: str, measurement: Measurement) -> str:
    """The result in one line."""
    where = "pictures" if measurement.split == "all" else f"{measurement.split} pictures"
    pictures = f"{len(measurement.targets):,} {where} of {measurement.data}"
    caution = " Val also chose the epoch, so this is slightly optimistic." if measurement.chose_epoch else ""
    return measurement.results.verdict(model, pictures) + caution


def headline(measurement: Measurement) -> list[Fact]:
    """The numbers that a reader wants first."""
    facts = measurement.results.headline()
    if facts and measurement.chose_epoch:
        note = "val also chose the epoch"
        facts[0] = facts[0]._replace(note=f"{facts[0].note}; {note}" if facts[0].note else note)
    return facts


def data_section(dataset: Dataset, split_from: str = "", check: Sequence[Block] = ()) -> Section:
    """How many pictures of which class are in which split, where the splits are from, and what a check found.

    Of numbers, which values they have.
    """
    splits = sorted(dataset.splits, key=lambda name: (*SPLITS, name).index(name))
    labels = {name: dataset.split(name).labels for name in splits}
    total = sum(map(len, labels.values()))
    origin = " Splits that the data did not have were made by vitrail, from names and a seed."
    origin = f" Splits: {split_from}." if split_from else origin if dataset.made_split else ""
    text = f"{dataset.name}: {total:,} pictures, {dataset.described_outputs}.{origin}"
    has_values = labels_of(dataset.task) == "values"
    blocks = _value_blocks(dataset, labels) if has_values else [_count_table(dataset, labels)]
    return Section("Data", [Paragraph(text), *blocks, *check])


def nouns_of(dataset: Dataset) -> tuple[str, str]:
    """What an output stands for: class, classes."""
    return make_task(dataset.task).noun


def _count_table(dataset: Dataset, labels: Mapping[str, Labels]) -> Table:
    """The pictures with each class or label; with several labels, a picture counts more than once, or not at all."""
    noun, nouns = nouns_of(dataset)
    counts = {name: dataset.labelling.counts(each, len(dataset.classes)) for name, each in labels.items()}
    rows = [
        (name, *(f"{count[index]:,}" for count in counts.values()))
        for index, name in enumerate(dataset.classes[:MOST_CLASSES])
    ]
    hidden = len(dataset.classes) - len(rows)
    note = f"The first {len(rows)} {nouns}; {hidden:,} more are counted in the last row." if hidden else ""
    if any(each.ndim > 1 for each in labels.values()):
        rows.append(("no label", *(f"{int((~each.any(axis=1)).sum()):,}" for each in labels.values())))
        rows.append(("all pictures", *(f"{len(each):,}" for each in labels.values())))
    else:
        rows.append((f"all {nouns}", *(f"{count.sum():,}" for count in counts.values())))
    return Table((noun, *counts), rows, note)


def _value_blocks(dataset: Dataset, labels: Mapping[str, Labels]) -> list[Block]:
    """The values of each split: their mean and spread, the least and the largest, and how they are distributed."""
    rows = [
        (name, *(_value_text(each[:, index]) for each in labels.values()))
        for index, name in enumerate(dataset.classes[:MOST_CLASSES])
    ]
    rows.append(("pictures", *(f"{len(each):,}" for each in labels.values())))
    hidden = len(dataset.classes) - len(rows) + 1
    note = "Mean ± standard deviation (least to largest)."
    note += f" The first {MOST_CLASSES} values; there are {hidden:,} more." if hidden else ""
    plots = [
        Plot(f"How {cut(name, 32)} is distributed", _histogram(labels, index), across=cut(name, 32), percent=True)
        for index, name in enumerate(dataset.classes[:MOST_VALUES])
    ]
    return [Table((nouns_of(dataset)[0], *labels), rows, note), Plots(plots)]


def _value_text(values: Labels) -> str:
    if not len(values):
        return "–"
    numbers = values.astype(np.float64)
    return f"{numbers.mean():.4g} ± {numbers.std():.3g} ({numbers.min():.4g} to {numbers.max():.4g})"


def _histogram(labels: Mapping[str, Labels], index: int) -> list[Curve]:
    """The share of each split's pictures in equal steps of a value."""
    values = np.concatenate([each[:, index] for each in labels.values()]).astype(float)
    edges = np.histogram_bin_edges(values, min(MOST_BINS, max(4, round(len(values) ** 0.5 / 2))))
    middles = [float(f"{middle:.4g}") for middle in (edges[:-1] + edges[1:]) / 2]
    curves: list[Curve] = []
    for (name, each), style in zip(labels.items(), STYLES, strict=False):
        counts, _ = np.histogram(each[:, index].astype(float), edges)
        curves.append(Curve(name, list(zip(middles, (counts / max(len(each), 1)).tolist(), strict=True)), style))
    return curves


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
    """Loss, validation metrics and learning rates; `rates` are the highest of each group of weights."""
    losses = [(row.epoch, row.val_loss) for row in rows if row.val_loss is not None]
    evaluated = [row for row in rows if row.val_loss is not None and row.metrics]
    curves = [Curve("training", [(row.epoch, row.train_loss) for row in rows])]
    curves += [Curve("validation", losses, style="second")] if losses else []
    plots, text = [Plot("Loss", curves)], f"{took}."
    if evaluated:
        kept = best_row(evaluated, choice)
        plots += _metric_plots(evaluated, choice, kept)
        when = f"after epoch {kept.epoch}" if kept.epoch else "of the head before fine-tuning"
        best = show_metric(
            choice.metric, kept.val_loss or 0.0 if choice.metric == "loss" else kept.metrics[choice.metric]
        )
        text += f" The best validation {choice.title} is {best}, {when}"
        chose = ", whose weights were kept: val chose the epoch, so its figures are slightly optimistic."
        text += chose if len(evaluated) > 1 else "."
    if losses and rows[-1].train_loss > losses[-1][1]:
        text += (
            " The training loss is above validation's because it is averaged over each epoch, on augmented pictures."
        )
    plots.append(Plot("Learning rate", _rate_curves(rows, rates), named=True))
    return Section("Training", [Paragraph(text), Plots(plots)])


def _metric_plots(evaluated: Sequence[EpochRow], choice: Choice, kept: EpochRow) -> list[Plot]:
    """A plot of each validation metric, the one that chose the epoch first, where its best value is marked."""
    plots: list[Plot] = []
    for name in sorted(kept.metrics, key=lambda name: name != choice.metric):
        points = [(row.epoch, row.metrics[name]) for row in evaluated if math.isfinite(row.metrics.get(name, math.nan))]
        mark = (kept.epoch, kept.metrics[name]) if name == choice.metric else None
        curve = Curve("validation", points, style="second", mark=mark)
        if points:
            plots.append(Plot(f"Validation {name_metric(name)}", [curve], percent=name in SHARES))
    return plots


def _rate_curves(rows: Sequence[EpochRow], rates: dict[str, float]) -> list[Curve]:
    """One curve per group of weights: a row holds the highest rate, and the others keep their share of it."""
    highest = max(rates.values())
    return [
        Curve(name, [(row.epoch, row.lr * rate / highest if highest else row.lr) for row in rows], style)
        for (name, rate), style in zip(rates.items(), STYLES, strict=False)
    ]


def result_section(measurement: Measurement, curves: Robustness | None = None) -> Section:
    """The numbers, the classes, and what else the task shows."""
    results, blocks = measurement.results, list[Block]()
    if measurement.chose_epoch:
        which = "val, which is among them," if measurement.split == "all" else measurement.split
        text = f"A caution: {which} also chose the epoch whose weights were kept, so these figures are slightly "
        text += "optimistic; only pictures that played no part in training are a fair test."
        blocks.append(Paragraph(text))
    numbers, others = take_numbers(results.blocks())
    if (averaged := measurement.averaged) is not None:
        name, text = averaged.results.summary()[0]
        value, _, interval = text.partition(" (")
        note = f"{averaged.described_views}{f' ({interval}' if interval else ''}"
        numbers.append(Fact(f"{name} with tta", value, note))
    if (speed := measurement.images_per_second) is not None:
        numbers.append(Fact("throughput", f"{speed:,.0f}", "pictures per second, from file to prediction"))
    blocks += [Numbers(numbers), results.table(), *others]
    if measurement.broken:
        was = "was" if len(measurement.broken) == 1 else "were"
        text = f"{counted(len(measurement.broken), 'picture')} could not be read and {was} left out."
        blocks.append(Paragraph(text))
    blocks.append(Drawings([encode_figure(*drawing) for drawing in results.drawings("").values()]))
    if curves is not None:
        name = curves.metric.removeprefix("top-1 ")
        alt = f"{name[0].upper()}{name[1:]} against severity of {', '.join(curves.curves)}; mean {curves.mean:.1%}."
        title = f"{name} under corruptions"
        blocks.append(Drawings([encode_figure(lambda theme: plots.robustness_figure(curves, title, theme), alt)]))
    return Section(f"Results on {measurement.split}", blocks)


def take_numbers(blocks: Sequence[Block]) -> tuple[list[Fact], list[Block]]:
    """The numbers of some blocks, to stand side by side, and the other blocks."""
    numbers = [fact for block in blocks if isinstance(block, Numbers) for fact in block.facts]
    return numbers, [block for block in blocks if not isinstance(block, Numbers)]

"""The sections of a report about what a run has compared: its folds, and the trials of a search."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vitrail.blocks import Block, Drawings, Fact, Numbers, Paragraph, Section, Table, encode_figure
from vitrail.canvas import DPI, Theme, open_frame, paint, shorten
from vitrail.evaluation.measurement import Measurement
from vitrail.training.fold_scores import INTERVAL, Spread, Trial, describe_best, show_setting
from vitrail.training.objectives import SplitScore
from vitrail.training.result import Run
from vitrail.training.teacher import TeacherComparison
from vitrail.wording import SHARES, counted, name_metric, show_metric

MOST_FOLDS = 50  # rows of a table
MOST_TRIALS = 10
MOST_SETTINGS = 6  # that are drawn


def folds_section(run: Run, held_out: Measurement | None) -> Section:
    """What each fold has measured, the mean and its interval, and what all of them say together."""
    spread, folds = run.spread, run.folds
    per_repeat = len(folds) // run.fold_repeats
    times = f", {counted(run.fold_repeats, 'time')} over" if run.fold_repeats > 1 else ""
    text = (
        f"The pictures were divided into {per_repeat} folds{times}; a model was trained without each, and measured on "
        "it. These pictures also chose its epoch, so these figures are slightly optimistic. The model of this report "
        "learned from all of them afterwards, and is calibrated by what the folds' models said."
    )
    names = list(spread)
    rows = [
        (str(number), *(show_metric(name, _value(fold, name)) for name in names), f"{fold.count:,}")
        for number, fold in enumerate(folds[:MOST_FOLDS], start=1)
    ]
    rows.append(("mean", *(show_metric(name, spread[name].mean) for name in names), ""))
    rows.append(("95 % interval", *(_bounds(name, spread[name]) for name in names), ""))
    note = f"The interval of the mean: {INTERVAL}, since the folds' training pictures overlap."
    if len(folds) > MOST_FOLDS:
        note += f" The first {MOST_FOLDS} of {len(folds)} folds."
    head = ("fold", *(name.replace("_", " ") for name in names), "pictures")
    blocks: list[Block] = [Paragraph(text), Table(head, rows, note)]
    first = names[0]
    values = [_value(fold, first) for fold in folds]
    alt = f"{first.replace('_', ' ')} of each fold; mean {show_metric(first, spread[first].mean)}."
    blocks.append(Drawings([encode_figure(partial(folds_figure, values, first, spread[first]), alt)]))
    if held_out is not None:
        facts = [fact._replace(note=fact.note or "over all folds") for fact in held_out.results.headline()]
        blocks += [Paragraph("Every picture once, by the model that was not trained on it:"), Numbers(facts)]
    return Section("Folds", blocks)


def teacher_section(compared: TeacherComparison) -> Section:
    """A teacher beside its student: their metrics, and on which pictures each of them is right."""
    text = (
        f"This model learned from the labels and from the answers of {compared.source}. Both were measured on the same "
        f"{counted(compared.pictures, f'{compared.split} picture')}, and give the same answer for "
        f"{compared.agreement:.1%} of them."
    )
    names = [name for name in compared.student if name in compared.teacher]
    rows = [
        (who, *(show_metric(name, numbers[name]) for name in names))
        for who, numbers in (("teacher", compared.teacher), ("student", compared.student))
    ]
    blocks: list[Block] = [Paragraph(text), Table(("", *map(name_metric, names)), rows, texts=(0,))]
    if right := compared.right:
        counts = [
            ("the teacher is right", f"{right['both']:,}", f"{right['teacher']:,}"),
            ("the teacher is wrong", f"{right['student']:,}", f"{right['none']:,}"),
        ]
        note = f"SHA-256 of the teacher's weights: {compared.sha256}."
        head = ("pictures", "the student is right", "the student is wrong")
        blocks.append(Table(head, counts, note, texts=(0,)))
    return Section("Teacher and student", blocks)


def folds_fact(run: Run) -> Fact:
    """The first metric over the folds, for the head of the page."""
    name, spread = next(iter(run.spread.items()))
    return Fact(
        f"{name.replace('_', ' ')} of {len(run.folds)} folds", show_metric(name, spread.mean), _bounds(name, spread)
    )


def folds_figure(values: Sequence[float], metric: str, spread: Spread, theme: Theme) -> Figure:
    """A dot for each fold, a line for the mean, and its interval."""
    figure = Figure(figsize=(6.4, 1.7), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(spread.low, spread.high, color=theme.blue, alpha=0.12, linewidth=0)
    axes.axvline(spread.mean, color=theme.blue, linewidth=1.6)
    heights = np.linspace(-0.25, 0.25, len(values))
    axes.plot(values, heights, linestyle="none", marker="o", markersize=6, color=theme.red, alpha=0.8)
    axes.set_yticks([])
    axes.set_ylim(-0.5, 0.5)
    if metric in SHARES:
        axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel(f"{metric.replace('_', ' ')} of each fold; the mean and its 95 % interval")
    open_frame(axes)
    axes.spines["left"].set_visible(False)
    return paint(figure, theme)


def search_section(trials: Sequence[Trial], *, with_folds: bool) -> Section:
    """The best trials, and how the metric depends on each setting."""
    metric, names = trials[0].metric, list(trials[0].settings)
    best = next(trial for trial in trials if trial.best)
    good = sorted((trial for trial in trials if not trial.error), key=lambda trial: abs(trial.value - best.value))
    failed = len(trials) - len(good)
    where = "on average over the folds" if with_folds else "in validation"
    text = f"{describe_best(trials)[:1].upper()}{describe_best(trials)[1:]}. Trials were compared {where}, which makes "
    text += "the best look slightly better than it is; test pictures played no part."
    if failed:
        text += f" {counted(failed, 'trial')} failed; search.csv says why."
    rows = [
        (
            str(trial.number),
            show_metric(metric, trial.value),
            f"{trial.seconds:.1f} s",
            *(show_setting(trial.settings[name]) for name in names),
        )
        for trial in good[:MOST_TRIALS]
    ]
    note = f"The best {len(rows)} of {len(trials)}; search.csv has all." if len(trials) > len(rows) else ""
    table = Table(("trial", metric.replace("_", " "), "training", *names), rows, note)
    alt = f"{metric.replace('_', ' ')} of each trial against {', '.join(names[:MOST_SETTINGS])}."
    drawn = encode_figure(partial(search_figure, good, names[:MOST_SETTINGS]), alt)
    return Section("Search", [Paragraph(text), table, Drawings([drawn])])


def search_figure(trials: Sequence[Trial], names: Sequence[str], theme: Theme) -> Figure:
    """For each setting, a dot for each trial; the best stands out."""
    metric, columns = trials[0].metric, min(len(names), 3)
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.6 * rows), dpi=DPI, layout="constrained")
    for place, name in enumerate(names, start=1):
        axes = figure.add_subplot(rows, columns, place)
        _draw_setting(axes, trials, name, theme)
        if metric in SHARES:
            axes.yaxis.set_major_formatter(PercentFormatter(1))
        if place % columns == 1 or columns == 1:
            axes.set_ylabel(metric.replace("_", " "))
        open_frame(axes)
    return paint(figure, theme)


def _draw_setting(axes: Axes, trials: Sequence[Trial], name: str, theme: Theme) -> None:
    values = [trial.settings[name] for trial in trials]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        places = [float(value) for value in values]
        if min(places) > 0 and max(places) / min(places) >= 10:
            axes.set_xscale("log")
    else:
        known = sorted(set(map(str, values)))
        places = [float(known.index(str(value))) for value in values]
        axes.set_xticks(range(len(known)), [shorten(value, 12) for value in known])
        axes.set_xlim(-0.5, len(known) - 0.5)
    for trial, place in zip(trials, places, strict=True):
        color, size = (theme.red, 9) if trial.best else (theme.blue, 6)
        axes.plot([place], [trial.value], marker="o", markersize=size, color=color, alpha=0.85, linestyle="none")
    axes.grid(axis="y", color=theme.line, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(name)


def _value(score: SplitScore, name: str) -> float:
    return score.loss if name == "loss" else score.metrics.get(name, math.nan)


def _bounds(name: str, spread: Spread) -> str:
    return f"{show_metric(name, spread.low)} to {show_metric(name, spread.high)}"

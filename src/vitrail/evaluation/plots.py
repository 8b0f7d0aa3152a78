"""The figures of an evaluation, drawn without touching matplotlib's global state."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter
from PIL import Image

from vitrail.canvas import COLORS, DPI, LIGHT, Theme, new_figure, open_frame, paint, shading, shorten
from vitrail.data.sheet import COLUMNS, Tile, draw_sheet, load_picture, wrap_tiles
from vitrail.data.source import Dataset
from vitrail.evaluation.measurement import Measurement, pick_split
from vitrail.evaluation.robustness import Robustness
from vitrail.tasks.one_metrics import Confusion, Integers, Reliability

MOST_NUMBERS = 30  # classes whose confusion matrix still has room for numbers
MOST_NAMES = 100  # classes whose matrix is still legible; beyond, the most confused pairs are shown
MOST_PAIRS = 30
MISTAKE_ROWS = 4  # of the sheet of mistakes


def confusion_figure(confusion: Confusion, classes: Sequence[str], title: str, theme: Theme = LIGHT) -> Figure:
    """Which class is taken for which: a matrix, or beyond `MOST_NAMES` classes the most frequent mistakes."""
    draw = _draw_pairs if len(classes) > MOST_NAMES else _draw_matrix
    return paint(draw(confusion, classes, title, theme), theme)


def _draw_matrix(confusion: Confusion, classes: Sequence[str], title: str, theme: Theme) -> Figure:
    """Rows are the truth, shaded by their share; the numbers are counts."""
    counts, count = np.asarray(confusion), len(classes)
    side = float(np.clip(2.4 + 0.42 * count, 4.6, 15))
    large = max(1.0, side / 7)  # a large figure is shown smaller, and its text must stay legible
    figure, axes = new_figure(side + 0.9, side)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    # The square root makes a rare mistake visible beside a diagonal of 99 %.
    image = axes.imshow(np.sqrt(shares), cmap=shading(theme), vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    axes.spines[:].set_visible(False)
    size = 9.0 if count <= 20 else float(np.clip(15 * 62 / count * 0.62, 4, 8))
    names = [shorten(name) for name in classes]
    upright = all(len(name) <= 3 for name in names) and count <= MOST_NUMBERS
    axes.set_xticks(range(count), names, rotation=0 if upright else 90, fontsize=size)
    axes.set_yticks(range(count), names, fontsize=size)
    if count <= MOST_NUMBERS:
        for row, column in zip(*np.nonzero(counts), strict=True):
            color = theme.on_shade if shares[row, column] ** 0.5 > 0.55 else theme.ink
            axes.text(column, row, f"{counts[row, column]}", ha="center", va="center", fontsize=size, color=color)
    else:
        axes.set_xticks(np.arange(count + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(count + 1) - 0.5, minor=True)
        axes.grid(which="minor", color=theme.line, linewidth=0.3)
        axes.tick_params(which="minor", length=0)
    axes.set_xlabel("predicted", fontsize=10 * large)
    axes.set_ylabel("true class", fontsize=10 * large)
    axes.set_title(shorten(title, 90), loc="left", fontsize=11 * large)
    ticks = (0, 0.01, 0.05, 0.2, 0.5, 1)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, ticks=[tick**0.5 for tick in ticks], pad=0.02)
    bar.ax.set_yticklabels([f"{tick:.0%}" for tick in ticks], fontsize=8 * large)
    bar.set_label("share of the true class", fontsize=8 * large)
    cast("Any", bar).outline.set_visible(False)
    return figure


def _draw_pairs(confusion: Confusion, classes: Sequence[str], title: str, theme: Theme) -> Figure:
    """The most frequent mistakes as bars, with their share of the true class."""
    worst = confusion.mistakes(MOST_PAIRS)
    support = confusion.support
    figure, axes = new_figure(7.4, 1.1 + 0.24 * max(len(worst), 2))
    positions = range(len(worst))
    lengths = [count for _, _, count in worst]
    axes.barh(positions, lengths, 0.72, color=theme.red)
    names = [f"{shorten(classes[truth], 30)} → {shorten(classes[predicted], 30)}" for truth, predicted, _ in worst]
    axes.set_yticks(positions, names, fontsize=8)
    axes.set_ylim(max(len(worst), 1) - 0.4, -0.6)
    axes.set_xlim(0, 1.15 * max(lengths, default=1))
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", integer=True)
    for position, (truth, _, count) in enumerate(worst):
        share = f" {count / support[truth]:.0%}"
        axes.text(count, position, share, va="center", fontsize=7.5, color=theme.faint)
    axes.set_xlabel("pictures, and their share of the true class", fontsize=9)
    below = f"the {len(worst)} most frequent mistakes (true → predicted)" if worst else "no picture is misclassified"
    axes.set_title(f"{shorten(title, 70)}\n{below}", loc="left", fontsize=11)
    return figure


def reliability_figure(calibration: Reliability, title: str, theme: Theme = LIGHT) -> Figure:
    """Accuracy against confidence, with the number of predictions behind each bar."""
    bins = len(calibration.counts)
    edges = np.linspace(0, 1, bins + 1)
    centres, width = (edges[:-1] + edges[1:]) / 2, 1 / bins
    figure = Figure(figsize=(5.4, 5.8), dpi=DPI, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(3.2, 1), sharex=True)
    filled = calibration.counts > 0
    hits, means = calibration.accuracy[filled], calibration.confidence[filled]
    left, right = edges[:-1][filled] + 0.03 * width, edges[1:][filled] - 0.03 * width
    above.bar(centres[filled], hits, 0.94 * width, color=theme.blue, label="accuracy")
    above.hlines(means, left, right, color=theme.red, linewidth=2.4, label="mean confidence")
    above.plot([0, 1], [0, 1], color=theme.faint, linestyle="--", linewidth=1, label="perfect")
    above.set_ylim(0, 1.02)
    above.set_xlim(0, 1)
    above.set_ylabel("accuracy")
    above.yaxis.set_major_formatter(PercentFormatter(1))
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)  # bars may be anywhere above
    above.set_title(f"{shorten(title, 60)}\ncalibration error {calibration.error:.1%}", loc="left", fontsize=11)
    below.bar(centres, calibration.counts / calibration.counts.sum(), 0.94 * width, color=theme.faint)
    below.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    below.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    below.set_ylabel("answers")
    below.set_xlabel("confidence")
    open_frame(above, below)
    return paint(figure, theme)


def robustness_figure(robustness: Robustness, title: str, theme: Theme = LIGHT) -> Figure:
    """Top-1 accuracy against severity, one line per corruption, its name at its end."""
    figure, axes = new_figure(7.0, 4.4)
    ends: list[tuple[float, str, str]] = []
    for (name, curve), color in zip(robustness.curves.items(), COLORS, strict=False):
        rates = [robustness.clean, *curve]
        levels = range(len(rates))
        axes.fill_between(levels, [r.low for r in rates], [r.high for r in rates], color=color, alpha=0.10, linewidth=0)
        axes.plot(levels, [rate.value for rate in rates], color=color, marker="o", markersize=4, linewidth=1.8)
        ends.append((rates[-1].value, name, color))
    position, last = -1.0, len(next(iter(robustness.curves.values())))
    for value, name, color in sorted(ends):
        position = max(value, position + 0.055)  # names that would overlap are moved apart
        axes.annotate(name, (last + 0.12, position), color=color, fontsize=9, va="center", annotation_clip=False)
    axes.set_ylim(0, 1.02)
    axes.set_xlim(-0.1, 6.1)
    axes.set_xticks(range(6), ["clean", "1", "2", "3", "4", "5"])
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="y", color=theme.line, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("severity")
    axes.set_ylabel("top-1 accuracy")
    axes.set_title(f"{shorten(title, 60)}\nmean over corruptions {robustness.mean:.1%}", loc="left", fontsize=11)
    return paint(figure, theme)


def map_figure(points: np.ndarray[Any, Any], labels: Sequence[str] | None, title: str) -> Figure:
    """A 2-D map of features (N, 2), coloured by class."""
    figure, axes = new_figure(7.4, 6.0)
    size = float(np.clip(24_000 / len(points), 5, 40))
    if labels is None:
        axes.scatter(points[:, 0], points[:, 1], s=size, color=LIGHT.blue, alpha=0.7, linewidths=0)
    else:
        _scatter_classes(axes, points, np.array(labels), size)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.set_title(shorten(title, 90), loc="left", fontsize=11)
    return paint(figure, LIGHT)


def _scatter_classes(axes: Axes, points: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], size: float) -> None:
    names = sorted(set(labels.tolist()))
    many = len(names) > len(COLORS)
    for number, name in enumerate(names):
        hue = hsv_to_rgb((number / len(names), 0.75, 0.85 if number % 2 else 0.6))  # all around, light and dark in turn
        color = tuple(hue.tolist()) if many else COLORS[number]
        own = points[labels == name]
        axes.scatter(own[:, 0], own[:, 1], s=size, color=color, alpha=0.75, linewidths=0, label=shorten(name, 18))
        if many:  # a legend of so many colours is useless; each name is placed where its class is
            middle = np.median(own, axis=0)
            text = axes.annotate(shorten(name, 14), (middle[0], middle[1]), ha="center", va="center", fontsize=7)
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
    if not many:
        scale = (40 / size) ** 0.5
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=scale)


def top_losses(measurement: Measurement, count: int) -> Integers:
    """The indices of the mistakes with the highest loss, the worst first."""
    answers = measurement.answers
    wrong = np.flatnonzero(~answers.correct)
    return wrong[np.argsort(-answers.losses[wrong], kind="stable")[:count]]


def mistakes_sheet(measurement: Measurement, dataset: Dataset) -> Image.Image:
    """The worst mistakes: the prediction, its confidence, and the true class."""
    source, names, answers = pick_split(dataset, measurement.split), measurement.classes, measurement.answers
    tiles = [
        Tile(
            image=load_picture(source, int(measurement.samples[index])),
            caption=f"{answers.confidence[index]:.0%} {names[answers.predicted[index]]}\n"
            f"true: {names[measurement.targets[index]]}",
        )
        for index in top_losses(measurement, COLUMNS * MISTAKE_ROWS)
    ]
    wrong = int((~answers.correct).sum())
    shown = f", the {len(tiles)} with the highest loss" if wrong > len(tiles) else ""
    heading = f"{measurement.data}, {measurement.split}: {wrong:,} of {len(measurement.targets):,} misclassified{shown}"
    return draw_sheet(heading, wrap_tiles("", tiles), smooth=False)

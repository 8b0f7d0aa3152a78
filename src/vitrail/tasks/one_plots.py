"""The figures of one class per picture: which class is taken for which, and how far confidence matches accuracy."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vitrail.canvas import DPI, LIGHT, Theme, new_figure, open_frame, paint, shading, shorten
from vitrail.tasks.one_metrics import Confusion, Reliability

MOST_NUMBERS = 30  # classes whose confusion matrix still has room for numbers
MOST_NAMES = 100  # classes whose matrix is still legible; beyond, the most confused pairs are shown
MOST_PAIRS = 30


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

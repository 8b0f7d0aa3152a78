"""The figures of an evaluation. They are drawn on figures of their own: nothing of matplotlib's state is touched."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter

from vitrail.evaluate.fonts import any_script
from vitrail.evaluate.metrics import Calibration, Integers
from vitrail.evaluate.robustness import Robustness
from vitrail.weights.files import atomic_path

INK, FAINT, BLUE, RED = "#1b1b1f", "#8a8a94", "#2f6db5", "#c4483a"
COLORS = (BLUE, "#d98a29", "#3f9a5f", RED, "#7d5bb0", "#3aa6a6", "#b04f8c", "#7a6a53", "#5b6ee1", "#8aa62f")
DPI = 150
MOST_NUMBERS = 30  # classes whose confusion matrix still has room for numbers
MOST_NAMES = 100  # classes that are named on an axis


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one plot, in the house style."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.tick_params(colors=INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    return figure, axes


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG without the time and program, so that the same figure is the same file."""
    with any_script(figure), atomic_path(path) as draft:
        figure.savefig(draft, metadata={"Software": None})


def shorten(name: str, length: int = 22) -> str:
    """A class name that fits beside an axis; `$` must not start a formula."""
    text = name if len(name) <= length else name[: length - 1] + "…"
    return text.replace("$", r"\$")


def confusion_figure(confusion: Integers, classes: Sequence[str], title: str) -> Figure:
    """Rows are the truth, shaded by their share; the numbers are counts."""
    count = len(classes)
    side = float(np.clip(2.4 + 0.42 * count, 4.6, 15))
    large = max(1.0, side / 7)  # a large figure is shown smaller, and its words must still be read
    figure, axes = new_figure(side + 0.9, side)
    axes.tick_params(labelsize=9 * large)
    totals = confusion.sum(axis=1, keepdims=True)
    shares = np.divide(confusion, totals, out=np.zeros(confusion.shape), where=totals > 0)
    # The square root makes a rare mistake visible beside a diagonal of 99 %.
    image = axes.imshow(np.sqrt(shares), cmap="Blues", vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    for spine in axes.spines.values():
        spine.set_visible(False)
    size = 9.0 if count <= 20 else float(np.clip(15 * 62 / count * 0.62, 4, 8))
    if count <= MOST_NAMES:
        names = [shorten(name) for name in classes]
        upright = all(len(name) <= 3 for name in names) and count <= MOST_NUMBERS
        axes.set_xticks(range(count), names, rotation=0 if upright else 90, fontsize=size)
        axes.set_yticks(range(count), names, fontsize=size)
    if count <= MOST_NUMBERS:
        _write_counts(axes, confusion, shares, size)
    elif count <= MOST_NAMES:  # lines between more cells would cover them
        axes.set_xticks(np.arange(count + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(count + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="#f1f1f5", linewidth=0.3)
        axes.tick_params(which="minor", length=0)
    axes.set_xlabel("predicted", color=INK, fontsize=10 * large)
    axes.set_ylabel("true class", color=INK, fontsize=10 * large)
    axes.set_title(shorten(title, 90), loc="left", fontsize=11 * large, color=INK)
    ticks = (0, 0.01, 0.05, 0.2, 0.5, 1)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, ticks=[tick**0.5 for tick in ticks], pad=0.02)
    bar.ax.set_yticklabels([f"{tick:.0%}" for tick in ticks], fontsize=8 * large)
    bar.set_label("share of the true class", fontsize=8 * large, color=INK)
    cast("Any", bar).outline.set_visible(False)
    return figure


def _write_counts(axes: Axes, confusion: Integers, shares: np.ndarray[Any, Any], size: float) -> None:
    for row, column in zip(*np.nonzero(confusion), strict=True):
        color = "white" if shares[row, column] ** 0.5 > 0.55 else INK
        axes.text(column, row, f"{confusion[row, column]}", ha="center", va="center", fontsize=size, color=color)


def reliability_figure(calibration: Calibration, title: str) -> Figure:
    """Accuracy against confidence, with how many answers stand behind each bar."""
    bins = len(calibration.counts)
    edges = np.linspace(0, 1, bins + 1)
    centres, width = (edges[:-1] + edges[1:]) / 2, 1 / bins
    figure = Figure(figsize=(5.4, 5.6), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=(3.2, 1), sharex=True)
    filled = calibration.counts > 0
    hits, means = calibration.accuracy[filled], calibration.confidence[filled]
    left, right = edges[:-1][filled] + 0.03 * width, edges[1:][filled] - 0.03 * width
    above.bar(centres[filled], hits, 0.94 * width, color=BLUE, label="accuracy")
    above.hlines(means, left, right, color=RED, linewidth=2.4, label="mean confidence")
    above.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1, label="perfect")
    above.set_ylim(0, 1.02)
    above.set_xlim(0, 1)
    above.set_ylabel("accuracy", color=INK)
    above.yaxis.set_major_formatter(PercentFormatter(1))
    above.legend(framealpha=0.85, edgecolor="none", fontsize=8.5, loc="upper left")  # bars may stand behind it
    above.set_title(
        f"{shorten(title, 60)}\ncalibration error {calibration.error:.1%}", loc="left", fontsize=11, color=INK
    )
    below.bar(centres, calibration.counts / calibration.counts.sum(), 0.94 * width, color=FAINT)
    below.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    below.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    below.set_ylabel("answers", color=INK)
    below.set_xlabel("confidence", color=INK)
    for axes in (above, below):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure


def robustness_figure(robustness: Robustness, title: str) -> Figure:
    """Top-1 accuracy against severity, one line per corruption, its name at its end."""
    figure, axes = new_figure(7.0, 4.4)
    ends: list[tuple[float, str, str]] = []
    for (name, curve), color in zip(robustness.curves.items(), COLORS, strict=False):
        rates = [robustness.clean, *curve]
        levels = range(len(rates))
        axes.fill_between(levels, [r.low for r in rates], [r.high for r in rates], color=color, alpha=0.10, linewidth=0)
        axes.plot(levels, [rate.value for rate in rates], color=color, marker="o", markersize=4, linewidth=1.8)
        ends.append((rates[-1].value, name, color))
    _write_ends(axes, ends, len(next(iter(robustness.curves.values()))))
    axes.set_ylim(0, 1.02)
    axes.set_xlim(-0.1, 6.1)
    axes.set_xticks(range(6), ["clean", "1", "2", "3", "4", "5"])
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="y", color="#ececf1", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("severity", color=INK)
    axes.set_ylabel("top-1 accuracy", color=INK)
    axes.set_title(
        f"{shorten(title, 60)}\nmean over corruptions {robustness.mean:.1%}", loc="left", fontsize=11, color=INK
    )
    return figure


def _write_ends(axes: Axes, ends: list[tuple[float, str, str]], last: int) -> None:
    """The names at the ends of the lines, moved apart where they would overlap."""
    place = -1.0
    for value, name, color in sorted(ends):
        place = max(value, place + 0.055)
        axes.annotate(name, (last + 0.12, place), color=color, fontsize=9, va="center", annotation_clip=False)


def map_figure(points: np.ndarray[Any, Any], labels: Sequence[str] | None, title: str) -> Figure:
    """A 2-D map of features (N, 2), coloured by class."""
    figure, axes = new_figure(7.4, 6.0)
    size = float(np.clip(24_000 / len(points), 5, 40))
    if labels is None:
        axes.scatter(points[:, 0], points[:, 1], s=size, color=BLUE, alpha=0.7, linewidths=0)
    else:
        _scatter_classes(axes, points, np.array(labels), size)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(shorten(title, 90), loc="left", fontsize=11, color=INK)
    return figure


def _scatter_classes(axes: Axes, points: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], size: float) -> None:
    names = sorted(set(labels.tolist()))
    many = len(names) > len(COLORS)
    for number, name in enumerate(names):
        color = _hue(number, len(names)) if many else COLORS[number]
        own = points[labels == name]
        axes.scatter(own[:, 0], own[:, 1], s=size, color=color, alpha=0.75, linewidths=0, label=shorten(name, 18))
        if many:  # a legend of so many colours says nothing; the name stands where its class is
            middle = np.median(own, axis=0)
            text = axes.annotate(shorten(name, 14), (middle[0], middle[1]), ha="center", va="center", fontsize=7)
            text.set_path_effects([withStroke(linewidth=2, foreground="white")])
    if not many:
        scale = (40 / size) ** 0.5
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=scale)


def _hue(number: int, count: int) -> tuple[float, float, float]:
    """The colour of one of many classes: hues all around, light and dark in turn."""
    red, green, blue = hsv_to_rgb((number / count, 0.75, 0.85 if number % 2 else 0.6))
    return float(red), float(green), float(blue)

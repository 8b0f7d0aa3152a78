"""The figures that evaluations of every task have, drawn without touching matplotlib's global state."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter
from PIL import Image

from vitrail.canvas import COLORS, LIGHT, Theme, new_figure, paint, shorten
from vitrail.data.sheet import COLUMNS, Tile, draw_sheet, load_picture, wrap_tiles
from vitrail.data.source import Dataset
from vitrail.evaluation.measurement import Measurement, pick_split
from vitrail.evaluation.robustness import Robustness

MISTAKE_ROWS = 4  # of the sheet of mistakes


def robustness_figure(robustness: Robustness, title: str, theme: Theme = LIGHT) -> Figure:
    """The metric against severity, one line per corruption, its name at its end."""
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
    axes.set_ylabel(robustness.metric)
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


def mistakes_sheet(measurement: Measurement, dataset: Dataset) -> Image.Image:
    """The worst mistakes: what was predicted, and what is true."""
    source, results = pick_split(dataset, measurement.split), measurement.results
    tiles = [
        Tile(
            image=load_picture(source, int(measurement.samples[index])),
            caption=results.sheet_caption(int(index)),
        )
        for index in results.worst(COLUMNS * MISTAKE_ROWS)
    ]
    heading = f"{measurement.data}, {measurement.split}: {results.about_sheet(len(tiles))}"
    return draw_sheet(heading, wrap_tiles("", tiles), smooth=False)

"""The figures of measured values: predicted against true, errors against the truth, and how large errors are."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from vitrail.canvas import DPI, Theme, open_frame, paint, shorten

if TYPE_CHECKING:
    from vitrail.tasks.number_results import NumberResults

Floats = np.ndarray[Any, np.dtype[np.float64]]
Range = tuple[float, float]
MOST_VALUES = 6  # small plots in a figure
MOST_POINTS = 3000  # beyond, cells are shaded by how many pictures they hold
CELLS, BARS = 55, 41
MIDDLE = (0.002, 0.998)  # of the values, that a plot has room for
GROUPS = 12  # of pictures with similar truth


def predicted_figure(results: "NumberResults", title: str, theme: Theme) -> Figure:
    """Predicted against true values, the diagonal, and the intervals as a band around it."""
    figure, plots = _new_plots(results, title)
    for index, axes in plots:
        truth, predicted = results.truth[:, index], results.predicted[:, index]
        low, high = _range(np.concatenate((truth, np.quantile(predicted, MIDDLE))))
        ends = np.array([low, high])
        _scatter(axes, truth, predicted, (low, high), (low, high), theme)
        axes.plot(ends, ends, color=theme.ink, linestyle="--", linewidth=1, label="equal")
        if results.half_widths is not None:
            half = results.half_widths[index]
            axes.fill_between(ends, ends - half, ends + half, label=_band(results), **_band_style(theme))
            axes.plot(ends, np.stack((ends - half, ends + half), axis=1), **_edge_style(theme))
        axes.set(xlabel="true", ylabel="predicted")
        axes.set_box_aspect(1)
    return _finish(figure, theme)


def errors_by_truth_figure(results: "NumberResults", title: str, theme: Theme) -> Figure:
    """Predicted minus true against true, with the mean error of pictures with similar truth."""
    figure, plots = _new_plots(results, title)
    for index, axes in plots:
        truth, errors = results.truth[:, index], results.errors[:, index]
        _scatter(axes, truth, errors, _range(truth), _range(np.quantile(errors, (*MIDDLE, 0.5))), theme)
        axes.axhline(0, color=theme.ink, linestyle="--", linewidth=1)
        parts = np.array_split(np.argsort(truth, kind="stable"), min(GROUPS, math.ceil(len(truth) / 15)))
        means = np.array([(truth[part].mean(), errors[part].mean()) for part in parts])
        axes.plot(*means.T, color=theme.red, linewidth=1.8, marker="o", markersize=3, label="mean error")
        if results.half_widths is not None:
            half = results.half_widths[index]
            axes.axhspan(-half, half, label=_band(results), **_band_style(theme))
            axes.plot(_range(truth), [(-half, half)] * 2, **_edge_style(theme))
        axes.set(xlabel="true", ylabel="predicted − true")
    return _finish(figure, theme)


def histogram_figure(results: "NumberResults", title: str, theme: Theme) -> Figure:
    """How often errors have which size; what is far outside is counted in the first and the last bar."""
    figure, plots = _new_plots(results, title)
    for index, axes in plots:
        errors = results.errors[:, index]
        limit = _range(np.quantile(np.abs(errors), (0, 0.995)))[1]
        bars = min(BARS, 2 * math.isqrt(len(errors)) + 1)
        counts, edges = np.histogram(np.clip(errors, -limit, limit), np.linspace(-limit, limit, bars + 1))
        axes.bar(edges[:-1], counts, np.diff(edges) * 0.94, align="edge", color=theme.blue)
        axes.axvline(0, color=theme.ink, linestyle="--", linewidth=1)
        if results.half_widths is not None:
            half = results.half_widths[index]
            axes.axvspan(-half, half, label=_band(results), **_band_style(theme))
        axes.set(xlim=(-limit, limit), xlabel="predicted − true", ylabel="pictures")
        axes.locator_params(axis="y", integer=True)
    return _finish(figure, theme)


def _new_plots(results: "NumberResults", title: str) -> tuple[Figure, Iterator[tuple[int, Axes]]]:
    """A figure with a plot for each of the first values."""
    count = min(len(results.names), MOST_VALUES)
    columns = 1 if count == 1 else 2 if count in (2, 4) else 3
    rows = math.ceil(count / columns)
    side = 5.2 if count == 1 else 3.1
    figure = Figure(
        figsize=(side * columns + 0.3, side * rows + 0.7), dpi=DPI, layout=ConstrainedLayoutEngine(h_pad=0.07)
    )
    below = "" if count == 1 else "\n"  # room for the power of ten of a plot
    figure.suptitle(shorten(title, 55 if columns == 1 else 90) + below, x=0.02, ha="left", fontsize=11)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.remove()
    for axes, name in zip(grid, results.names, strict=False):
        axes.set_title(shorten(name, 30), loc="left", fontsize=10)
        axes.tick_params(length=3, labelsize=8)
        axes.locator_params(nbins=6)
        open_frame(axes)
    return figure, enumerate(grid[:count])


def _scatter(axes: Axes, across: Floats, up: Floats, width: Range, height: Range, theme: Theme) -> None:
    """Points, or beyond `MOST_POINTS` shaded cells; what lies beyond the plot is drawn at its edge."""
    across, up = np.clip(across, *width), np.clip(up, *height)
    axes.set(xlim=width, ylim=height)
    if len(across) <= MOST_POINTS:
        size = float(np.interp(len(across), (100, MOST_POINTS), (22, 5)))
        alpha = float(np.interp(len(across), (100, MOST_POINTS), (0.8, 0.3)))
        axes.scatter(across, up, s=size, color=theme.blue, alpha=alpha, linewidths=0, clip_on=False)
        return
    shades = LinearSegmentedColormap.from_list("density", theme.shades[1:])  # single pictures must be visible
    counts, *edges = np.histogram2d(across, up, CELLS, (width, height))
    seen = np.ma.masked_equal(np.sqrt(counts.T), 0)  # the root shows rare pictures beside crowded cells
    axes.pcolormesh(*edges, seen, cmap=shades, linewidth=0)


def _range(values: Floats) -> Range:
    """From the least to the largest value, with a margin; never empty."""
    low, high = float(values.min()), float(values.max())
    margin = 0.03 * (high - low) or max(1e-6 * abs(low), 1e-9)
    return low - margin, high + margin


def _band(results: "NumberResults") -> str:
    return f"{100 * results.requested:.4g} % interval"


def _band_style(theme: Theme) -> dict[str, Any]:
    return {"color": theme.red, "alpha": 0.14, "linewidth": 0, "zorder": 0}


def _edge_style(theme: Theme) -> dict[str, Any]:
    """Of the band's edges, which are visible above crowded cells too."""
    return {"color": theme.red, "linewidth": 0.8}


def _finish(figure: Figure, theme: Theme) -> Figure:
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return paint(figure, theme)

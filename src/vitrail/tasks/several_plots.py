"""The figures of a model of several labels: average precision, precision over recall, and which labels go wrong."""

from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vitrail.canvas import COLORS, LIGHT, Theme, new_figure, paint, shading, shorten
from vitrail.tasks.several_metrics import rank
from vitrail.tasks.several_scores import SeveralScores

MOST_BARS = 40  # labels with a bar each, the worst
MOST_CURVES = 6  # labels with a curve each
MOST_POINTS = 500  # of a curve
MOST_NUMBERS = 30  # labels whose matrix still has room for numbers
MOST_CELLS = 40  # labels whose matrix is still legible; beyond, the most frequent mistakes are shown
MOST_PAIRS = 30


def precision_figure(scores: SeveralScores, title: str, theme: Theme = LIGHT) -> Figure:
    """The average precision of each label as a bar with its interval, the worst first."""
    defined = [label for label in scores.worst_labels() if scores.hits.support[label]]
    labels = defined[:MOST_BARS]
    figure, axes = new_figure(7.4, 1.2 + 0.26 * max(len(labels), 2))
    values, spread, support = scores.average_precision, scores.spread, scores.hits.support
    places = np.arange(len(labels))
    axes.barh(places, values[labels], 0.72, color=theme.blue)
    low, high = spread.low[labels], spread.high[labels]
    axes.hlines(places, low, high, color=theme.ink, linewidth=1.2)
    if labels:
        axes.axvline(scores.mean_average_precision, color=theme.red, linewidth=1.2, linestyle="--")
    for place, label in enumerate(labels):
        axes.text(1.02, place, f"{support[label]:,}", va="center", fontsize=7.5, color=theme.faint)
    axes.set_yticks(places, [shorten(scores.names[label], 30) for label in labels], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(len(labels), 1) - 0.4, -0.6)
    axes.set_xlim(0, 1.1)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_xlabel("average precision, its 95 % interval, and the number of pictures; dashed: the mean", fontsize=9)
    which = f"the {len(labels)} worst of {len(defined):,} labels" if len(labels) < len(defined) else "average precision"
    below = f"{which}, mean {scores.mean_average_precision:.1%}" if labels else "no picture has a label"
    axes.set_title(f"{shorten(title, 70)}\n{below}", loc="left", fontsize=11)
    return paint(figure, theme)


def curves_figure(scores: SeveralScores, title: str, theme: Theme = LIGHT) -> Figure:
    """Precision over recall: some labels from the worst to the best, and all labels together."""
    defined = [label for label in scores.worst_labels() if scores.hits.support[label]]
    steps = np.unique(np.linspace(0, len(defined) - 1, min(MOST_CURVES, len(defined))).round().astype(np.int64))
    figure, axes = new_figure(6.6, 4.8)
    for step, color in zip(steps.tolist(), COLORS, strict=False):
        label = defined[int(step)]
        ranking = scores.ranking(label)
        points = _thin(ranking.recall, ranking.precision)
        text = f"{scores.average_precision[label]:.0%} {shorten(scores.names[label], 20)}"
        axes.plot(*points, color=color, linewidth=1.6, drawstyle="steps-pre", label=text)
        hits = scores.hits
        axes.plot(hits.recall[label], hits.precision[label], "o", color=color, markersize=5)
    pooled = rank(scores.shares.ravel(), scores.targets.ravel())
    if defined:
        points = _thin(pooled.recall, pooled.precision)
        axes.plot(*points, color=theme.ink, linewidth=2.2, drawstyle="steps-pre", label="all labels together")
        figure.legend(loc="outside lower center", ncols=2 if len(steps) < 5 else 3, frameon=False, fontsize=8.5)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(0, 1.04)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(color=theme.line, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("recall: the share of a label's pictures that are found")
    axes.set_ylabel("precision: the share of answers that are right")
    which = "labels from the worst to the best" if len(steps) < len(defined) else "each label"
    axes.set_title(f"{shorten(title, 60)}\n{which}, with average precision", loc="left", fontsize=11)
    return paint(figure, theme)


def _thin(recall: Any, precision: Any) -> tuple[Any, Any]:
    """A curve from no recall on, of few enough points to be drawn."""
    count = len(recall)
    kept = np.unique(np.linspace(0, count - 1, min(MOST_POINTS, count)).round().astype(np.int64))
    return np.append(0, recall[kept]), np.append(precision[kept[0]], precision[kept])


def confusion_figure(scores: SeveralScores, title: str, theme: Theme = LIGHT) -> Figure:
    """Which labels go wrong beside which: a matrix, or beyond `MOST_CELLS` labels the most frequent mistakes."""
    draw = _draw_pairs if len(scores.names) > MOST_CELLS else _draw_matrix
    return paint(draw(scores, title, theme), theme)


def _draw_matrix(scores: SeveralScores, title: str, theme: Theme) -> Figure:
    counts, count, support = scores.confusion, len(scores.names), scores.hits.support
    side = float(np.clip(2.8 + 0.42 * count, 4.8, 13))
    large = max(1.0, side / 7)  # a large figure is shown smaller, and its text must stay legible
    figure, axes = new_figure(side + 0.9, side)
    shares = counts / np.maximum(support, 1)[:, None]
    # The square root makes a rare mistake visible beside a frequent one.
    image = axes.imshow(np.sqrt(shares), cmap=shading(theme), vmin=0, vmax=1, aspect="equal", interpolation="nearest")
    axes.spines[:].set_visible(False)
    size = 9.0 if count <= 20 else 7.0
    names = [shorten(name) for name in scores.names]
    upright = all(len(name) <= 3 for name in names) and count <= MOST_NUMBERS
    axes.set_xticks(range(count), names, rotation=0 if upright else 90, fontsize=size)
    axes.set_yticks(range(count), names, fontsize=size)
    if count <= MOST_NUMBERS:
        for row, column in zip(*np.nonzero(counts), strict=True):
            color = theme.on_shade if shares[row, column] ** 0.5 > 0.55 else theme.ink
            weight = "bold" if row == column else "normal"
            text = f"{counts[row, column]}"
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color=color, fontweight=weight)
    axes.set_xlabel("wrongly predicted; on the diagonal: missed", fontsize=10 * large)
    axes.set_ylabel("true label", fontsize=10 * large)
    axes.set_title(f"{shorten(title, 60)}\nwhich labels go wrong beside which", loc="left", fontsize=11 * large)
    ticks = (0, 0.01, 0.05, 0.2, 0.5, 1)
    bar = figure.colorbar(image, ax=axes, shrink=0.6, ticks=[tick**0.5 for tick in ticks], pad=0.02)
    bar.ax.set_yticklabels([f"{tick:.0%}" for tick in ticks], fontsize=8 * large)
    bar.set_label("share of pictures with the true label", fontsize=8 * large)
    cast("Any", bar).outline.set_visible(False)
    return figure


def _draw_pairs(scores: SeveralScores, title: str, theme: Theme) -> Figure:
    """The most frequent mistakes as bars: labels that were missed, and labels that were wrongly predicted."""
    hits = scores.hits
    missed, extra = hits.support - hits.hits, hits.predictions - hits.hits
    counts = np.concatenate([missed, extra])
    worst = [int(place) for place in np.argsort(-counts, kind="stable")[:MOST_PAIRS] if counts[place]]
    figure, axes = new_figure(7.4, 1.2 + 0.26 * max(len(worst), 2))
    size, names = len(scores.names), list[str]()
    for place, index in enumerate(worst):
        label, lost = index % size, index < size
        total = (hits.support if lost else hits.predictions)[label]
        axes.barh(place, counts[index], 0.72, color=theme.red if lost else theme.blue)
        share = f" {counts[index] / total:.0%}"
        axes.text(counts[index], place, share, va="center", fontsize=7.5, color=theme.faint)
        names.append(f"{'missed' if lost else 'extra'} {shorten(scores.names[label], 30)}")
    axes.set_yticks(range(len(worst)), names, fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(len(worst), 1) - 0.4, -0.6)
    axes.set_xlim(0, 1.15 * max(int(counts.max()), 1))
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("pictures; their share of those with the label (missed), or given it (extra)", fontsize=9)
    below = f"the {len(worst)} most frequent mistakes" if worst else "no label is missed or wrongly predicted"
    axes.set_title(f"{shorten(title, 70)}\n{below}", loc="left", fontsize=11)
    return figure

"""What `vitrail.benchmark` returns: a row for each way to run a model, as a table, as JSON and as bars."""

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import RenderableType
from rich.text import Text

from vitrail.canvas import COLORS, LIGHT, Theme, new_figure, open_frame, paint, save_figure, shorten
from vitrail.files import atomic_path
from vitrail.progress import ending, table
from vitrail.runtimes.contestants import Contestant
from vitrail.wording import counted

NAMES = ("benchmark.json", "benchmark.md", "benchmark.png")


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """One contestant at one batch size on so many cores."""

    contestant: Contestant
    batch: int
    threads: int
    p50_ms: float  # of one call
    p95_ms: float
    images_per_second: float
    megabytes: float  # of the weights, or of the export's files
    same_class: float | None  # share of the pictures that get the answer which float32 in torch gives them
    difference: float  # largest difference of an answer to float32 in torch's, relative to the largest answer
    accuracy: float | None = None  # on the data, where there are any
    peak_share: float | None = None  # of what this machine's best float32 matrix product does; for float32 only

    def facts(self) -> dict[str, Any]:
        """For JSON, without a level for the contestant."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {**dataclasses.asdict(values.pop("contestant")), **values}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All rows, and what it takes to understand them. In a notebook it shows its table."""

    model: str
    rows: tuple[BenchmarkRow, ...]
    machine: dict[str, Any]  # processor, cores, the best matrix product, versions
    pictures: int  # on which the answers are compared
    data: str | None = None
    split: str | None = None
    missing: tuple[str, ...] = ()  # runtimes that are not installed
    written: tuple[Path, ...] = field(default=(), repr=False)
    source: str = field(default="", repr=False)  # the model, as its user named it

    exit_code = 0

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        yield Text(self.title, style="bold")
        cells = ([cell(row) for cell in self.columns.values()] for row in self.rows)
        yield table(cells, *self.columns, left=2, whole=True)
        yield self.compared
        if self.missing:
            yield f'not installed: {", ".join(self.missing)}; pip install "vitrail[export]" adds them'
        yield from ending(self.written, shlex.join(["vitrail", "export", self.source, "model.onnx"]))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("model", "data", "split", "pictures", "machine", "missing")
        return {**{name: getattr(self, name) for name in names}, "rows": [row.facts() for row in self.rows]}

    @property
    def columns(self) -> dict[str, Callable[[BenchmarkRow], str]]:
        """The heading of each column that tells rows apart or that was measured, and its cells."""
        return {
            name: cell
            for name, cell in _COLUMNS.items()
            if name not in _OPTIONAL or len({_OPTIONAL[name](row) for row in self.rows} | _PLAIN[name]) > 1
        }

    @property
    def title(self) -> str:
        """The model and the machine, in a line."""
        peak = self.machine["gemm_gflops"]
        return f"{self.model} on {self.machine['processor']}, {counted(self.machine['cores'], 'core')}" + (
            f", best float32 matrix product {max(peak.values()):,.0f} GFLOP/s" if peak else ""
        )

    @property
    def compared(self) -> str:
        """What the answers were compared on."""
        where = f"{self.data}, {self.split}" if self.data else "photographs that come with scikit-learn"
        return f"Answers are compared on {counted(self.pictures, 'picture')} ({where})."

    def markdown(self) -> str:
        """The table, to paste somewhere."""
        columns = self.columns
        lines = [f"**{self.title}**", "", f"| {' | '.join(columns)} |"]
        lines.append("|" + "|".join("---" if name in _TEXTS else "--:" for name in columns) + "|")
        lines += [f"| {' | '.join(cell(row) for cell in columns.values())} |" for row in self.rows]
        versions = ", ".join(f"{name} {version}" for name, version in self.machine["versions"].items())
        return "\n".join([*lines, "", f"{self.compared} {versions}.", ""])

    def figure(self, theme: Theme = LIGHT) -> Figure:
        """Bars of pictures per second for each batch size; with data, accuracy against speed beside them."""
        return paint(_draw(self, theme), theme)

    def save(self, folder: str | Path) -> tuple[Path, ...]:
        """Write the table as JSON and Markdown, and the bars, into a folder."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        paths = tuple(place / name for name in NAMES)
        for path, text in zip(paths, (json.dumps(self.to_dict(), indent=2), self.markdown()), strict=False):
            with atomic_path(path) as draft:
                draft.write_text(text, encoding="utf-8")
        save_figure(self.figure(), paths[2])
        return paths

    def _repr_markdown_(self) -> str:
        return self.markdown()


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


_COLUMNS: dict[str, Callable[[BenchmarkRow], str]] = {
    "runtime": lambda row: row.contestant.label,
    "precision": lambda row: row.contestant.precision,
    "batch": lambda row: str(row.batch),
    "threads": lambda row: str(row.threads),
    "ms p50": lambda row: f"{row.p50_ms:,.1f}",
    "ms p95": lambda row: f"{row.p95_ms:,.1f}",
    "images/s": lambda row: f"{row.images_per_second:,.1f}",
    "MB": lambda row: f"{row.megabytes:,.1f}",
    "same class": lambda row: _share(row.same_class),
    "difference": lambda row: f"{row.difference:.0e}" if row.difference else "0",
    "accuracy": lambda row: _share(row.accuracy),
    "of peak": lambda row: "" if row.peak_share is None else f"{row.peak_share:.0%}",
}
_TEXTS = ("runtime", "precision")
# Columns that are left out where they would say nothing: what they hold, and what is nothing.
_OPTIONAL: dict[str, Callable[[BenchmarkRow], Any]] = {
    "threads": lambda row: row.threads,
    "same class": lambda row: row.same_class,
    "accuracy": lambda row: row.accuracy,
}
_PLAIN: dict[str, set[Any]] = {"threads": set(), "same class": {None}, "accuracy": {None}}


def _draw(comparison: Comparison, theme: Theme) -> Figure:
    best = {key: rows[0] for key, rows in _groups(comparison.rows).items()}
    batches = sorted({row.batch for row in comparison.rows})
    names = list(dict.fromkeys(name for name, _ in best))
    curve = any(row.accuracy is not None for row in comparison.rows)
    height = 1.5 + 0.24 * len(names) * len(batches) + 0.15 * len(names)
    figure, axes = new_figure(11.5 if curve else 7.5, max(height, 3.2))
    if curve:
        figure.clear()
        axes, beside = figure.subplots(1, 2, width_ratios=(3, 2))
        _draw_curve(beside, comparison.rows, theme)
        open_frame(axes, beside)
    _draw_bars(axes, best, names, batches, theme)
    figure.suptitle(comparison.title, fontsize=9)
    return figure


def _groups(rows: Sequence[BenchmarkRow]) -> dict[tuple[str, int], list[BenchmarkRow]]:
    """Rows of one name and batch size, the fastest number of threads first."""
    groups: dict[tuple[str, int], list[BenchmarkRow]] = {}
    for row in sorted(rows, key=lambda row: -row.images_per_second):
        groups.setdefault((_name(row), row.batch), []).append(row)
    order = {_name(row): place for place, row in enumerate(rows)}
    return dict(sorted(groups.items(), key=lambda item: order[item[0][0]]))


def _name(row: BenchmarkRow) -> str:
    return f"{row.contestant.label}, {row.contestant.precision}"


def _draw_bars(
    axes: Axes, best: dict[tuple[str, int], BenchmarkRow], names: list[str], batches: list[int], theme: Theme
) -> None:
    thick = 0.8 / len(batches)
    for (name, batch), row in best.items():
        place = names.index(name) + (batches.index(batch) - (len(batches) - 1) / 2) * thick
        color = theme.faint if row.contestant.is_peer else theme.blue
        strength = 1.0 if batch == batches[-1] else 0.6
        axes.barh(place, row.images_per_second, height=0.9 * thick, color=color, alpha=strength)
        text = f" {row.images_per_second:,.1f}" + (f"  (batch {batch})" if len(batches) > 1 else "")
        axes.text(row.images_per_second, place, text, va="center", fontsize=7)
    axes.set_yticks(range(len(names)), [shorten(name, 44) for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.22)
    axes.set_xlim(left=0)
    axes.set_xlabel("images/s" + (f", batch {batches[0]}" if len(batches) == 1 else ""))


def _draw_curve(axes: Axes, rows: Sequence[BenchmarkRow], theme: Theme) -> None:
    """Accuracy against speed at the largest batch; what differs only in how many tokens are merged is joined."""
    largest = max(row.batch for row in rows)
    lines: dict[str, list[BenchmarkRow]] = {}
    for group in _groups([row for row in rows if row.batch == largest and row.accuracy is not None]).values():
        contestant = dataclasses.replace(group[0].contestant, merge=0)
        lines.setdefault(f"{contestant.label}, {contestant.precision}", []).append(group[0])
    for number, (name, points) in enumerate(lines.items()):
        points.sort(key=lambda row: row.images_per_second)
        x, y = [row.images_per_second for row in points], [100 * (row.accuracy or 0) for row in points]
        color = theme.faint if points[0].contestant.is_peer else COLORS[number % len(COLORS)]
        axes.plot(x, y, "o-", color=color, markersize=4, linewidth=1.2, label=shorten(name, 36))
        for row, across, up in zip(points, x, y, strict=True):
            if row.contestant.merge:
                text = str(row.contestant.merge)
                axes.annotate(text, (across, up), textcoords="offset points", xytext=(3, 4), fontsize=6.5)
    axes.set_xlabel(f"images/s, batch {largest}")
    axes.set_ylabel("accuracy, %")
    axes.grid(color=theme.line, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(0.15)
    axes.legend(fontsize=6.5, frameon=False)

"""What `vitrail.benchmark` measures and returns: a row for each way to run a model, as a table, as JSON and as bars."""

import dataclasses
import json
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from rich.console import RenderableType
from rich.text import Text

from vitrail import __version__
from vitrail.canvas import COLORS, LIGHT, Theme, new_figure, open_frame, paint, save_figure, shorten
from vitrail.data.pixels import Picture, prepare_array
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError
from vitrail.evaluation.measurement import align_classes, choose, pick_split, run
from vitrail.files import atomic_path
from vitrail.machine import installed_version, processor_name
from vitrail.prediction import Predictor
from vitrail.prediction.predictor import torch_runtime_of
from vitrail.progress import Progress, ending, pick_progress, table, working
from vitrail.registry import RUNTIMES
from vitrail.runtimes.contestants import (
    PEERS,
    ROUNDS,
    Contestant,
    Entrant,
    Turn,
    Workshop,
    answer_all,
    check_peers,
    check_precisions,
    check_runtimes,
    export_entrant,
    measure_gemm_peak,
    open_exports,
    time_in_turns,
)
from vitrail.runtimes.graph_runtime import ExportedRuntime
from vitrail.runtimes.runtime import Floats
from vitrail.threads import cores
from vitrail.timing import Timing
from vitrail.verbs.benchmark import BenchmarkPlan
from vitrail.verbs.call import DataArgument, ModelArgument
from vitrail.verbs.scores import default_split
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import fingerprint
from vitrail.weights.proof import sample_photos
from vitrail.wording import counted

Key = tuple[Contestant, int, int]  # with the batch size and the number of cores
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
    same_class: float | None  # share of the pictures that get the class which float32 in torch gives them
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


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The pictures on which answers are compared, and what they show where that is known."""

    images: Floats
    has_head: bool  # answers are logits, not features
    targets: np.ndarray[Any, Any] | None = None
    order: list[int] | None = None  # of the data's classes in the head
    data: str | None = None
    split: str | None = None


def read_sample(
    predictor: Predictor,
    data: DataArgument | None,
    split: str | None,
    limit: int,
    by_position: bool,
    show: Progress,
) -> Sample:
    """Some pictures of a data set, whose classes must be the model's; without one, parts of two photographs."""
    spec = predictor.preprocess
    if data is None:
        return Sample(images=photographs(predictor.preprocess), has_head=predictor.num_classes > 0)
    dataset = data.open()
    name = split or default_split(dataset)
    order = align_classes(predictor, dataset.classes, by_position=by_position)
    source = pick_split(dataset, name)
    samples = choose(len(source), limit)
    with show("reading pictures", len(samples)) as advance:
        kept, rows, _ = run(
            predictor, source, samples, lambda images: images.reshape(len(images), -1), progress=advance
        )
    images = rows.reshape(-1, spec.channels, *spec.size)
    targets = source.labels[kept]
    return Sample(images=images, has_head=True, targets=targets, order=order, data=dataset.name, split=name)


def photographs(spec: Preprocess) -> Floats:
    """Two photographs and their quarters, each mirrored too; noise for models that take no pictures of files."""
    shape = (spec.channels, *spec.size)
    if spec.channels not in (1, 3):
        return np.random.default_rng(0).standard_normal((20, *shape)).astype(np.float32)
    views = [view for photo in sample_photos() for view in _views(photo)]
    images = np.empty((len(views), *shape), dtype=np.float32)
    for view, image in zip(views, images, strict=True):
        prepare_array(view, spec, image)
    return images


def _views(photo: Path) -> list[Picture]:
    with Image.open(photo) as image:
        whole = image.convert("RGB")
    width, height = whole.width // 2, whole.height // 2
    corners = [(x, y) for x in (0, width) for y in (0, height)]
    parts = [whole, *(whole.crop((x, y, x + width, y + height)) for x, y in corners)]
    return [*parts, *(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for part in parts)]


def carry_out(model: ModelArgument, plan: BenchmarkPlan, progress: bool | Progress) -> Comparison:
    """Measure everything in the plan."""
    names, missing = check_runtimes(plan.runtimes)
    precisions = check_precisions(plan.precisions)
    show, seconds = pick_progress(progress), plan.seconds
    with working(f"loading {model.name}", speaks=progress is not False):
        predictor = model.open()
        entered = _enter(predictor, plan, names, precisions)
    sample = read_sample(predictor, plan.data, plan.split, plan.pictures, plan.by_position, show)
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        workshop = None if entered.checkpoint is None else Workshop(entered.checkpoint, Path(folder))
        entrants = list(_build(entered, workshop, show))
        expected, answers = _answer(entrants, workshop, sample, max(plan.batches), show)
        before = {count: measure_gemm_peak(count, min(1.0, seconds)) for count in plan.threads}
        timings = _time(entrants, plan, sample.images, seconds, show)
        peaks = {count: max(peak, measure_gemm_peak(count, min(1.0, seconds))) for count, peak in before.items()}
    rows = [
        _row(entrant, key, timings[key], expected, answers[entrant.contestant], sample, peaks)
        for entrant in entrants
        for key in _keys(entrant, plan)
    ]
    comparison = Comparison(
        model=model.name,
        rows=tuple(rows),
        machine=_machine(peaks),
        pictures=len(sample.images),
        data=sample.data,
        split=sample.split,
        missing=() if entered.checkpoint is None else tuple(missing),
        source=model.source or model.name,
    )
    return comparison if plan.out is None else replace(comparison, written=comparison.save(plan.out))


def _contestants(
    plan: BenchmarkPlan, runtimes: Sequence[str], precisions: Sequence[str], peers: Sequence[str]
) -> Iterator[Contestant]:
    """The reference first: float32 in torch, nothing merged."""
    ways = (False, True) if plan.compiled else (False,)
    for merge in plan.merges:
        for runtime in runtimes:
            for precision in precisions:
                if precision not in RUNTIMES[runtime].precisions:
                    continue
                for way in ways if runtime == "torch" else (False,):
                    yield Contestant(runtime=runtime, precision=precision, merge=merge, compiled=way)
    for peer in peers:
        for way in ways:
            yield Contestant(runtime=peer, compiled=way)


@dataclass(frozen=True, kw_only=True)
class _Entered:
    """Who takes part: what is built of a checkpoint, and exports that are there already."""

    checkpoint: Checkpoint | None
    contestants: list[Contestant]
    ready: list[Entrant]


def _enter(predictor: Predictor, plan: BenchmarkPlan, runtimes: list[str], precisions: list[str]) -> _Entered:
    """Who takes part; what cannot is an error now."""
    if torch_runtime_of(predictor.runtime) is not None:
        checkpoint = predictor.checkpoint()
        contestants = list(_contestants(plan, runtimes, precisions, check_peers(plan.compare, checkpoint)))
        ready = open_exports(plan.exports, fingerprint(checkpoint.tensors)) if plan.exports else []
        return _Entered(checkpoint=checkpoint, contestants=contestants, ready=ready)
    if plan.runtimes or plan.precisions or plan.compiled or plan.compare or plan.merges != [0]:
        raise ConfigError(
            "an export runs in its own runtime, precision and number of tokens: `runtimes=`, `precision=`, `merge=`, "
            "`compare=` and `compiled=` need the checkpoint that it was made from."
        )
    runtime = cast("ExportedRuntime", predictor.runtime)
    own = export_entrant(runtime, predictor.source)
    others = open_exports(plan.exports, runtime.manifest.weights_sha256)
    return _Entered(checkpoint=None, contestants=[], ready=[own, *others])


def _build(entered: _Entered, workshop: Workshop | None, show: Progress) -> Iterator[Entrant]:
    if workshop is not None:
        with show("building", len(entered.contestants)) as advance:
            for contestant in entered.contestants:
                yield workshop.build(contestant)
                advance(1)
    yield from entered.ready


def _answer(
    entrants: list[Entrant], workshop: Workshop | None, sample: Sample, batch: int, show: Progress
) -> tuple[Floats, dict[Contestant, Floats]]:
    """What all pictures should get, which is what float32 in torch gives them, and what each contestant answers."""
    plain = Contestant(runtime="torch")
    answers: dict[Contestant, Floats] = {}
    with show("comparing answers", len(entrants)) as advance:
        for entrant in entrants:
            answers[entrant.contestant] = answer_all(entrant.compute, sample.images, batch)
            advance(1)
    if workshop is None:  # there is no reference for an export alone but itself
        return answers[entrants[0].contestant], answers
    if plain not in answers:
        return answer_all(workshop.build(plain).compute, sample.images, batch), answers
    return answers[plain], answers


def _keys(entrant: Entrant, plan: BenchmarkPlan) -> list[Key]:
    return [(entrant.contestant, batch, count) for batch in plan.batches for count in plan.threads]


def _time(
    entrants: list[Entrant], plan: BenchmarkPlan, images: Floats, seconds: float, show: Progress
) -> dict[Key, Timing]:
    turns: dict[Key, Turn] = {}
    for entrant in entrants:
        for key in _keys(entrant, plan):
            _, batch, count = key
            pictures = np.ascontiguousarray(np.resize(images, (batch, *images.shape[1:])))
            turns[key] = Turn(call=lambda compute=entrant.compute, pictures=pictures: compute(pictures), cores=count)
    with show("compiling and warming up", len(turns)) as advance:
        for turn in turns.values():
            with cores(turn.cores):
                turn.call()
            advance(1)
    with show("measuring", ROUNDS * len(turns)) as advance:
        return time_in_turns(turns, seconds, advance)


def _row(
    entrant: Entrant,
    key: Key,
    timing: Timing,
    expected: Floats,
    actual: Floats,
    sample: Sample,
    peaks: dict[int, float],
) -> BenchmarkRow:
    contestant, batch, count = key
    rate = batch * timing.rate
    float32 = contestant.precision == "float32" and entrant.macs
    accuracy = None
    if sample.targets is not None and sample.order is not None:
        accuracy = float((actual[:, sample.order].argmax(axis=1) == sample.targets).mean())
    return BenchmarkRow(
        contestant=contestant,
        batch=batch,
        threads=count,
        p50_ms=1000 * timing.p50,
        p95_ms=1000 * timing.p95,
        images_per_second=rate,
        megabytes=entrant.megabytes,
        same_class=float((expected.argmax(axis=1) == actual.argmax(axis=1)).mean()) if sample.has_head else None,
        difference=_difference(expected, actual, centred=sample.has_head),
        accuracy=accuracy,
        peak_share=2 * entrant.macs * rate / peaks[count] if float32 else None,
    )


def _difference(expected: Floats, actual: Floats, *, centred: bool) -> float:
    """Of the largest number; of logits, only what tells classes apart counts: some exports give probabilities."""
    if centred:
        expected, actual = (rows - rows.mean(axis=1, keepdims=True) for rows in (expected, actual))
    return float(np.abs(actual - expected).max() / max(float(np.abs(expected).max()), 1e-30))


def _machine(peaks: dict[int, float]) -> dict[str, Any]:
    packages = (*(kind.packages[0] for kind in RUNTIMES.values()), *PEERS)
    installed = {name: version for name in packages if (version := installed_version(name))}
    return {
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "gemm_gflops": {count: peak / 1e9 for count, peak in peaks.items()},
        "versions": {"vitrail": __version__, **installed},
    }

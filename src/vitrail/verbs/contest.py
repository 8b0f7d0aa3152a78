"""How `vitrail.benchmark` measures: who takes part, the pictures on which answers are compared, and the turns."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from vitrail import __version__
from vitrail.data.pixels import Picture, prepare_array
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError
from vitrail.evaluation.measurement import align_classes, choose, pick_split, run
from vitrail.machine import installed_version, processor_name
from vitrail.prediction import Predictor
from vitrail.prediction.predictor import torch_runtime_of
from vitrail.progress import Progress, pick_progress, working
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
from vitrail.verbs.comparison import BenchmarkRow, Comparison
from vitrail.verbs.measured_data import default_split
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Metadata
from vitrail.weights.native import fingerprint
from vitrail.weights.proof import sample_photos

Key = tuple[Contestant, int, int]  # with the batch size and the number of cores


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The pictures on which answers are compared, and what they show where that is known."""

    images: Floats
    facts: Metadata  # of the model
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
        return Sample(images=photographs(spec), facts=predictor, has_head=predictor.num_classes > 0)
    dataset = data.open()
    dataset.require_classes("a benchmark of labelled pictures")
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
    sample = Sample(images=images, facts=predictor, has_head=True, data=dataset.name, split=name)
    return replace(sample, targets=targets, order=order) if predictor.task.labels == "class" else sample


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
    accuracy, facts = None, sample.facts
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
        same_class=float(facts.task.same_answers(expected, actual, facts.trust).mean()) if sample.has_head else None,
        difference=_difference(expected, actual, centred=sample.has_head and facts.task.labels == "class"),
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

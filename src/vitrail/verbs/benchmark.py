"""`vitrail.benchmark`: how fast one model is on each runtime of this machine, and how far its answers stay the same."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from vitrail import __version__
from vitrail.data.datasets import check_where
from vitrail.data.pixels import Picture, prepare_array
from vitrail.data.preprocess import Preprocess
from vitrail.data.source import Dataset
from vitrail.errors import ConfigError
from vitrail.evaluation.measurement import align_classes, choose, pick_split, run
from vitrail.files import check_run_folder
from vitrail.machine import installed_version, processor_name
from vitrail.prediction import Predictor, load
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
from vitrail.threads import cores, num_cores
from vitrail.timing import Timing
from vitrail.verbs.comparison import Comparison, Row
from vitrail.verbs.data import open_data
from vitrail.verbs.evaluate import default_split
from vitrail.verbs.loading import name_of
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import ClassNames
from vitrail.weights.native import fingerprint
from vitrail.weights.proof import sample_photos

PICTURES = 200  # of a data set, at most


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
    data: Dataset | str | Path | None,
    split: str | None,
    limit: int,
    by_position: bool,
    show: Progress,
) -> Sample:
    """Some pictures of a data set, whose classes must be the model's; without one, parts of two photographs."""
    spec = predictor.preprocess
    if data is None:
        return Sample(images=photographs(predictor.preprocess), has_head=predictor.num_classes > 0)
    dataset = data if isinstance(data, Dataset) else open_data(data)
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


SECONDS = 2.0

NUMBERS = "whole numbers of at least"
Key = tuple[Contestant, int, int]  # with the batch size and the number of cores


def benchmark(
    model: Predictor | str | Path,
    *,
    runtimes: Sequence[str] | None = None,
    precision: Sequence[str] | None = None,
    merge: Sequence[int] = (0,),
    exports: Sequence[str | Path] = (),
    batch: Sequence[int] = (1, 8),
    threads: Sequence[int] = (),
    compare: Sequence[str] = (),
    compiled: bool = False,
    data: Dataset | str | Path | None = None,
    split: str | None = None,
    pictures: int = PICTURES,
    classes: ClassNames | None = None,
    by_position: bool = False,
    seconds: float = SECONDS,
    out: str | Path | None = None,
    progress: bool | Progress = False,
) -> Comparison:
    """Measure one model on the processor, in every combination of what is named, and compare the answers.

    All contestants are built first and then take turns; the quieter half of the turns counts. A model that is an export
    is measured as it is, beside others of the same weights.

    Args:
        model: a loaded model, or what `vitrail.load` takes.
        runtimes: torch, onnx, openvino; by default, all that are installed.
        precision: float32, bf16; by default, float32, and bf16 where the processor computes in it.
        merge: how many patches each block merges away; several numbers give a curve.
        exports: what `vitrail export` has made of the same weights, such as an int8 model, to run beside them.
        batch: pictures of one call.
        threads: cores of one call; by default, all of them.
        compare: the same weights in timm, transformers, torchvision.
        compiled: also run what runs in torch through torch.compile, which takes minutes to compile.
        data: a data set, for the accuracy of each: an open one, or what `vitrail.open_data` takes.
        split: the split of it; by default test, or else val.
        pictures: how many pictures of it to use at most.
        classes: the names of the model's classes, in order, or a file of them, for a checkpoint without names.
        by_position: the checkpoint has no class names, and its classes are the data's in their order.
        seconds: how long each row is measured.
        out: a folder for benchmark.json, benchmark.md and benchmark.png.
    """
    names, missing = check_runtimes(runtimes)
    plan = _Plan(
        runtimes=names,
        precisions=check_precisions(precision),
        merges=_numbers("`merge=`", merge, 0),
        batches=_numbers("`batch=`", batch, 1),
        threads=_numbers("`threads=`", threads or (num_cores(),), 1, os.cpu_count() or 1),
        compiled=compiled,
    )
    _check_rest(data, split, classes, by_position, seconds, pictures, out)
    show = pick_progress(progress)
    with working(f"loading {name_of(model)}", speaks=progress is not False):
        predictor = model if isinstance(model, Predictor) else load(model, class_names=classes)
        entered = _enter(predictor, plan, exports, compare, given=(runtimes, precision, compiled))
    sample = read_sample(predictor, data, split, pictures, by_position, show)
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
        model=name_of(model),
        rows=tuple(rows),
        machine=_machine(peaks),
        pictures=len(sample.images),
        data=sample.data,
        split=sample.split,
        missing=() if entered.checkpoint is None else tuple(missing),
    )
    return comparison if out is None else replace(comparison, written=comparison.save(out))


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is combined with what."""

    runtimes: list[str]
    precisions: list[str]
    merges: list[int]
    batches: list[int]
    threads: list[int]
    compiled: bool

    def contestants(self, peers: Sequence[str]) -> Iterator[Contestant]:
        """The reference first: float32 in torch, nothing merged."""
        ways = (False, True) if self.compiled else (False,)
        for merge in self.merges:
            for runtime in self.runtimes:
                for precision in self.precisions:
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


def _numbers(name: str, values: Sequence[int], least: int, most: int | None = None) -> list[int]:
    upper = "" if most is None else f" and at most {most}"
    if not values or any(value < least or (most is not None and value > most) for value in values):
        raise ConfigError(f"{name} must be {NUMBERS} {least}{upper}; got {', '.join(map(str, values)) or 'none'}.")
    return list(dict.fromkeys(values))


def _check_rest(
    data: Dataset | str | Path | None,
    split: str | None,
    classes: ClassNames | None,
    by_position: bool,
    seconds: float,
    pictures: int,
    out: str | Path | None,
) -> None:
    """What is wrong with the other arguments, before anything is loaded."""
    if data is None and (split is not None or by_position or pictures != PICTURES):
        raise ConfigError("`split=`, `pictures=` and `by_position=` go with `data=`; name the data, or omit them.")
    if data is not None and not isinstance(data, Dataset):
        check_where(str(data))
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"must be above 0; got {seconds}.", field="seconds")
    if pictures < 1:
        raise ConfigError(f"must be at least 1; got {pictures}.", field="pictures")
    if out is not None:
        check_run_folder(Path(out))


def _enter(
    predictor: Predictor,
    plan: _Plan,
    exports: Sequence[str | Path],
    compare: Sequence[str],
    given: tuple[Any, ...],
) -> _Entered:
    """Who takes part; what cannot is an error now."""
    if torch_runtime_of(predictor.runtime) is not None:
        checkpoint = predictor.checkpoint()
        peers = check_peers(compare, checkpoint)
        ready = open_exports(exports, fingerprint(checkpoint.tensors)) if exports else []
        return _Entered(checkpoint=checkpoint, contestants=list(plan.contestants(peers)), ready=ready)
    if any(given) or compare or plan.merges != [0]:
        raise ConfigError(
            "an export runs in its own runtime, precision and number of tokens: `runtimes=`, `precision=`, `merge=`, "
            "`compare=` and `compiled=` need the checkpoint that it was made from."
        )
    runtime = cast("ExportedRuntime", predictor.runtime)
    own = export_entrant(runtime, predictor.source)
    return _Entered(
        checkpoint=None, contestants=[], ready=[own, *open_exports(exports, runtime.manifest.weights_sha256)]
    )


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
    if workshop is None:  # of an export alone, nobody knows more than that export
        return answers[entrants[0].contestant], answers
    if plain not in answers:
        return answer_all(workshop.build(plain).compute, sample.images, batch), answers
    return answers[plain], answers


def _keys(entrant: Entrant, plan: _Plan) -> list[Key]:
    return [(entrant.contestant, batch, count) for batch in plan.batches for count in plan.threads]


def _time(entrants: list[Entrant], plan: _Plan, images: Floats, seconds: float, show: Progress) -> dict[Key, Timing]:
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
) -> Row:
    contestant, batch, count = key
    rate = batch * timing.rate
    float32 = contestant.precision == "float32" and entrant.macs
    accuracy = None
    if sample.targets is not None and sample.order is not None:
        accuracy = float((actual[:, sample.order].argmax(axis=1) == sample.targets).mean())
    return Row(
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

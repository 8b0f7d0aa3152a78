"""What a job runs on: the fastest runtime whose answers are torch's, measured where that pays, and remembered.

Converting and measuring take seconds, so that they must save more. A job too short for that stays on torch, and nothing
is added to it: what it will take is first estimated from the size of the model, then from one short call.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vitrail import __version__
from vitrail.data.pixels import Picture, prepare_named
from vitrail.errors import ConfigError
from vitrail.machine import computes_bf16, installed_version, processor_name
from vitrail.registry import RUNTIMES, NumberFormat, Precision, PrecisionChoice, key_of, label_of
from vitrail.runtimes.auto_cache import (
    DECISIONS,
    GRAPHS,
    INT8_PATHS,
    Decision,
    Int8Export,
    Outcome,
    find_graph,
    find_int8,
    make_graph,
    read_decision,
    write_decision,
)
from vitrail.runtimes.exporter import fit_to_pictures
from vitrail.runtimes.graph import FORM
from vitrail.runtimes.manifest import GraphFile
from vitrail.runtimes.runtime import Floats, Runtime, answers_of, backend_of
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.schema import to_dict
from vitrail.threads import start_workers
from vitrail.timing import best_of, seconds_of, take_turns, undisturbed
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import fingerprint
from vitrail.weights.proof import Agreement, compare, sample_images
from vitrail.wording import reason


class Way(NamedTuple):
    """One way to compute."""

    runtime: str
    precision: NumberFormat


PLAIN = Way("torch", "float32")


class Converter:
    """Opens a model on any runtime; what that takes is done once, and when it is needed.

    Args:
        folder: where to write the ONNX file that other runtimes are made of; by default, the user's cache.
    """

    def __init__(self, own: TorchRuntime, checkpoint: Checkpoint, folder: Path | None = None) -> None:
        self.own, self.loaded, self.folder = own, checkpoint, folder

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """At the size of the pictures that it takes, as exports have it."""
        return fit_to_pictures(self.loaded)

    @cached_property
    def sha256(self) -> str:
        return fingerprint(self.loaded.tensors)

    @cached_property
    def kept(self) -> GraphFile | None:
        """The ONNX file that is in the cache already."""
        return None if self.folder is not None else find_graph(self.checkpoint, self.sha256)

    @cached_property
    def int8(self) -> Int8Export | None:
        """The int8 export that was made of this checkpoint, if it can still be run."""
        if INT8_PATHS.is_empty:  # a short job must not pay for the hash of its weights
            return None
        return find_int8(self.sha256, json.dumps(to_dict(self.checkpoint.config)))

    @cached_property
    def graph(self) -> GraphFile:
        return self.kept or make_graph(self.checkpoint, self.sha256, self.folder)

    @property
    def num_bytes(self) -> int:
        """Of the weights in float32."""
        return sum(4 * tensor.numel() for tensor in self.loaded.tensors.values())

    def can_convert(self, runtime: str) -> bool:
        """Whether it is worth thinking of this runtime: what it needs is installed, and the model suits it."""
        if runtime == "torch":
            return True
        suits = self.own.device.type == "cpu" and self.num_bytes <= GRAPHS.most_bytes
        return suits and RUNTIMES[runtime].is_installed

    def open(self, way: Way) -> Runtime:
        """The model on a runtime, in a number format."""
        if way.precision == "int8":
            assert self.int8 is not None
            return self.int8.runtime
        return backend_of(way.runtime).convert(self.own, lambda: self.graph, way.precision)


# Of the largest number, within which answers are the same; in bf16, as far as its rounding can bring them.
TOLERANCES: dict[NumberFormat, float] = {"float32": 1e-4, "bf16": 0.1}
SAMPLE = 16  # pictures to measure and compare with
CALL_SECONDS = 0.15  # of one call that is measured: enough to tell, and short enough for several
RACE_SECONDS, MOST_ROUNDS = 2.0, 8
AGREE_SECONDS = 1.0  # for comparing classes in bf16


def prepare_some(pictures: Iterable[Picture], checkpoint: Checkpoint) -> Floats:
    """The first pictures of a job as the model sees them; without any, two photographs and their mirrors."""
    named, images = (("picture", picture) for picture in pictures), list[Floats]()
    for _ in range(2):  # in place of those that cannot be read, which the job itself will tell, a few more
        images.extend(prepare_named(list(islice(named, SAMPLE - len(images))), checkpoint.preprocess)[0])
    return np.stack(images) if images else sample_images(checkpoint).numpy()


def time_picture(runtime: Runtime, images: Floats, clock: Callable[[], float] | None = None) -> float:
    """Seconds that one core takes for a picture, roughly."""
    call, count = answers_of(runtime), 1
    with start_workers(1) as pool:
        while True:
            part = _part(images, 0, count)
            seconds = seconds_of(lambda part=part: pool.submit(call, part).result(), clock)
            more = min(runtime.batch_size, int(CALL_SECONDS / max(seconds / count, 1e-6)))
            if more < 4 * count:
                return seconds / count
            count = more


def measure(
    converter: Converter, ways: Sequence[Way], images: Floats, picture_seconds: float, batch: int | None = None
) -> tuple[Outcome, ...]:
    """How fast each way is with `batch` pictures per call, or why it cannot be used."""
    own = converter.own
    most = max(1, min(own.batch_size, int(CALL_SECONDS / picture_seconds)))
    count = most if batch is None else min(batch, most)
    calls = own.threads * (most // count)  # as much work as with the largest calls
    parts = [_part(images, place * count, count) for place in range(calls)]
    with start_workers(own.threads) as pool:
        expected = _run_all(pool, answers_of(own), parts)
        features = pool.submit(own.features, parts[0][:1]).result()
        runtimes: dict[Way, Runtime] = {}
        outcomes: dict[Way, Outcome] = {}
        for way in ways:
            outcome = Outcome(runtime=way.runtime, precision=way.precision)
            try:
                runtimes[way] = converter.open(way)
                answers = _run_all(pool, answers_of(runtimes[way]), parts)
                found = pool.submit(runtimes[way].features, parts[0][:1]).result()
                outcomes[way] = _judge(outcome, [_agree(expected, answers), _agree(features, found)])
            except (OSError, MemoryError):  # of this moment, not of the model
                raise
            except Exception as error:  # a runtime may fail in any way, and torch is there
                outcomes[way] = replace(outcome, problem=f"does not run this model ({reason(error)[:200]})")
        usable = [way for way in ways if not outcomes[way].problem]
        calls = [partial(_run_all, pool, answers_of(runtimes[way]), parts) for way in usable]
        taken = take_turns(calls, MOST_ROUNDS, patience=RACE_SECONDS, work_clock=time.process_time)
        laps = [best_of(each) for each in taken]
        on_processor = own.device.type == "cpu"
        comparable = undisturbed(laps, own.threads) if on_processor else [lap.wall for lap in laps]
        for way, seconds in zip(usable, comparable, strict=True):
            outcomes[way] = replace(outcomes[way], seconds=seconds / (count * len(parts)))
            if way.precision == "int8" and converter.int8 is not None:
                agreement = converter.int8.runtime.manifest.agreement
                outcomes[way] = replace(outcomes[way], top1=agreement, export=converter.int8.path)
            elif way.precision == "bf16" and converter.own.num_classes:
                some = images[: max(2, int(AGREE_SECONDS / picture_seconds))]
                ours, theirs = (pool.submit(each.logits, some).result() for each in (own, runtimes[way]))
                same = converter.loaded.task.same_answers(ours, theirs, converter.loaded.trust)
                outcomes[way] = replace(outcomes[way], top1=float(same.mean()), pictures=len(same))
    return tuple(outcomes[way] for way in ways)


def _run_all(pool: ThreadPoolExecutor, call: Callable[[Floats], Floats], parts: Sequence[Floats]) -> Floats:
    return np.concatenate(list(pool.map(call, parts)))


def _part(images: Floats, start: int, count: int) -> Floats:
    """`count` pictures from a place on, from the beginning again where they end."""
    return np.take(images, range(start, start + count), axis=0, mode="wrap")


def _agree(expected: Floats, actual: Floats) -> Agreement:
    return compare("numbers", torch.from_numpy(expected), torch.from_numpy(actual))


def _judge(outcome: Outcome, agreements: Sequence[Agreement]) -> Outcome:
    difference = max(agreement.relative for agreement in agreements)
    too_far = difference > TOLERANCES.get(outcome.precision, float("inf"))  # int8 was judged when it was made
    problem = f"gives other answers (by up to {difference:.1e} of the largest number)" if too_far else ""
    return replace(outcome, difference=difference, problem=problem)


GAIN = 0.15  # of a job's time, which another runtime is expected to save before it is measured
# Seconds that it takes, roughly, to convert a model, to measure all runtimes, and to open a kept export.
EXPORT_SECONDS, MEASURE_SECONDS, OPEN_SECONDS = 6.0, 4.0, 1.0
BYTES_PER_SECOND = 200e6  # of an export that is written or read
RATE = 2e10  # multiply-adds in a second on one core, roughly


class Choice(NamedTuple):
    """What to run on, and one line that says so; empty where there is nothing to say."""

    runtime: Runtime
    note: str = ""


def choose(
    own: TorchRuntime,
    checkpoint: Checkpoint,
    runtime: str,
    precision: PrecisionChoice,
    count: int | None,
    pictures: Iterable[Picture] = (),
    batch: int | None = None,
) -> Choice:
    """The runtime for a job of `count` pictures, of which `pictures` are some; None: their number is unknown.

    `batch` of them come together; by default as many as suit the model.

    Where `runtime` and `precision` leave no choice, what they say; a model that cannot be converted is an error then.
    """
    if batch is not None and (type(batch) is not int or batch < 1):
        raise ConfigError(f"must be a whole number of at least 1; got {batch!r}.", field="batch")
    converter = Converter(own, checkpoint)
    ways = list_ways(converter, runtime, precision)
    if len(ways) == 1:
        return Choice(converter.open(ways[0]))
    decision, is_new = _decide(converter, ways, count, pictures, batch)
    if decision is None:
        return Choice(converter.open(ways[0]))
    plain, best = decision.outcomes[0], decision.best
    if best is plain:
        return Choice(converter.open(ways[0]), decision.describe(checkpoint.task.same) if is_new else "")
    saved = float("inf") if count is None else count * (plain.seconds - best.seconds)
    if not is_new and saved < _opening_seconds(converter, ways):
        return Choice(converter.open(ways[0]))
    try:
        return Choice(converter.open(Way(best.runtime, best.precision)), decision.describe(checkpoint.task.same))
    except Exception as error:  # a cache may be removed, a disk full
        return Choice(converter.open(ways[0]), f"{best.label} cannot be used now ({reason(error)[:200]})")


def list_ways(converter: Converter, runtime: str, precision: PrecisionChoice) -> list[Way]:
    """The ways to compute among which to choose; the first is what runs if nothing is measured."""
    runtimes = [name for name in RUNTIMES if converter.can_convert(name)] if runtime == "auto" else [runtime]
    precisions: tuple[Precision, ...] = ("float32",) if precision == "auto" else (precision,)
    if precision == "auto" and _has_bf16(converter.own.device):
        precisions = ("float32", "bf16")
    ways = [Way(name, each) for each in precisions for name in runtimes if each in RUNTIMES[name].precisions]
    if precision == "auto" and converter.own.device.type == "cpu" and converter.int8 is not None:
        ways += [Way(name, "int8") for name in runtimes if name == key_of(converter.int8.runtime.name)]
    return ways


def _decide(
    converter: Converter, ways: Sequence[Way], count: int | None, pictures: Iterable[Picture], batch: int | None
) -> tuple[Decision | None, bool]:
    """What was measured before, or is measured now; None for a job that is too short. And whether it is new."""
    if count is None and DECISIONS.is_empty:
        return None, False
    rough = float("inf") if count is None else count * _rough_seconds(converter)
    if GAIN * rough < _opening_seconds(converter, ways):
        return None, False
    key = decision_key(converter, ways, batch)
    if decision := read_decision(key):
        exports = decision.best.runtime != "torch"
        return (None if count is None and exports and converter.kept is None else decision), False
    cost = MEASURE_SECONDS + _converting_seconds(converter, ways)
    if count is None or GAIN * rough < cost:
        return None, False
    images = prepare_some(pictures, converter.checkpoint)
    seconds = time_picture(converter.own, images)
    if GAIN * count * seconds / converter.own.threads < cost:
        return None, False
    try:
        decision = Decision(key=key, outcomes=measure(converter, ways, images, seconds, batch))
    except (OSError, MemoryError):  # a full disk or memory says nothing about the runtimes
        return None, False
    if decision.outcomes[0].problem:
        return None, False
    write_decision(decision)
    return decision, True


def decision_key(converter: Converter, ways: Sequence[Way], batch: int | None = None) -> str:
    """Everything that a decision depends on."""
    own = converter.own
    device = torch.cuda.get_device_name(own.device) if own.device.type == "cuda" else processor_name()
    packages = {kind.packages[0] for kind in RUNTIMES.values() if kind.packages}
    facts = {
        "weights": converter.sha256,
        "config": to_dict(converter.checkpoint.config),
        "form": FORM,
        "batch": batch or own.batch_size,
        "ways": [label_of(*way) for way in ways],
        "int8": _int8_graph(converter, ways),
        "device": [own.device.type, device],
        "cores": [os.cpu_count(), own.threads],
        "versions": {"vitrail": __version__} | {name: installed_version(name) or "" for name in sorted(packages)},
    }
    return json.dumps(facts, sort_keys=True)


def _int8_graph(converter: Converter, ways: Sequence[Way]) -> list[str | int]:
    """Which int8 export takes part, if one does."""
    if converter.int8 is None or all(way.precision != "int8" for way in ways):
        return []
    return [converter.int8.path, converter.int8.runtime.manifest.graph_crc32]


def _rough_seconds(converter: Converter) -> float:
    """For one picture with all cores busy, by the size of the model: good enough to tell seconds from minutes."""
    return converter.num_bytes / 4 * converter.checkpoint.config.tokens / (RATE * converter.own.threads)


def _opening_seconds(converter: Converter, ways: Sequence[Way]) -> float:
    """Of an export that is kept; a job that must be exported anyway pays for that in any case."""
    if ways[0].runtime != "torch" or all(way.runtime == "torch" for way in ways):
        return 0.0
    return OPEN_SECONDS + converter.num_bytes / BYTES_PER_SECOND


def _converting_seconds(converter: Converter, ways: Sequence[Way]) -> float:
    opening = _opening_seconds(converter, ways)
    return 0.0 if not opening else opening if converter.kept else EXPORT_SECONDS + 2 * opening


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and computes_bf16()

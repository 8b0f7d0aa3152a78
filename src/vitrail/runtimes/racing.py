"""Several ways to compute, measured as they will be used: every core busy with a call of its own, in turns."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from vitrail.data.pixels import Picture, prepare_array
from vitrail.errors import InputError
from vitrail.runtimes.converting import Converter, Way
from vitrail.runtimes.decisions import Outcome
from vitrail.runtimes.opening import Numbers
from vitrail.runtimes.runtime import Floats, Runtime
from vitrail.threads import start_workers
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.proof import Agreement, compare, sample_images
from vitrail.wording import reason

# Of the largest number, within which answers are the same; in bf16, as far as its rounding can bring them.
TOLERANCES: dict[Numbers, float] = {"float32": 1e-4, "bf16": 0.1}
SAMPLE = 16  # pictures to measure and compare with
CALL_SECONDS = 0.15  # of one call that is measured: enough to tell, and short enough for several
RACE_SECONDS, MOST_ROUNDS = 2.0, 8
QUIET = 0.8  # of the time that its cores have, which a process gets where nobody else computes
AGREE_SECONDS = 1.0  # for comparing classes in bf16

Call = Callable[[Floats], Floats]
Clock = Callable[[], float]


def prepare_some(pictures: Iterable[Picture], checkpoint: Checkpoint) -> Floats:
    """The first pictures of a job as the model sees them; without any, two photographs and their mirrors."""
    spec, images = checkpoint.preprocess, list[Floats]()
    for picture, _ in zip(pictures, range(2 * SAMPLE), strict=False):
        image = np.empty((spec.channels, *spec.size), dtype=np.float32)
        try:
            prepare_array(picture, spec, image)
        except (InputError, OSError):  # the job itself will tell
            continue
        images.append(image)
        if len(images) == SAMPLE:
            break
    return np.stack(images) if images else sample_images(checkpoint).numpy()


def time_picture(runtime: Runtime, images: Floats, clock: Clock = time.perf_counter) -> float:
    """Seconds that one core takes for a picture, roughly."""
    call, count = _call(runtime), 1
    with start_workers(1) as pool:
        while True:
            part, began = _part(images, 0, count), clock()
            pool.submit(call, part).result()
            seconds = clock() - began
            more = min(runtime.batch_size, int(CALL_SECONDS / max(seconds / count, 1e-6)))
            if more < 4 * count:
                return seconds / count
            count = more


def measure(
    converter: Converter, ways: Sequence[Way], images: Floats, picture_seconds: float, batch: int | None = None
) -> tuple[Outcome, ...]:
    """How each way does with so many pictures in a call: as fast as that, or why it is not to be taken."""
    own = converter.own
    most = max(1, min(own.batch_size, int(CALL_SECONDS / picture_seconds)))
    count = most if batch is None else min(batch, most)
    calls = own.threads * (most // count)  # as much work as with the largest calls
    parts = [_part(images, place * count, count) for place in range(calls)]
    with start_workers(own.threads) as pool:
        expected = _run_all(pool, _call(own), parts)
        features = pool.submit(own.features, parts[0][:1]).result()
        runtimes: dict[Way, Runtime] = {}
        outcomes: dict[Way, Outcome] = {}
        for way in ways:
            outcome = Outcome(runtime=way.runtime, precision=way.precision)
            try:
                runtimes[way] = converter.open(way)
                answers = _run_all(pool, _call(runtimes[way]), parts)
                found = pool.submit(runtimes[way].features, parts[0][:1]).result()
                outcomes[way] = _judge(outcome, [_agree(expected, answers), _agree(features, found)])
            except (OSError, MemoryError):  # of this moment, not of the model
                raise
            except Exception as error:  # a runtime may fail in any way, and torch is there
                outcomes[way] = replace(outcome, problem=f"does not run this model ({reason(error)[:200]})")
        usable = [way for way in ways if not outcomes[way].problem]
        laps = race(pool, [_call(runtimes[way]) for way in usable], parts)
        for way, seconds in zip(usable, judge_laps(laps, own.threads, own.device.type == "cpu"), strict=True):
            outcomes[way] = replace(outcomes[way], seconds=seconds / (count * len(parts)))
            if way.precision == "int8" and converter.int8 is not None:
                agreement = converter.int8.runtime.manifest.agreement
                outcomes[way] = replace(outcomes[way], top1=agreement, export=converter.int8.path)
            elif way.precision == "bf16" and converter.own.num_classes:
                some = images[: max(2, int(AGREE_SECONDS / picture_seconds))]
                same = _agree(*(pool.submit(each.logits, some).result() for each in (own, runtimes[way])))
                outcomes[way] = replace(outcomes[way], top1=same.top1, pictures=same.pictures)
    return tuple(outcomes[way] for way in ways)


class Lap(NamedTuple):
    """What one call in every thread at once took."""

    wall: float  # seconds on the clock
    work: float  # seconds of this process on all cores


def race(
    pool: ThreadPoolExecutor,
    calls: Sequence[Call],
    parts: Sequence[Floats],
    clock: Clock = time.perf_counter,
    work_clock: Clock = time.process_time,
) -> list[Lap]:
    """The best of each, on the clock and in work, taken in turns until the time is over."""
    laps: list[list[Lap]] = [[] for _ in calls]
    began = clock()
    for _ in range(MOST_ROUNDS):
        for call, own in zip(calls, laps, strict=True):
            start, worked = clock(), work_clock()
            _run_all(pool, call, parts)
            own.append(Lap(clock() - start, work_clock() - worked))
        if clock() - began > RACE_SECONDS:
            break
    return [Lap(min(lap.wall for lap in own), min(lap.work for lap in own)) for own in laps]


def judge_laps(laps: Sequence[Lap], cores: int, on_processor: bool) -> list[float]:
    """Seconds to compare by: on the clock, or, if others keep the machine busy, what the work takes on free cores.

    The first one is torch, or another that keeps all its cores busy: what it waited for was other processes.
    """
    busy = on_processor and bool(laps) and laps[0].work < QUIET * cores * laps[0].wall
    return [lap.work / cores if busy else lap.wall for lap in laps]


def _run_all(pool: ThreadPoolExecutor, call: Call, parts: Sequence[Floats]) -> Floats:
    return np.concatenate(list(pool.map(call, parts)))


def _call(runtime: Runtime) -> Call:
    return runtime.logits if runtime.num_classes else runtime.features


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

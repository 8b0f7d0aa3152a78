"""What suits a model on this machine, measured once while its worker starts: how many pictures to compute together."""

import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np

from vitrail.runtimes.runtime import Floats
from vitrail.serving.computing import Engine

SECONDS = 1.0  # for all of it, roughly
TIMES, LEAST = 3, 0.05  # how often, and for how many seconds, a size is measured at least; the quickest call counts
CALL = 0.0012  # seconds of work that a batch takes besides, on its way to the worker and back
WORTH = 0.05  # of the time per picture, which a larger batch must save
LONGEST = 0.25  # seconds that one batch may take: those who come next wait for it
SPREADS = 0.8  # of the time on one core, below which a lone picture is divided among all cores
WAITS = 1.5  # a batch of two that takes less than so many times one picture is worth waiting for


def warm_up(engine: Engine, narrow: Executor, wide: Executor, threads: int, max_batch: int | None) -> dict[str, Any]:
    """Let every thread compute once, then measure what was not given."""
    predictor = engine.predictor
    spec, runtime = predictor.preprocess, predictor.runtime
    images = np.zeros((max_batch or runtime.batch_size, spec.channels, *spec.size), dtype=np.float32)
    compute = runtime.logits if predictor.num_classes else runtime.features
    for future in [narrow.submit(compute, images[:1]) for _ in range(2 * threads)]:
        future.result()
    seconds = narrow.submit(measure, compute, images[: max_batch and 2]).result()
    spread = threads > 1 and wide.submit(measure, compute, images[:1]).result()[1] < SPREADS * seconds[1]
    return {
        "threads": threads,
        "max_batch": max_batch or choose_batch(seconds),
        "max_wait_ms": choose_wait(seconds),
        "spreads": spread,
    }


def measure(compute: Callable[[Floats], Floats], images: Floats) -> dict[int, float]:
    """Batch size → seconds, in doubling sizes for as long as there is time."""
    ends = time.perf_counter() + SECONDS
    seconds: dict[int, float] = {}
    size = 1
    while size <= len(images):
        took: list[float] = []
        while not took or ((len(took) < TIMES or sum(took) < LEAST) and time.perf_counter() + min(took) < ends):
            began = time.perf_counter()
            compute(images[:size])
            took.append(time.perf_counter() - began)
        seconds[size] = min(took)
        if seconds[size] > LONGEST or time.perf_counter() + 2 * seconds[size] > ends:
            break
        size *= 2
    return seconds


def choose_batch(seconds: dict[int, float]) -> int:
    """The smallest batch that is about as fast per picture as the best."""
    each = {size: (took + CALL) / size for size, took in seconds.items() if size == 1 or took <= LONGEST}
    best = min(each.values())
    return next(size for size, took in each.items() if took <= best * (1 + WORTH))


def choose_wait(seconds: dict[int, float]) -> float:
    """Milliseconds to wait for company while a core is idle: none where two pictures take about twice as long."""
    if 2 not in seconds or seconds[2] > WAITS * seconds[1]:
        return 0.0
    return round(250 * seconds[1], 3)

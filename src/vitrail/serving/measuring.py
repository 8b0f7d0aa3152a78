"""What suits a model on this machine, measured once while its worker starts: how many pictures to compute together."""

import time
from concurrent.futures import Executor
from typing import Any

import numpy as np

from vitrail.runtimes.runtime import Floats
from vitrail.serving.computing import Engine

SECONDS = 1.0  # for all of it, roughly
WORTH = 0.05  # of the time per picture, which a larger batch must save
LONGEST = 0.25  # seconds that one batch may take: those who come next wait for it
WAITS = 1.5  # a batch of two that takes less than so many times one picture is worth waiting for


def warm_up(engine: Engine, pool: Executor, threads: int) -> dict[str, Any]:
    """Let every thread compute once, then measure on one of them."""
    spec = engine.predictor.preprocess
    images = np.zeros((engine.predictor.runtime.batch_size, spec.channels, *spec.size), dtype=np.float32)
    compute = engine.predictor.runtime.logits if engine.predictor.num_classes else engine.predictor.runtime.features
    for future in [pool.submit(compute, images[:1]) for _ in range(2 * threads)]:
        future.result()
    seconds = pool.submit(measure, compute, images).result()
    return {"threads": threads, "max_batch": choose_batch(seconds), "max_wait_ms": choose_wait(seconds)}


def measure(compute: Any, images: Floats) -> dict[int, float]:
    """Batch size → seconds, in doubling sizes for as long as there is time."""
    ends = time.perf_counter() + SECONDS
    seconds: dict[int, float] = {}
    size = 1
    while size <= len(images):
        took: list[float] = []
        while len(took) < 3 and (not took or time.perf_counter() + min(took) < ends):
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
    each = {size: took / size for size, took in seconds.items() if size == 1 or took <= LONGEST}
    best = min(each.values())
    return next(size for size, took in each.items() if took <= best * (1 + WORTH))


def choose_wait(seconds: dict[int, float]) -> float:
    """Milliseconds to wait for company while a core is idle: none where two pictures take about twice as long."""
    if 2 not in seconds or seconds[2] > WAITS * seconds[1]:
        return 0.0
    return round(250 * seconds[1], 3)

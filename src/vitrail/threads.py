"""Work on all cores, results in order, memory flat.

Each worker thread carries one chunk from the files to the result, with torch on one core: while one thread decodes
another computes, no thread waits for another, and nothing smaller than a chunk is divided among cores. On two
cores that is faster than one computing thread with torch's own division of each operation, above all for small models.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from threading import Barrier, local
from typing import Any, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


def in_chunks(items: Iterable[In], size: int) -> Iterator[list[In]]:
    """Chunks of `size`, the last one perhaps shorter; `items` is never read ahead."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def map_in_order(work: Callable[[In], Out], items: Iterable[In], threads: int) -> Iterator[Out]:
    """`work` for each item, several at once, in the order of the items; few of them are held at any time.

    `items` is read only by the caller's thread. With a single item, or a single thread, that thread works too.
    """
    iterator = iter(items)
    first = list(islice(iterator, 2))
    if len(first) < 2 or threads < 2:
        for item in first:
            yield work(item)
        for item in iterator:
            yield work(item)
        return
    pool = start_workers(threads)
    waiting: deque[Future[Out]] = deque(pool.submit(work, item) for item in first)
    try:
        for item in iterator:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * threads:  # enough to keep every thread busy, and no more
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def start_workers(count: int) -> ThreadPoolExecutor:
    """Threads that compute on one core each, without changing what other threads use."""
    started = Barrier(count + 1)
    pool = ThreadPoolExecutor(count, thread_name_prefix="vitrail")
    torch = _loaded_torch()
    own = torch.get_num_threads() if torch else 0

    def begin() -> None:
        _worker.cores = 1
        if torch:
            torch.get_num_threads()  # a thread's first use takes over the common number: let it be before ours
            torch.set_num_threads(1)  # holds for this thread, and for threads that start from now on …
        started.wait()

    for _ in range(count):
        pool.submit(begin)
    started.wait()
    if torch:
        torch.set_num_threads(own)  # … which this takes back
    return pool


@contextmanager
def cores(count: int) -> Generator[None]:
    """Calls of this thread use `count` cores, in torch and in the other runtimes, which ask torch."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def num_cores() -> int:
    """The cores that this process may use: as many as torch takes, where it is loaded (OMP_NUM_THREADS counts)."""
    if torch := _loaded_torch():
        return torch.get_num_threads()
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return usable_cores()


def usable_cores() -> int:
    """The cores that the system lets this process run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores_of_this_thread() -> int:
    """The cores that one computation in this thread should take: one in a worker, all of them elsewhere."""
    return getattr(_worker, "cores", 0) or num_cores()


_worker = local()


def _loaded_torch() -> Any:
    """torch, if it has been imported; exports run without it."""
    return sys.modules.get("torch")

"""A batch divided among the cores, each of which computes its own share from beginning to end. Needs no torch.

That is faster than all cores working on every product together, which wait for each other after each step, as long as
the shares are large enough to fill a core by themselves.
"""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from vitrail.runtimes.runtime import Floats
from vitrail.threads import cores_of_this_thread, start_workers

TOKENS_PER_SHARE = 512  # at least: with fewer, waking the threads costs more than it gains


def compute_divided(compute: Callable[[Floats], Sequence[Floats]], images: Floats, tokens: int) -> Sequence[Floats]:
    """The outputs of `compute` for pictures of so many tokens, (B, …) each."""
    count = cores_of_this_thread()
    if count < 2 or len(images) < count or len(images) * tokens < count * TOKENS_PER_SHARE:
        return compute(images)
    workers = _workers(count, "torch" in sys.modules, os.getpid())
    shares = list(workers.map(compute, np.array_split(images, count)))
    return [np.concatenate(rows) for rows in zip(*shares, strict=True)]


@cache
def _workers(count: int, with_torch: bool, process: int) -> ThreadPoolExecutor:
    """Threads with a core each.

    Those that began before torch was loaded do not hold it to their core, and a forked process has none of its parent's
    threads: both need new ones.
    """
    return start_workers(count)

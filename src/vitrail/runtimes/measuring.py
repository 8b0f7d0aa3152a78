"""What `benchmark` measures with: calls that take turns, and this machine's own best matrix product."""

import time
from collections.abc import Callable, Generator, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from vitrail.threads import num_cores, start_workers

ROUNDS = 6  # turns of each
REST = 0.02  # seconds before a turn, in which the threads of the one before fall asleep
# Rows × inner × columns of products as large as those of ViT-B/16 with a batch of 8, and a square one.
PRODUCTS = ((1576, 768, 3072), (1576, 3072, 768), (1024, 1024, 1024))

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One call, and the number of cores that it may take."""

    call: Callable[[], object]
    cores: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of a call (half of them, and 95 %, in the quieter half of the turns), and calls in a second at best."""

    p50: float
    p95: float
    rate: float


def time_in_turns(
    turns: Mapping[Key, Turn], seconds: float, advance: Callable[[int], None] = lambda _: None, rounds: int = ROUNDS
) -> dict[Key, Timing]:
    """Each call for about so many seconds in all, in turns, so that what disturbs the machine disturbs all alike."""
    keys, taken = list(turns), {key: list[list[float]]() for key in turns}
    for number in range(rounds):
        for place in range(len(keys)):
            key = keys[(number + place) % len(keys)]
            spent = sum(map(sum, taken[key]))
            if number < 2 or spent < seconds:  # a call that takes longer than its time has two turns all the same
                time.sleep(REST)
                with cores(turns[key].cores):
                    taken[key].append(take_turn(turns[key].call, seconds / rounds))
            advance(1)
    return {key: sum_up(taken[key]) for key in keys}


def take_turn(call: Callable[[], object], seconds: float) -> list[float]:
    """The seconds of each call; the first one wakes the threads and counts only if it takes the whole turn."""
    first = _seconds(call)
    if first >= seconds:
        return [first]
    took: list[float] = []
    while sum(took) < seconds:
        took.append(_seconds(call))
    return took


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def sum_up(turns: list[list[float]]) -> Timing:
    """What the seconds of all calls, turn by turn, come to."""
    ordered = sorted(turns, key=lambda turn: float(np.median(turn)))
    quiet = np.concatenate(ordered[: (len(ordered) + 1) // 2])
    rate = max(len(turn) / sum(turn) for turn in turns)
    return Timing(p50=float(np.quantile(quiet, 0.5)), p95=float(np.quantile(quiet, 0.95)), rate=rate)


@contextmanager
def cores(count: int) -> Generator[None]:
    """Calls of this thread take so many cores, in torch and in the other runtimes, which ask torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_gemm_peak(count: int, seconds: float = 1.0) -> float:
    """The most float32 operations in a second that matrix products do here on so many cores.

    A multiplication and an addition are two. The best of torch's library, NumPy's, and a product for each core by
    itself, which no core has to wait for.
    """
    with_numpy = count == num_cores()  # NumPy always takes them all
    best = 0.0
    with cores(count), start_workers(count) as workers:
        runs = [run for sizes in PRODUCTS for run in _products(*sizes, with_numpy)]
        runs += [_products_apart(*sizes, workers, count) for sizes in PRODUCTS if count > 1]
        end = time.perf_counter() + seconds
        while best == 0.0 or time.perf_counter() < end:
            for operations, multiply in runs:
                best = max(best, operations / _seconds(multiply))
    return best


Product = tuple[int, Callable[[], object]]  # its operations, and what does it


def _products(rows: int, inner: int, columns: int, with_numpy: bool) -> list[Product]:
    left, right, out = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)
    operations = 2 * rows * inner * columns
    products: list[Product] = [(operations, lambda: torch.mm(left, right, out=out))]
    if with_numpy:
        arrays = left.numpy(), right.numpy(), out.numpy()
        products.append((operations, lambda: np.matmul(arrays[0], arrays[1], out=arrays[2])))
    return products


def _products_apart(rows: int, inner: int, columns: int, workers: ThreadPoolExecutor, count: int) -> Product:
    """As many products at once as there are cores."""
    own = [(torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)) for _ in range(count)]

    def multiply(matrices: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
        torch.mm(matrices[0], matrices[1], out=matrices[2])

    return 2 * rows * inner * columns * count, lambda: list(workers.map(multiply, own))

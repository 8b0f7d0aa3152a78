"""How long calls take, measured fairly: in turns, so that what disturbs the machine disturbs all alike. Needs no torch.

Whatever decides by the clock uses this: which runtime is fastest, `benchmark`, the plan and the precision of a run, the
batches of a service. The fastest of several calls counts where a choice is made, because noise only adds time.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

QUIET = 0.8  # of the time that its cores have, which a process gets where nothing else computes

Clock = Callable[[], float]


class Lap(NamedTuple):
    """What one call took."""

    wall: float  # seconds on the clock
    work: float = 0.0  # seconds of this process on all cores, where they were measured


def seconds_of(call: Callable[[], object], clock: Clock | None = None) -> float:
    """Seconds of one call on the clock."""
    now = clock or time.perf_counter
    began = now()
    call()
    return now() - began


def repeat(
    call: Callable[[], object], *, times: int = 1, seconds: float = 0.0, warm_up: int = 0, patience: float = math.inf
) -> list[float]:
    """The seconds of each call: at least `times` calls, and as many as take `seconds` together.

    The first `warm_up` calls count only if there are no others. After the first that counts, none is made that would
    bring them beyond `patience`; a call ends them all by raising StopIteration.
    """
    warming: list[float] = []
    took: list[float] = []
    try:
        while len(warming) < warm_up:
            warming.append(seconds_of(call))
        while not took or ((len(took) < times or sum(took) < seconds) and sum(took) + min(took) <= patience):
            took.append(seconds_of(call))
    except StopIteration:
        pass
    return took or warming


def take_turns(
    calls: Sequence[Callable[[], object]],
    rounds: int,
    *,
    patience: float = math.inf,
    rotate: bool = False,
    clock: Clock | None = None,
    work_clock: Clock | None = None,
) -> list[list[Lap]]:
    """What each call took, in rounds in which each has one turn; no further round begins once `patience` is over.

    With `rotate`, each round begins with another call.
    """
    now = clock or time.perf_counter
    laps: list[list[Lap]] = [[] for _ in calls]
    began = now()
    for number in range(rounds):
        for place in range(len(calls)):
            index = (number + place) % len(calls) if rotate else place
            worked = work_clock() if work_clock else 0.0
            wall = seconds_of(calls[index], now)
            laps[index].append(Lap(wall, work_clock() - worked if work_clock else 0.0))
        if now() - began > patience:
            break
    return laps


def best_of(laps: Sequence[Lap], warm_up: int = 0) -> Lap:
    """The least that a call took, on the clock and in work; the first ones count only if there are no others."""
    counted = laps[warm_up:] or laps
    return Lap(min(lap.wall for lap in counted), min(lap.work for lap in counted))


def undisturbed(laps: Sequence[Lap], cores: int) -> list[float]:
    """Seconds to compare by: on the clock, or, if others keep the machine busy, what the work takes on free cores.

    The first one keeps all its cores busy, as torch does: what it waited for was other processes.
    """
    busy = bool(laps) and laps[0].work < QUIET * cores * laps[0].wall
    return [lap.work / cores if busy else lap.wall for lap in laps]


def agreed_gain(measure: Callable[[], float], worth: float) -> float:
    """How much faster something is, by one measurement; a gain that would decide must be found by a second one too."""
    gain = measure()
    return gain if gain < worth else min(gain, measure())


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of a call (half of them, and 95 %, in the quieter half of the turns), and calls in a second at best."""

    p50: float
    p95: float
    rate: float


def sum_up(turns: list[list[float]]) -> Timing:
    """What the seconds of all calls, turn by turn, come to."""
    ordered = sorted(turns, key=lambda turn: float(np.median(turn)))
    quiet = np.concatenate(ordered[: (len(ordered) + 1) // 2])
    rate = max(len(turn) / sum(turn) for turn in turns)
    return Timing(p50=float(np.quantile(quiet, 0.5)), p95=float(np.quantile(quiet, 0.95)), rate=rate)

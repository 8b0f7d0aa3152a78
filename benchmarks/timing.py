"""Fair timing on a noisy machine: contestants take turns, and the best of many short rounds counts."""

import os
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version

from rich.console import Console
from rich.table import Table

from vitrail.machine import processor_name


def print_machine(*packages: str) -> None:
    """What belongs beside a published number: the processor, its cores, and the versions of torch and of the peers."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", *packages))
    print(f"{processor_name()}, {os.cpu_count()} cores; {versions}", flush=True)


def best_seconds(
    contestants: Mapping[str, Callable[[], object]], rounds: int, at_least: float = 0.0, rest: float = 0.0
) -> dict[str, float]:
    """The shortest time of each contestant over at least `rounds` turns and `at_least` seconds, in rotating order.

    `rest` is a pause before each turn, for background work that the previous one left.
    """
    names = list(contestants)
    best = dict.fromkeys(names, float("inf"))
    for name in names:
        contestants[name]()  # warm up: allocators, lazy kernels
    start, turn = time.perf_counter(), 0
    while turn < rounds or time.perf_counter() - start < at_least:
        for offset in range(len(names)):
            name = names[(turn + offset) % len(names)]
            time.sleep(rest)
            began = time.perf_counter()
            contestants[name]()
            best[name] = min(best[name], time.perf_counter() - began)
        turn += 1
    return best


def ratio_table(title: str, rows: Mapping[str, Mapping[str, float]], ours: str = "vitrail") -> None:
    """Print one row per setting: rates (higher is better) of each contestant, and ours over the best of the others."""
    names = list(dict.fromkeys(name for rates in rows.values() for name in rates))
    table = Table("setting", *names, "ours / best peer", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for setting, rates in rows.items():
        peers = [rate for name, rate in rates.items() if name != ours]
        ratio = rates[ours] / max(peers)
        table.add_row(setting, *(f"{rates[name]:,.1f}" if name in rates else "–" for name in names), f"{ratio:.2f}×")
    Console(highlight=False, width=120).print(table)

"""Another checkout of vitrail beside this one: has a change made anything slower?

    git worktree add ../before main; python -m benchmarks.versions ../before [--parts model train serving] [--quick]

Rates (higher is better) of both, in processes of their own that take turns, the best of many; both run with the
packages of this environment. The ratio is this checkout's rate over the other's.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchmarks.model import SETTINGS
from benchmarks.processes import Child
from benchmarks.serving import Server, ask, end_all, make_subject, start_ours
from benchmarks.timing import best_seconds, print_machine, ratio_table
from vitrail.wording import counted

HERE = Path(__file__).parents[1]
OURS, THEIRS = "this", "other"
BATCHES, BATCH = 40, 256  # of an epoch in benchmarks/train.py


def paths(checkout: Path, *, benchmarks: Path) -> dict[str, str]:
    """The environment in which Python finds vitrail in a checkout, and the benchmarks in another or the same."""
    return {**os.environ, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{benchmarks}"}


def compare_models(
    checkouts: Mapping[str, Path], processes: int, rounds: int, seconds: float
) -> dict[str, dict[str, float]]:
    """Forward passes and training steps; a process can be lucky with its memory, so several of each take part."""
    rates: dict[str, dict[str, float]] = {}
    for _ in range(processes):
        children = {
            name: Child("benchmarks.versions_model", cwd=HERE, env=paths(checkout, benchmarks=HERE))
            for name, checkout in checkouts.items()
        }
        for variant, batch in SETTINGS:
            for kind in ("forward", "training"):
                turns = {name: partial(child.ask, f"{variant} {batch} {kind}") for name, child in children.items()}
                row = rates.setdefault(f"{variant} {kind}, batch {batch}", dict.fromkeys(checkouts, 0.0))
                for name, time in best_seconds(turns, rounds, seconds).items():
                    row[name] = max(row[name], batch / time)
        for child in children.values():
            child.end()
    return rates


def compare_training(checkouts: Mapping[str, Path], rounds: int) -> dict[str, dict[str, float]]:
    """Whole epochs, each by its own checkout's benchmark."""
    contestant = ("--batches", str(BATCHES), "--contestant", "vitrail")
    children = {
        name: Child("benchmarks.train", *contestant, cwd=checkout, env=paths(checkout, benchmarks=checkout))
        for name, checkout in checkouts.items()
    }
    best = best_seconds({name: partial(child.ask, "go") for name, child in children.items()}, rounds, rest=1.0)
    for child in children.values():
        child.end()
    return {"training epoch, cifar-tiny": {name: BATCHES * BATCH / time for name, time in best.items()}}


def compare_services(checkouts: Mapping[str, Path], repeats: int) -> dict[str, dict[str, float]]:
    """Requests per second of the bundled model, with the runtime that each chooses."""
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        subject = make_subject("cifar10", Path(folder), with_int8=False)
        servers: dict[str, Server] = {}
        client = Child("benchmarks.serving_client")
        try:
            for name, checkout in checkouts.items():
                servers[name] = start_ours(subject.ours, env=paths(checkout, benchmarks=checkout))
                servers[name].wait()
            for clients in (1, 8, 32):
                rates = dict.fromkeys(servers, 0.0)
                for turn in range(repeats):
                    for name in [*servers][:: 1 if turn % 2 else -1]:
                        rates[name] = max(rates[name], ask(client, servers[name], subject, clients, 2.0)["rate"])
                rows[f"serving cifar10, {counted(clients, 'client')}"] = rates
        finally:
            end_all(servers)
            client.end()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, nargs="?", help="the root of the other checkout")
    parser.add_argument(
        "--parts", nargs="+", choices=("model", "train", "serving"), default=["model", "train", "serving"]
    )
    parser.add_argument("--quick", action="store_true", help="few rounds: a quick look, not a measurement")
    options = parser.parse_args()
    if options.other is None or not (options.other / "src" / "vitrail").is_dir():
        parser.error(f"name another checkout of vitrail; {options.other} has no src/vitrail")
    checkouts = {OURS: HERE, THEIRS: options.other.resolve()}
    print_machine()
    rows: dict[str, dict[str, float]] = {}
    if "model" in options.parts:
        rows |= compare_models(checkouts, *((1, 2, 0.0) if options.quick else (4, 3, 4.0)))
    if "train" in options.parts:
        rows |= compare_training(checkouts, 2 if options.quick else 6)
    if "serving" in options.parts:
        rows |= compare_services(checkouts, 2 if options.quick else 6)
    ratio_table("images/s or requests/s", rows, ours=OURS)


if __name__ == "__main__":
    main()

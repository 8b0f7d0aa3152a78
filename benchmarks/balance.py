"""What `balance="auto"` is worth on a long tail: the table "Uneven classes" of docs/train.md.

    python -m benchmarks.balance --cifar DIR [--seeds 3] [--epochs 12] [--ratio 100]

DIR holds CIFAR-10 in its binary layout. Of its training pictures, class k of 0 … 9 keeps 5,000 · ratio^(-k / 9), chosen
at random with the seed: the long tail of "Class-Balanced Loss" (Cui et al., 2019), 12,406 pictures at 100:1, of which a
tenth of each class is for validation. The test set stays whole, and even.

Two ways to train on it, each with `none` and with `auto`: a ViT from scratch (`cifar10-tiny`, with a short budget), and
a new head on frozen features, which are those of the ViT that was trained from scratch on the same tail with `none`
(the bundled model has seen all of CIFAR-10). Intervals are Student's, over the seeds; gains are paired by seed.
"""

import argparse
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

from benchmarks.timing import print_machine
from vitrail.data import DataConfig, Dataset, open_data
from vitrail.ranks import Ranks
from vitrail.training import Listener, TrainConfig, recipe
from vitrail.training.changes import apply_changes
from vitrail.training.plan import settle
from vitrail.training.result import Run
from vitrail.training.run import carry_out
from vitrail.training.run_folder import RunLock, begin, read_config

LARGEST = 5000  # pictures of a class of CIFAR-10
VAL_RATE = 0.1
BALANCES = ("none", "auto")


def tail_counts(ratio: float, classes: int, largest: int) -> list[int]:
    """Pictures of each class: an exponential profile, as in the literature."""
    return [max(int(largest * ratio ** (-label / (classes - 1))), 1) for label in range(classes)]


def cut_tail(dataset: Dataset, ratio: float, seed: int, largest: int, test: int | None) -> Dataset:
    """The data with a long tail in training, a part of which is for validation."""
    train, random = dataset.split("train"), np.random.default_rng(seed)
    kept: list[int] = []
    for label, count in enumerate(tail_counts(ratio, len(dataset.classes), largest)):
        kept += random.permutation(np.flatnonzero(train.labels == label))[:count].tolist()
    whole = dataset.split("test")
    some = np.linspace(0, len(whole) - 1, test or len(whole)).astype(np.int64)
    splits = {"train": train.select(sorted(kept)), "test": whole.select(some)}
    return replace(dataset, splits=splits).with_validation(VAL_RATE, seed)


class Heard(Listener):
    """Keeps what a run says about its classes."""

    def __init__(self) -> None:
        self.choice = ""

    def said(self, message: str) -> None:
        if message.startswith("balance: "):
            self.choice = message


def run(config: TrainConfig, dataset: Dataset, folder: Path) -> tuple[Run, str]:
    """Train on data in memory; and what was said of the choice."""
    heard = Heard()
    setup, _ = settle(config, dataset, Ranks(), heard)
    with RunLock() as lock:
        begin(setup, folder, lock)
        result, _ = carry_out(setup, Ranks(), folder, heard, resume=False)
    return result, heard.choice or f"balance: {read_config(folder).optim.balance}"


def describe(values: Any) -> str:
    """The mean in per cent with its 95 % interval over the seeds."""
    numbers = 100 * np.asarray(values)
    if len(numbers) < 2:
        return f"{numbers.mean():.1f} %"
    half = float(student.ppf(0.975, len(numbers) - 1)) * numbers.std(ddof=1) / math.sqrt(len(numbers))
    return f"{numbers.mean():.1f} % ± {half:.1f}"


def measure(asked: argparse.Namespace, console: Console) -> dict[str, dict[str, list[float]]]:
    """Balanced accuracy on the test set: what is trained → balance → of each seed."""
    data = open_data("cifar10", DataConfig(data_dir=asked.cifar))
    scores: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in BALANCES} for kind in ("from scratch", "head on frozen features")
    }
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(asked.seeds):
            tail = cut_tail(data, asked.ratio, seed, asked.largest, asked.test)
            for balance in BALANCES:
                folder = Path(scratch) / f"{seed}-{balance}"
                changes: dict[str, Any] = {"balance": balance, "seed": seed}
                plain = apply_changes(recipe("cifar10-tiny"), {**changes, "epochs": asked.epochs})
                weights = str(Path(scratch) / f"{seed}-none")
                head = apply_changes(recipe("linear"), {**changes, "weights": weights})
                for kind, config in zip(scores, (plain, head), strict=True):
                    began = time.monotonic()
                    result, choice = run(config, tail, folder if config is plain else folder.with_suffix(".head"))
                    assert result.test is not None
                    scores[kind][balance].append(result.test.metrics["balanced_accuracy"])
                    reached = f"{scores[kind][balance][-1]:.2%}, {time.monotonic() - began:.0f} s"
                    console.print(f"seed {seed}, {kind}, {balance}: {reached}; {choice}")
    return scores


def main() -> None:
    """Train everything, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12, help="of training from scratch")
    parser.add_argument("--ratio", type=float, default=100.0, help="of the largest class to the smallest")
    parser.add_argument("--largest", type=int, default=LARGEST, help="pictures of the largest class")
    parser.add_argument("--test", type=int, help="only so many test pictures, to try this out")
    asked, console = parser.parse_args(), Console(soft_wrap=True, highlight=False)
    print_machine()
    scores = measure(asked, console)
    table = Table("trained on the long tail", *(f"balance={name}" for name in BALANCES), "gain")
    for kind, each in scores.items():
        gains = np.subtract(each["auto"], each["none"])
        table.add_row(kind, *(describe(each[name]) for name in BALANCES), describe(gains))
    console.print(table)


if __name__ == "__main__":
    main()

"""What a teacher and pre-training are worth with few labels: the table of the two guides about them.

    python -m benchmarks.few_labels --cifar DIR [--seeds 3] [--epochs 100] [--pretrain-epochs 50] [--rate 0.1]
        [--pretrained RUN]

DIR holds CIFAR-10 in its binary layout. For each seed, a tenth of the training pictures of each class keeps its label
(a tenth of these again is for validation). The ViT of the from-scratch exercise (`cifar10-tiny`) then learns from them
for the same number of epochs in three ways: from the labels only; from the labels and a teacher (the bundled model,
which has learned from all labels); and from the labels, starting from weights that were pre-trained on all 50,000
pictures without their labels (here, or before, by RUN), at lower learning rates. Accuracies are those of the whole test
set; intervals are Student's, over the seeds; gains are paired by seed.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.balance import describe, run
from benchmarks.timing import print_machine
from vitrail.data import DataConfig, Dataset, open_data
from vitrail.ranks import Ranks
from vitrail.training import Listener, TrainConfig, recipe
from vitrail.training.changes import apply_changes, with_changes
from vitrail.training.plan import settle
from vitrail.training.run_folder import RunLock, begin
from vitrail.training.unlabelled_run import carry_out_pretraining
from vitrail.wording import counted

VAL_RATE = 0.1
FOR_PRETRAINED = {"lr": 1e-3, "muon_lr": 5e-3}  # a third and a quarter of the recipe's
WAYS = ("labels only", "labels and a teacher", "labels after pre-training")


def keep_labels(dataset: Dataset, rate: float, seed: int) -> Dataset:
    """The data with a share of the training pictures of each class, a part of which is for validation."""
    train, random = dataset.split("train"), np.random.default_rng(seed)
    kept: list[int] = []
    for label in range(len(dataset.classes)):
        own = random.permutation(np.flatnonzero(train.labels == label))
        kept += own[: round(rate * len(own))].tolist()
    splits = {"train": train.select(sorted(kept)), "test": dataset.split("test")}
    return replace(dataset, splits=splits).with_validation(VAL_RATE, seed)


def pretrain(dataset: Dataset, folder: Path, changes: dict[str, Any]) -> float:
    """Learn from the training pictures of all classes, without their labels; the minutes that it took."""
    began, listener = time.monotonic(), Listener()
    config = apply_changes(recipe("mae-small"), {"model": "cifar-tiny", "probe_every": None, **changes})
    pictures = replace(dataset, splits={"train": dataset.split("train")}).with_validation(0.05, 0)
    setup, _ = settle(config, pictures, Ranks(), listener)
    with RunLock() as lock:
        begin(setup, folder, lock)
        carry_out_pretraining(setup, Ranks(), folder, listener, resume=False)
    return (time.monotonic() - began) / 60


def ways(seed: int, epochs: int, pretrained: Path) -> dict[str, TrainConfig]:
    """The three ways to learn; what is pre-trained is neither whitened nor changed as fast as random weights."""
    plain = apply_changes(recipe("cifar10-tiny"), {"seed": seed, "epochs": epochs})
    taught = apply_changes(plain, {"teacher": "cifar10"})
    started = with_changes(plain, {"weights": str(pretrained), **FOR_PRETRAINED})
    return dict(zip(WAYS, (plain, taught, started), strict=True))


def measure(asked: argparse.Namespace, folder: Path, console: Console) -> dict[str, list[float]]:
    """Accuracy on the test set: way → of each seed."""
    data = open_data("cifar10", DataConfig(data_dir=asked.cifar))
    scores: dict[str, list[float]] = {way: [] for way in WAYS}
    pretrained = asked.pretrained or folder / "pretrained"
    if asked.pretrained is None:
        minutes = pretrain(data, pretrained, {"epochs": asked.pretrain_epochs})
        console.print(f"pre-training: {counted(asked.pretrain_epochs, 'epoch')}, {minutes:.1f} min")
    for seed in range(asked.seeds):
        some = keep_labels(data, asked.rate, seed)
        for way, config in ways(seed, asked.epochs, pretrained).items():
            began = time.monotonic()
            result, _ = run(config, some, folder / f"{seed}-{way.replace(' ', '-')}")
            assert result.test is not None
            scores[way].append(result.test.accuracy)
            console.print(f"seed {seed}, {way}: {scores[way][-1]:.2%}, {time.monotonic() - began:.0f} s")
    return scores


def main() -> None:
    """Train everything, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100, help="of learning from labels")
    parser.add_argument("--pretrain-epochs", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.1, help="share of the training pictures with a label")
    parser.add_argument("--pretrained", type=Path, metavar="RUN", help="of vitrail pretrain, instead of a new one")
    asked, console = parser.parse_args(), Console(soft_wrap=True, highlight=False)
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        scores = measure(asked, Path(folder), console)
    table = Table(f"{asked.rate:.0%} of the labels", "test accuracy", "gain")
    for way, each in scores.items():
        gain = "" if way == WAYS[0] else describe(np.subtract(each, scores[WAYS[0]]))
        table.add_row(way, describe(each), gain)
    console.print(table)


if __name__ == "__main__":
    main()

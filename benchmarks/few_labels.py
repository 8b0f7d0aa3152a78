"""What a teacher and pre-training are worth with few labels: the table of the two guides about them.

    python -m benchmarks.few_labels --cifar DIR [--seeds 3] [--epochs 100] [--pretrain-epochs 50] [--rate 0.1]
        [--ways labels teacher pretrained all] [--pretrained RUN] [--teacher cifar10]

DIR holds CIFAR-10 in its binary layout. For each seed, a tenth of the training pictures of each class keeps its label
(a tenth of these again is for validation). The ViT of the from-scratch exercise (`cifar10-tiny`) then learns in four
ways, each with the same number of steps, up to whole epochs: from the labels only; from the labels and a teacher (the
bundled model, which has learned from all labels); from the labels, starting from weights that were pre-trained on all
50,000 pictures without their labels (here, or before, by RUN), at lower learning rates; and from the teacher's answers
about all pictures but those for validation, without any label. Accuracies are those of the whole test set; intervals
are Student's, over the seeds; gains are paired by seed.
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
from vitrail.data.source import ArraySource
from vitrail.prediction import load
from vitrail.ranks import Ranks
from vitrail.training import Listener, TrainConfig, recipe
from vitrail.training.changes import apply_changes, with_changes
from vitrail.training.plan import settle
from vitrail.training.run_folder import RunLock, begin
from vitrail.training.unlabelled_run import carry_out_pretraining
from vitrail.wording import counted

VAL_RATE = 0.1
FOR_PRETRAINED = {"lr": 1e-3, "muon_lr": 5e-3}  # a third and a quarter of the recipe's
WAYS = {
    "labels": "labels only",
    "teacher": "labels and a teacher",
    "pretrained": "labels after pre-training",
    "all": "a teacher's answers about all pictures",
}


def keep_labels(dataset: Dataset, rate: float, seed: int) -> Dataset:
    """The data with a share of the training pictures of each class, a part of which is for validation."""
    train, random = dataset.split("train"), np.random.default_rng(seed)
    kept: list[int] = []
    for label in range(len(dataset.classes)):
        own = random.permutation(np.flatnonzero(train.labels == label))
        kept += own[: round(rate * len(own))].tolist()
    splits = {"train": train.select(sorted(kept)), "test": dataset.split("test")}
    return replace(dataset, splits=splits).with_validation(VAL_RATE, seed)


def label_all(dataset: Dataset, teacher: str) -> ArraySource:
    """The training pictures as the teacher labels them."""
    train = dataset.split("train")
    assert isinstance(train, ArraySource)
    answers = load(teacher).predict(train.picture(index) for index in range(len(train)))
    return ArraySource(train.images, [dataset.classes.index(answer.label) for answer in answers], train.keys())


def show_all(few: Dataset, taught: ArraySource) -> Dataset:
    """The data with few labels, and in place of its training pictures all but those for validation."""
    held_out = set(few.split("val").keys())
    rest = [index for index, key in enumerate(taught.keys()) if key not in held_out]
    return replace(few, splits={**few.splits, "train": taught.select(rest)})


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


def learn(way: str, seed: int, asked: argparse.Namespace, pretrained: Path, times: float) -> TrainConfig:
    """How to learn; what is pre-trained is neither whitened nor changed as fast as random weights.

    Args:
        times: how many times as many training pictures there are without labels, of which fewer epochs are shown.
    """
    plain = apply_changes(recipe("cifar10-tiny"), {"seed": seed, "epochs": asked.epochs})
    if way == "teacher":
        return apply_changes(plain, {"teacher": asked.teacher})
    if way == "pretrained":
        return with_changes(plain, {"weights": str(pretrained), **FOR_PRETRAINED})
    if way == "all":
        epochs = max(round(asked.epochs / times), 1)
        return apply_changes(plain, {"teacher": asked.teacher, "distill_weight": 1.0, "epochs": epochs})
    return plain


def measure(asked: argparse.Namespace, folder: Path, console: Console) -> dict[str, list[float]]:
    """Accuracy on the test set: way → of each seed."""
    data = open_data("cifar10", DataConfig(data_dir=asked.cifar))
    scores: dict[str, list[float]] = {way: [] for way in asked.ways}
    pretrained = asked.pretrained or folder / "pretrained"
    taught = label_all(data, asked.teacher) if "all" in asked.ways else None
    if "pretrained" in asked.ways and asked.pretrained is None:
        minutes = pretrain(data, pretrained, {"epochs": asked.pretrain_epochs})
        console.print(f"pre-training: {counted(asked.pretrain_epochs, 'epoch')}, {minutes:.1f} min")
    for seed in range(asked.seeds):
        some = keep_labels(data, asked.rate, seed)
        for way in asked.ways:
            began = time.monotonic()
            shown = some if taught is None or way != "all" else show_all(some, taught)
            times = len(shown.split("train")) / len(some.split("train"))
            result, _ = run(learn(way, seed, asked, pretrained, times), shown, folder / f"{seed}-{way}")
            assert result.test is not None
            scores[way].append(result.test.accuracy)
            console.print(f"seed {seed}, {WAYS[way]}: {scores[way][-1]:.2%}, {time.monotonic() - began:.0f} s")
    return scores


def main() -> None:
    """Train everything, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100, help="of few pictures; of all, fewer for as many steps")
    parser.add_argument("--pretrain-epochs", type=int, default=50)
    parser.add_argument("--rate", type=float, default=0.1, help="share of the training pictures with a label")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--teacher", default="cifar10", help="the bundled model, or an export of it")
    parser.add_argument("--pretrained", type=Path, metavar="RUN", help="of vitrail pretrain, instead of a new one")
    asked, console = parser.parse_args(), Console(soft_wrap=True, highlight=False)
    print_machine()
    with tempfile.TemporaryDirectory() as folder:
        scores = measure(asked, Path(folder), console)
    table = Table(f"{asked.rate:.0%} of the labels", "test accuracy", "gain")
    for way, each in scores.items():
        gain = "" if way == "labels" or "labels" not in scores else describe(np.subtract(each, scores["labels"]))
        table.add_row(WAYS[way], describe(each), gain)
    console.print(table)


if __name__ == "__main__":
    main()

"""Several labels and numbers side by side with timm: mosaics of four CIFAR-10 pictures.

    python -m benchmarks.labels make CIFAR MOSAICS [--train 10000] [--val 2000] [--test 2000]
    python -m benchmarks.labels compare MOSAICS [--epochs 15] [--task several] [--seeds 2]

`make` writes pictures of 64×64 and `mosaics.csv`: for each, which of the ten classes are in it (`labels`, such as
"cat|dog|ship") and how many of its four parts are animals (`animals`). Training, validation and test mosaics come from
different pictures: the last two from CIFAR-10's test pictures.

`compare` trains the same ViT (width 48, depth 4, patches of 4) on them from scratch, for the same number of epochs:
vitrail as `vitrail train` does with its recipe, and timm's model, loss and optimiser in the loop of timm's training
script, which has no data of several labels: the targets are ours. The scores are scikit-learn's, on the test mosaics.
"""

import argparse
import csv
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from sklearn.metrics import average_precision_score, f1_score, mean_absolute_error, r2_score

from benchmarks.peers import timm
from benchmarks.timing import print_machine
from vitrail import load, train
from vitrail.data import DataConfig, Dataset, Loader, LoaderConfig, open_data
from vitrail.data.config import Augment, Columns
from vitrail.data.source import default_preprocess

ANIMALS = {"bird", "cat", "deer", "dog", "frog", "horse"}
SIDE, PATCH, WIDTH, DEPTH, HEADS = 32, 4, 48, 4, 4  # mosaics are shrunk, so that a run takes minutes
BATCH = 128
COLUMNS = {"several": "labels", "number": "animals"}


def make_mosaics(cifar: Path, folder: Path, counts: dict[str, int]) -> None:
    """Pictures, and the table that describes them."""
    data = open_data(cifar)
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    with (folder / "mosaics.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("path", "split", "labels", "animals"))
        held_out = generator.permutation(len(data.split("test")))
        halves: dict[str, Any] = dict(zip(("val", "test"), np.array_split(held_out, 2), strict=True))
        for split, count in counts.items():
            source = data.split("train" if split == "train" else "test")
            pool = halves.get(split, np.arange(len(source)))
            (folder / split).mkdir()
            for number in range(count):
                chosen = generator.choice(pool, 4, replace=False)
                tiles = [np.asarray(source.picture(int(index))).transpose(1, 2, 0) for index in chosen]
                picture = np.vstack([np.hstack(tiles[:2]), np.hstack(tiles[2:])])
                name = f"{split}/{number:05d}.png"
                Image.fromarray(picture).save(folder / name)
                classes = [data.classes[source.labels[int(index)]] for index in chosen]
                animals = sum(name in ANIMALS for name in classes)
                rows.writerow((name, split, "|".join(sorted(set(classes))), animals))


def open_mosaics(folder: Path, task: str) -> Dataset:
    config = DataConfig(task=task, columns=Columns(label=COLUMNS[task]))
    return open_data(folder / "mosaics.csv", config)


def train_ours(folder: Path, task: str, epochs: int, seed: int) -> tuple[np.ndarray[Any, Any], float]:
    """The answers for the test mosaics, probabilities or values, and the minutes of the run."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        run = train(
            folder / "mosaics.csv",
            recipe="cifar10-tiny",
            image_size=SIDE,
            task=task,
            columns=Columns(label=COLUMNS[task]),
            epochs=epochs,
            batch_size=BATCH,
            seed=seed,
            check=False,
            out=Path(scratch) / "run",
        )
        minutes = (time.perf_counter() - began) / 60
        predictor = load(run.folder)
        source = open_mosaics(folder, task).split("test")
        outputs = [value for _, value in predictor.logits(source.stream(range(len(source))))]
        return predictor.probabilities(np.stack([row for row in outputs if not isinstance(row, str)])), minutes


def train_timm(folder: Path, task: str, epochs: int, seed: int) -> tuple[np.ndarray[Any, Any], float]:
    """The same with timm's parts: its model, its optimiser and schedule, its loss for several labels."""
    torch.manual_seed(seed)
    began = time.perf_counter()
    data = open_mosaics(folder, task)
    spec = default_preprocess(data, SIDE)
    outputs = len(data.classes)
    model = timm.models.VisionTransformer(
        img_size=SIDE,
        patch_size=PATCH,
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        num_classes=outputs,
    )
    targets = torch.as_tensor(data.split("train").labels).float()
    mean, std = (targets.mean(0), targets.std(0)) if task == "number" else (torch.zeros(1), torch.ones(1))
    losses, optimizers, schedules = (
        import_module(f"{timm.__name__}.{part}") for part in ("loss", "optim", "scheduler")
    )
    several = losses.BinaryCrossEntropy(smoothing=0.0)
    optimizer = optimizers.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    loader = Loader(data, "train", spec, LoaderConfig(batch_size=BATCH, seed=seed), Augment(crop="pad"))
    schedule = schedules.CosineLRScheduler(
        optimizer, t_initial=epochs * len(loader), warmup_t=len(loader), warmup_lr_init=1e-5, t_in_epochs=False
    )
    step = 0
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for images, labels, _ in loader:
            wanted = (labels.float() - mean) / std
            answers = model(images)
            loss = several(answers, wanted) if task == "several" else (answers - wanted).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            schedule.step_update(step)
    minutes = (time.perf_counter() - began) / 60
    model.eval()
    with torch.no_grad():
        parts = [model(images) for images, _, _ in Loader(data, "test", spec, LoaderConfig(batch_size=BATCH))]
    answers = torch.cat(parts)
    return (answers.sigmoid() if task == "several" else answers * std + mean).numpy(), minutes


def score(task: str, truth: np.ndarray[Any, Any], answers: np.ndarray[Any, Any]) -> dict[str, float]:
    """What scikit-learn says of the answers."""
    if task == "number":
        return {"MAE": mean_absolute_error(truth, answers), "R²": r2_score(truth, answers)}
    return {
        "mAP": average_precision_score(truth, answers, average="macro"),
        "micro F1 at 0.5": f1_score(truth, answers > 0.5, average="micro"),
    }


def compare(folder: Path, task: str, epochs: int, seeds: int) -> None:
    """Both, in turns, each seed."""
    print_machine("timm")
    truth = open_mosaics(folder, task).split("test").labels
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(seeds):
        for name, work in (("vitrail", train_ours), ("timm", train_timm)):
            answers, minutes = work(folder, task, epochs, seed)
            found.setdefault(name, []).append({**score(task, truth, answers), "minutes": minutes})
            print(name, seed, found[name][-1], flush=True)
    table = Table("", *found["timm"][0])
    for name, rows in found.items():
        means = ([row[key] for row in rows] for key in rows[0])
        table.add_row(name, *(f"{np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})" for values in means))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make")
    make.add_argument("cifar", type=Path)
    make.add_argument("mosaics", type=Path)
    for split, count in (("train", 10_000), ("val", 2_000), ("test", 2_000)):
        make.add_argument(f"--{split}", type=int, default=count)
    against = commands.add_parser("compare")
    against.add_argument("mosaics", type=Path)
    against.add_argument("--epochs", type=int, default=15)
    against.add_argument("--task", choices=list(COLUMNS), default="several")
    against.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.command == "make":
        counts = {split: getattr(arguments, split) for split in ("train", "val", "test")}
        make_mosaics(arguments.cifar, arguments.mosaics, counts)
    else:
        compare(arguments.mosaics, arguments.task, arguments.epochs, arguments.seeds)


if __name__ == "__main__":
    main()

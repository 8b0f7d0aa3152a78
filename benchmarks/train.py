"""Training side by side: a whole epoch of the CIFAR exercise, and the memory of ViT-B/16.

    python -m benchmarks.train [--cifar DIR] [--batches 40] [--rounds 3] [--no-memory]

Epoch: images/s of data + augmentation (flip, random resized crop) + step (AdamW) at batch 256, all cores, best of
interleaved rounds, each contestant in a process of its own:

vitrail              our training loop as `vitrail train` runs it
script               as in from-scratch write-ups: torchvision's transforms on one tensor at a time in a DataLoader
                     with 2 workers, a plain loop (forward, backward, AdamW), and a model whose heads are computed one
                     after the other and whose GELU is spelled out
timm                 timm's model in the script's loop
transformers         transformers' model in the script's loop
timm+loader          timm's model in the plain loop, but fed by our loader, so that data cost next to nothing
transformers+loader  the same with transformers' model

Memory: what one more picture costs in training with gradient checkpointing, from the peak of two batch sizes.
"""

import argparse
import itertools
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.model import model_makers
from benchmarks.peers import torchvision
from benchmarks.processes import Child, serve_turns
from benchmarks.timing import best_seconds, print_machine, ratio_table
from vitrail.data import Augment, DataConfig, Loader, LoaderConfig
from vitrail.data.source import ArraySource
from vitrail.model import variant
from vitrail.ranks import Ranks
from vitrail.training import recipe
from vitrail.training.loop import Trainer
from vitrail.training.setup import open_training_data, prepare_run

BATCH = 256
MEMORY_BATCHES = (4, 12)
SCALE = (0.8, 1.0)  # of the random resized crop, for all
REST = 2.0  # seconds, in which loaders that read ahead finish
CONTESTANTS = ("vitrail", "script", "timm", "transformers", "timm+loader", "transformers+loader")


class HeadByHead(nn.Module):
    """Attention as tutorials write it: a query, key and value layer for each head, one head after the other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        size = width // heads
        self.heads = nn.ModuleList(nn.ModuleList(nn.Linear(width, size) for _ in range(3)) for _ in range(heads))
        self.out = nn.Linear(width, width)
        self.scale = size**-0.5

    def forward(self, tokens: Tensor) -> Tensor:
        answers: list[Tensor] = []
        for head in self.heads:
            query, key, value = (layer(tokens) for layer in cast("nn.ModuleList", head))
            weights = torch.softmax(query @ key.transpose(-1, -2) * self.scale, dim=-1)
            answers.append(weights @ value)
        return self.out(torch.cat(answers, dim=-1))


class SpelledGELU(nn.Module):
    """The tanh form, operation by operation."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3))))


class ScriptBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = HeadByHead(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), SpelledGELU(), nn.Linear(hidden, width))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class ScriptViT(nn.Module):
    """The reference architecture in the style of from-scratch write-ups."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, 48))
        self.positions = nn.Parameter(torch.randn(1, 65, 48) * 0.02)
        self.blocks = nn.Sequential(*(ScriptBlock(48, 4, 192) for _ in range(4)))
        self.head = nn.Linear(48, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(images), -1, -1), tokens], dim=1) + self.positions
        return self.head(self.blocks(tokens)[:, 0])


class Pictures(Dataset[tuple[Tensor, int]]):
    """One picture at a time, through torchvision's transforms."""

    def __init__(self, source: Any) -> None:
        from PIL import Image

        assert isinstance(source, ArraySource)
        self.images = [Image.fromarray(image) for image in source.images.permute(0, 2, 3, 1).numpy()]
        self.labels = source.labels.tolist()
        v2 = torchvision.transforms
        self.transform = v2.Compose(
            [
                v2.ToTensor(),
                v2.Resize((32, 32)),
                v2.RandomHorizontalFlip(),
                v2.RandomResizedCrop((32, 32), scale=SCALE),
                v2.Normalize((0.5,) * 3, (0.5,) * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]  # pyright: ignore[reportReturnType]


def plain_loop(model: nn.Module, batches: Iterator[Any], count: int) -> Callable[[], None]:
    """The usual loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def run() -> None:
        model.train()
        for images, targets, *_ in itertools.islice(batches, count):
            loss = F.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def forever(loader: Any) -> Iterator[Any]:
    for epoch in itertools.count():
        if isinstance(loader, Loader):
            loader.set_epoch(epoch)
        yield from loader


def build(name: str, cifar: Path | None, count: int) -> Callable[[], object]:
    """One contestant: a function that trains on `count` batches."""
    config = recipe("cifar10-tiny")
    optim = replace(config.optim, optimizer="adamw", label_smoothing=0.0, ema=None)
    augment = Augment(crop="resized", scale=SCALE)
    config = replace(config, optim=optim, augment=augment, source=DataConfig(data_dir=cifar, val_rate=0.05))
    dataset = open_training_data(config) if cifar else _noise()
    setup = prepare_run(config, dataset)
    if name == "vitrail":
        trainer = Trainer(setup, Ranks(), Path(tempfile.mkdtemp()))  # it writes only what `fit` tells it to
        return our_loop(trainer, forever(trainer.loader), count)
    peer, _, fed = name.partition("+")
    model = ScriptViT() if peer == "script" else model_makers(variant("cifar-tiny"))[peer]()
    if fed:
        options = LoaderConfig(batch_size=BATCH, workers=0)  # further threads would slow their operations down
        loader: Any = Loader(dataset, "train", setup.preprocess, options, config.augment)
    else:
        pictures = Pictures(dataset.split("train"))
        loader = DataLoader(pictures, BATCH, shuffle=True, num_workers=2, drop_last=True, persistent_workers=True)
    return plain_loop(model, forever(loader), count)


def our_loop(trainer: Trainer, batches: Iterator[Any], count: int) -> Callable[[], None]:
    """An epoch of `vitrail train`."""

    def run() -> None:
        trainer.module.train()
        with trainer.one_thread():
            for batch in itertools.islice(batches, count):
                trainer.step(batch)

    return run


def compare_epochs(cifar: Path | None, count: int, rounds: int) -> None:
    """Each contestant in a process of its own, so that their threads do not interfere."""
    data = ["--cifar", str(cifar)] if cifar else []
    children = {
        name: Child("benchmarks.train", *data, "--batches", str(count), "--contestant", name) for name in CONTESTANTS
    }
    try:
        seconds = best_seconds({name: partial(child.ask, "go") for name, child in children.items()}, rounds, rest=REST)
    finally:
        for child in children.values():
            child.end()
    rates = {name: count * BATCH / time for name, time in seconds.items()}
    ratio_table("whole training epoch, 119 k parameters, batch 256, images/s", {"all": rates})
    line = ", ".join(f"{rates['vitrail'] / rate:.2f}× {name}" for name, rate in rates.items() if name != "vitrail")
    print(f"vitrail is {line}")


def _noise() -> Any:
    from vitrail.data import Dataset as Data

    images = torch.randint(0, 256, (20_000, 3, 32, 32), dtype=torch.uint8)
    source = ArraySource(images, np.arange(20_000) % 10, "noise")
    return Data(name="noise", classes=tuple("0123456789"), splits={"train": source})


def measure_memory(name: str, batch: int) -> int:
    """Peak bytes of one training step in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.train", "--one-step", name, str(batch)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def one_step(name: str, batch: int) -> None:
    model: Any = model_makers(variant("vit-b16"))[name]()
    if name == "vitrail":
        model.gradient_checkpointing = True
    elif name == "timm":
        model.set_grad_checkpointing(True)
    else:
        model.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    images, labels = torch.randn(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.long)
    for _ in range(2):
        F.cross_entropy(model(images), labels).backward()
        model.zero_grad(set_to_none=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def compare_memory() -> None:
    table = Table("library", "MB per picture", "MB at batch 12", title="ViT-B/16 training with gradient checkpointing")
    few, many = MEMORY_BATCHES
    for name in ("vitrail", "timm", "transformers"):
        peaks = [measure_memory(name, batch) for batch in MEMORY_BATCHES]
        each = (peaks[1] - peaks[0]) / (many - few) / 2**20
        table.add_row(name, f"{each:.1f}", f"{peaks[1] / 2**20:,.0f}")
    Console(highlight=False).print(table)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cifar", type=Path, help="a folder with CIFAR-10; by default, noise of the same size")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--one-step", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one_step:
        one_step(options.one_step[0], int(options.one_step[1]))
        return
    if options.contestant:
        run = build(options.contestant, options.cifar, options.batches)
        serve_turns(lambda _: f"done: {run()}")
        return
    print_machine("timm", "transformers", "torchvision")
    compare_epochs(options.cifar, options.batches, options.rounds)
    if not options.no_memory:
        compare_memory()


if __name__ == "__main__":
    main()

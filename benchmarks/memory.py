"""The most memory that `vitrail.embed` and `vitrail.predict` take, for few and for very many pictures.

    python -m benchmarks.memory [--verbs embed predict] [--counts 10000 1000000] [--source list] [--real]

Each row is a process of its own, which writes one file. By default no picture is decoded and nothing is computed: a
runtime answers at once with 192 features, or ten logits, so that a million pictures take a minute; the names come from
a list (`--source list`) or are empty files in folders of a thousand each (`folder`), or all in one (`flat`). With
`--real`, a ViT of width 192 reads 100 small files again and again. MB are 10⁶ bytes.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

import vitrail
from benchmarks.scale import resident
from vitrail.data.preprocess import preset
from vitrail.model import ViT, ViTConfig
from vitrail.prediction import Predictor
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.weights.metadata import Origin

WIDTH, CLASSES, SIDE = 192, 10, 16
FORMATS = {"embed": ("npz", "npy", "parquet", "memory"), "predict": ("csv", "jsonl", "parquet")}
VECTORS = np.random.default_rng(0).normal(size=(64, WIDTH)).astype(np.float32)
NUMBERS = itertools.count()


@dataclass(frozen=True)
class Instant:
    """A runtime that answers without looking."""

    name: str = "instant"
    threads: int = 2
    batch_size: int = len(VECTORS)
    num_classes: int = CLASSES
    has_features: bool = True

    def grid_of(self, size: tuple[int, int]) -> tuple[int, int]:
        return size

    def logits(self, images: Any) -> Any:
        return VECTORS[: len(images), :CLASSES].copy()

    def features(self, images: Any) -> Any:
        return VECTORS[: len(images)] * np.float32(1 + next(NUMBERS) / 1e6)  # no two alike, which Parquet would shorten

    def logits_and_features(self, images: Any) -> Any:
        return self.logits(images), self.features(images)


def make_predictor(*, real: bool) -> Predictor:
    config = ViTConfig(
        image_size=(SIDE, SIDE), patch_size=(8, 8), width=WIDTH, depth=1, heads=3, mlp_width=WIDTH, num_classes=CLASSES
    )
    return Predictor(
        runtime=cast("Any", TorchRuntime(ViT(config).eval()) if real else Instant()),
        preprocess=preset("timm", config.image_size),
        classes=tuple(f"class {index}" for index in range(CLASSES)),
        origin=Origin(),
    )


def name_of(index: int, source: str) -> str:
    return f"pictures/{index // 1000 if source == 'folder' else 'all'}/picture {index:09d}.jpg"


def make_pictures(folder: Path, count: int, source: str, *, real: bool) -> None:
    """The names of `count` pictures, in `folder`."""
    names = [f"{index}.png" for index in range(100)] if real else []
    for index, name in enumerate(names):
        Image.effect_noise((SIDE, SIDE), 9 + index).convert("RGB").save(folder / name)
    if source == "list":
        with (folder / "list.txt").open("w", encoding="utf-8") as file:
            file.writelines(f"{names[index % 100] if real else name_of(index, source)}\n" for index in range(count))
        return
    for index in range(count):
        path = folder / name_of(index, source)
        if index % 1000 == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def measure(verb: str, form: str, source: str, *, real: bool) -> dict[str, float]:
    """What this process takes to write one file of the pictures in the current folder."""
    predictor = make_predictor(real=real)
    pictures: dict[str, Any] = {"list_file": "list.txt"} if source == "list" else {"pictures": "pictures"}

    def prepare(_: Any, named: Sequence[Any]) -> tuple[Any, dict[int, str]]:
        return np.zeros((len(named), 3, SIDE, SIDE), np.float32), {}

    start = time.perf_counter()
    with mock.patch("vitrail.prediction.steps.prepare", prepare) if not real else mock.MagicMock():
        if verb == "predict":
            vitrail.predict(predictor, out=f"rows.{form}", **pictures)
        elif form == "memory":
            vitrail.embed(predictor, **pictures)
        else:
            vitrail.embed(predictor, out="out", format=cast("Any", form), **pictures)
    return {"peak": resident("VmHWM"), "seconds": time.perf_counter() - start}


def run(verb: str, form: str, source: str, folder: Path, *, real: bool) -> dict[str, float]:
    """The same in a new process."""
    command = [sys.executable, "-m", "benchmarks.memory", "--one", verb, form, "--source", source]
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*command, *(["--real"] if real else [])],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="The most memory that embed and predict take.")
    parser.add_argument("--verbs", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--formats", nargs="+", default=None, help="of the files [default: all]")
    parser.add_argument("--counts", nargs="+", type=int, default=[10_000, 1_000_000])
    parser.add_argument("--source", choices=["list", "folder", "flat"], default="list")
    parser.add_argument("--real", action="store_true", help="decode and compute")
    parser.add_argument("--one", nargs=2, metavar=("VERB", "FORMAT"), help="be one of the processes")
    options = parser.parse_args()
    if options.one:
        what, form = options.one
        print(json.dumps(measure(what, form, options.source, real=options.real)))
        return
    kinds = [(verb, form) for verb in options.verbs for form in options.formats or FORMATS[verb]]
    answers: dict[tuple[str, str], list[dict[str, float]]] = {kind: [] for kind in kinds}
    for count in options.counts:
        with tempfile.TemporaryDirectory() as folder:
            make_pictures(Path(folder), count, options.source, real=options.real)
            for kind in kinds:
                answers[kind].append(run(*kind, options.source, Path(folder), real=options.real))
    table = Table("verb", "format", *(f"{count:,} pictures" for count in options.counts), box=None)
    for kind, measured in answers.items():
        table.add_row(*kind, *(f"{each['peak'] / 1e6:,.0f} MB, {each['seconds']:.0f} s" for each in measured))
    Console(highlight=False, width=150).print(table)


if __name__ == "__main__":
    main()

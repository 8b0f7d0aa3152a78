"""Pictures per second from files to labels, against transformers' pipeline and a timm + DataLoader loop, same weights.

    python -m benchmarks.predict [--pictures 2000] [--models vit-ti16 vit-b16] [--repeats 3] [--batch-size 16]
                                 [--folder JPEGS]

JPEGs of 500×375 are crops of scikit-learn's two photographs, or those of a folder. Each contestant reads the same
files, prepares them as its family does, and gives the best five classes of each; ours runs with transformers'
preprocessing and with timm's, so that both compare like with like: in torch, and with timm's also exported to OpenVINO,
in what `auto` chooses and in int8, where this version has them. Contestants take turns, and the best turn of each
counts. `busy` is CPU time (with child processes) over wall time and cores, in that best turn. `ours / theirs` divides
by the fastest other library with the same preprocessing; labels are compared with ours in torch.
"""

import argparse
import inspect
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset

import vitrail
from benchmarks.data import write_photographs
from benchmarks.peers import timm, transformers
from benchmarks.timing import print_machine
from vitrail.data.preprocess import preset
from vitrail.model import PositionConfig, ViT, variant
from vitrail.verbs.contest import photographs
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.write import write_checkpoint

Run = Callable[[list[Path]], list[int]]  # goes through pictures and returns the best class of each
WARM = 64  # pictures before the clock starts: kernels, allocators, threads
TOP_K = 5
PEER_WORKERS = os.cpu_count() or 1


class Pictures(Dataset):
    """Files as the usual loop reads them."""

    def __init__(self, paths: list[Path], transform: Callable) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB"))


def make_checkpoint(name: str) -> Checkpoint:
    """Random weights whose predictions differ from picture to picture: the bias takes away what all have in common."""
    torch.manual_seed(0)
    config = variant(name, num_classes=1000, positions=PositionConfig(resample="timm"))
    spec = preset("timm", config.image_size)
    model = ViT(config).eval()
    assert model.head is not None
    torch.nn.init.normal_(model.head.weight, std=0.5)
    with torch.inference_mode():
        common = model.features(torch.from_numpy(photographs(spec))).mean(dim=0)
        model.head.bias.copy_(-model.head.weight @ common)
    return Checkpoint(config=config, tensors=model.state_dict(), preprocess=spec)


def our_run(checkpoint: Checkpoint, family: str, folder: Path) -> Run:
    return run_of(vitrail.load(our_file(checkpoint, family, folder)))


def our_file(checkpoint: Checkpoint, family: str, folder: Path) -> Path:
    file = folder / f"{family}.safetensors"
    if not file.exists():
        write_checkpoint(replace(checkpoint, preprocess=preset(family, checkpoint.config.image_size)), file)
    return file


def run_of(predictor: vitrail.Predictor) -> Run:
    return lambda paths: [row.indices[0] for row in predictor.predict(paths, top_k=TOP_K)]


def exported_runs(checkpoint: Checkpoint, folder: Path, paths: list[Path]) -> dict[str, Run]:
    """What else `vitrail predict` can run on, with timm's preprocessing."""
    file = our_file(checkpoint, "timm", folder)
    vitrail.export(file, folder / "openvino", to="openvino")
    runs = {"vitrail on OpenVINO, as timm": run_of(vitrail.load(folder / "openvino"))}
    if hasattr(vitrail.Predictor, "on"):
        model: Any = vitrail.load(file)
        runs["vitrail auto, as timm"] = run_of(model.on("auto", count=len(paths), pictures=paths[:WARM], say=print))
    if "precision" not in inspect.signature(vitrail.export).parameters:
        print("int8 is left out: this vitrail does not export it")
        return runs
    options: dict[str, Any] = {"precision": "int8", "calibrate": paths[0].parent.parent, "agreement": 0.6}
    try:
        vitrail.export(file, folder / "int8", to="openvino", **options)  # random weights agree less than trained ones
        runs["vitrail int8, as timm"] = run_of(vitrail.load(folder / "int8"))
    except vitrail.VitrailError as error:
        print(f"int8 is left out: {error}")
    return runs


def pipeline_run(checkpoint: Checkpoint, folder: Path, batch_size: int) -> Run:
    target = folder / "hf"
    if not target.exists():
        spec = preset("hf", checkpoint.config.image_size)
        config = replace(checkpoint.config, positions=PositionConfig(resample="hf"))
        write_checkpoint(replace(checkpoint, config=config, preprocess=spec), target, "hf")
    pipe = transformers.pipeline("image-classification", model=str(target), device="cpu")
    places = pipe.model.config.label2id

    def run(paths: list[Path]) -> list[int]:
        rows = pipe([str(path) for path in paths], top_k=TOP_K, batch_size=batch_size)
        return [places[row[0]["label"]] for row in rows]

    return run


def timm_run(checkpoint: Checkpoint, folder: Path, batch_size: int) -> Run:
    write_checkpoint(checkpoint, folder / "timm", "timm")
    model = timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)

    def run(paths: list[Path]) -> list[int]:
        loader = DataLoader(Pictures(paths, transform), batch_size=batch_size, num_workers=PEER_WORKERS)
        found: list[int] = []
        with torch.inference_mode():
            for images in loader:
                scores, places = model(images).softmax(1).topk(TOP_K)
                assert scores.shape[1] == TOP_K
                found += places[:, 0].tolist()
        return found

    return run


def cpu_seconds() -> float:
    """The CPU time of this process and of the children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(runs: dict[str, Run], paths: list[Path], repeats: int) -> dict[str, tuple[float, float, list[int]]]:
    """Best pictures per second, how busy the cores were then, and the predictions."""
    best: dict[str, tuple[float, float, list[int]]] = {}
    for turn in range(repeats):
        names = list(runs)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start, used = time.perf_counter(), cpu_seconds()
            answers = runs[name](paths)
            wall = time.perf_counter() - start
            speed = len(answers) / wall
            busy = (cpu_seconds() - used) / wall / (os.cpu_count() or 1)
            if name not in best or speed > best[name][0]:
                best[name] = (speed, busy, answers)
    return best


def compare(name: str, paths: list[Path], repeats: int, batch_size: int) -> dict[str, tuple[float, float, list[int]]]:
    checkpoint = make_checkpoint(name)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        runs = {
            "vitrail, as transformers": our_run(checkpoint, "hf", place),
            "transformers pipeline": pipeline_run(checkpoint, place, 1),
            f"transformers pipeline, batch {batch_size}": pipeline_run(checkpoint, place, batch_size),
            "vitrail, as timm": our_run(checkpoint, "timm", place),
            **exported_runs(checkpoint, place, paths),
            f"timm + DataLoader, batch {batch_size}": timm_run(checkpoint, place, batch_size),
        }
        for run in runs.values():
            assert len(run(paths[:WARM])) == min(WARM, len(paths))
        return measure(runs, paths, repeats)


def agreement(first: list[int], second: list[int]) -> float:
    return sum(one == other for one, other in zip(first, second, strict=True)) / len(first)


def rows_of(results: dict[str, tuple[float, float, list[int]]]) -> list[tuple[str, ...]]:
    """Each of ours over the fastest other library with the same preprocessing; labels beside ours in torch."""
    rows: list[tuple[str, ...]] = []
    for contestant, (speed, busy, answers) in results.items():
        family = "timm" if "timm" in contestant else "transformers"
        others = [each for name, (each, _, _) in results.items() if name.startswith(family)]
        ratio = f"{speed / max(others):.2f}×" if contestant.startswith("vitrail") else ""
        same = f"{agreement(results[f'vitrail, as {family}'][2], answers):.1%}"
        rows.append((contestant, f"{speed:,.1f}", f"{busy:.0%}", ratio, same))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--models", nargs="+", default=["vit-ti16", "vit-s16", "vit-b16"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--folder", type=Path, help="JPEGs in class folders, instead of parts of two photographs")
    options = parser.parse_args()
    print_machine("openvino", "timm", "transformers")
    transformers.utils.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder:
        if options.folder is None:
            write_photographs(Path(folder), options.pictures, 500, 375)
        paths = sorted((options.folder or Path(folder)).rglob("*.[jJ]*[gG]"))[: options.pictures]
        kind = "JPEGs of 500×375" if options.folder is None else "JPEGs"
        title = f"{len(paths)} {kind} → labels, best of {options.repeats} interleaved turns"
        table = Table("model", "contestant", "pictures/s", "busy", "ours / theirs", "same label", title=title)
        for column in table.columns[2:]:
            column.justify = "right"
        for name in options.models:
            for row in rows_of(compare(name, paths, options.repeats, options.batch_size)):
                table.add_row(name, *row)
            table.add_section()
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()

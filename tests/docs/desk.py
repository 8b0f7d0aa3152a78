"""A reader's folder, as the pages assume it: pictures, a trained run, checkpoints of several formats; all tiny."""

import shutil
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data.conftest import picture
from tests.docs.pages import ROOT

import vitrail
from conftest import TINY, randomize
from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, ViT, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.writer import write_checkpoint

# Folder → its classes, each a folder of 14 pictures; of `photos`, which pages explain one by one, of 2.
FOLDERS = {
    "flowers": ("rose", "tulip"),
    **dict.fromkeys(("my-pictures", "photos", "pictures", "PICTURES"), ("cat", "dog")),
}
# What the pages load from the hub → the files that stand for it.
HUB = {"google/vit-base-patch16-224": "hub-vit", "facebook/dinov2-small": "hub-features"}
DEIT = ViTConfig(image_size=(224, 224), patch_size=(16, 16), width=48, depth=2, heads=6, mlp_width=96, num_classes=5)
SCRIPT = ViTConfig(image_size=(64, 64), patch_size=(8, 8), width=96, depth=4, heads=3, mlp_width=384, num_classes=3)


def lay_out(desk: Path) -> None:
    """Write everything into the folder `desk`."""
    with pytest.MonkeyPatch.context() as patch, chdir(desk):
        _skip_report(patch)
        for number, (folder, classes) in enumerate(FOLDERS.items()):
            for label, name in enumerate(classes):
                Path(folder, name).mkdir(parents=True)
                for index in range(2 if folder == "photos" else 14):
                    picture(1000 * number + 100 * label + index).save(f"{folder}/{name}/{index:02d}.jpg", quality=90)
        for index, name in enumerate(("rose.jpg", "cat.jpg")):
            picture(index, (48, 40)).save(name)
        _write_cifar(Path("named-data/cifar-10-batches-bin"))
        _write_checkpoints()
        vitrail.train("PICTURES", model="cifar-tiny", recipe="scratch", epochs=1, batch_size=8, check=False)


def sit_down(desk: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Work in a copy of the desk, with the hub, the named data sets and the cache of that desk."""
    shutil.copytree(desk, folder)
    (folder / "docs").symlink_to(ROOT / "docs")
    patch.chdir(folder)
    patch.setenv("VITRAIL_CACHE", str(folder / "cache"))
    patch.setenv("VITRAIL_DATA", str(desk / "named-data"))
    patch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(desk / HUB[name]))
    _skip_report(patch)


def _skip_report(patch: pytest.MonkeyPatch) -> None:
    """A report takes seconds, and has tests of its own."""
    patch.setattr("vitrail.verbs.train.report_on_run", lambda folder, *_, **__: [folder / "report.html"])


def _write_cifar(folder: Path) -> None:
    """60 pictures of noise in each of CIFAR-10's files: a label, then 3 × 32 × 32 bytes."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        records = noise.integers(0, 256, (60, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(60) % 10
        (folder / name).write_bytes(records.tobytes())


def _write_checkpoints() -> None:
    two = replace(TINY, num_classes=2)
    write_checkpoint(_checkpoint(two, ("cat", "dog")), "model.safetensors")
    write_checkpoint(_checkpoint(two, ("cat", "dog")), HUB["google/vit-base-patch16-224"], "hf")
    write_checkpoint(_checkpoint(replace(TINY, num_classes=0), None), HUB["facebook/dinov2-small"], "hf")
    write_checkpoint(_checkpoint(DEIT, None), "deit.pth", "timm")
    _write_like_a_script(_checkpoint(SCRIPT, None), "theirs.pth")
    write_checkpoint(_checkpoint(replace(DEIT, block=BlockConfig(activation="gelu_tanh")), None), "B_16.npz", "google")


def _write_like_a_script(checkpoint: Checkpoint, path: str) -> None:
    """As training scripts save timm's models: beside an epoch, with the prefix of DataParallel."""
    write_checkpoint(checkpoint, path, "timm")
    weights = {f"module.{name}": tensor for name, tensor in torch.load(path, weights_only=True).items()}
    torch.save({"epoch": 90, "state_dict": weights}, path)


def _checkpoint(config: ViTConfig, classes: tuple[str, ...] | None) -> Checkpoint:
    torch.manual_seed(0)
    model = randomize(ViT(config))
    spec = preset("timm", config.image_size, config.channels)
    return Checkpoint(config=config, tensors=model.state_dict(), preprocess=spec, classes=classes)

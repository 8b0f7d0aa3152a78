"""A reader's folder, as the pages assume it: pictures, a trained run, checkpoints of several formats; all tiny."""

import shutil
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.conftest import picture
from tests.docs.pages import ROOT

import vitrail
from conftest import TINY, randomize
from shortcuts import shorten_probes, skip_reports
from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, PositionConfig, ViT, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.write import write_checkpoint
from weights_fixtures import TINY_DINO

# The classes of the guides' photographs.
IMAGENETTE = (
    *("cassette_player", "chain_saw", "church", "english_springer", "french_horn"),
    *("garbage_truck", "gas_pump", "golf_ball", "parachute", "tench"),
)
# Folder → its classes, each a folder of 15 pictures; of `photos`, which pages explain one by one, of 2.
FOLDERS = {
    "flowers": ("rose", "tulip"),
    **dict.fromkeys(("my-pictures", "photos", "pictures", "PICTURES", "holiday-pictures"), ("cat", "dog")),
}
# What the pages load from the hub → the files that stand for it.
HUB = {"google/vit-base-patch16-224": "hub-vit", "facebook/dinov2-small": "hub-features"}
DINO = replace(TINY_DINO, image_size=(518, 518), positions=PositionConfig(resample="hf"))
DEIT = ViTConfig(image_size=(224, 224), patch_size=(16, 16), width=48, depth=2, heads=6, mlp_width=96, num_classes=5)
SCRIPT = ViTConfig(image_size=(64, 64), patch_size=(8, 8), width=96, depth=4, heads=3, mlp_width=384, num_classes=3)


def lay_out(desk: Path) -> None:
    """Write everything into the folder `desk`."""
    with pytest.MonkeyPatch.context() as patch, chdir(desk):
        _hurry(patch)
        for number, (folder, classes) in enumerate(FOLDERS.items()):
            for label, name in enumerate(classes):
                Path(folder, name).mkdir(parents=True)
                for index in range(2 if folder == "photos" else 15):
                    picture(1000 * number + 100 * label + index).save(f"{folder}/{name}/{index:02d}.jpg", quality=90)
        for index, name in enumerate(("rose.jpg", "cat.jpg")):
            picture(index, (48, 40)).save(name)
        Path("in/below").mkdir(parents=True)
        picture(7).save("in/below/cat.jpg")
        _write_photographs()
        _write_cifar(Path("named-data/cifar-10-batches-bin"))
        _write_checkpoints()
        vitrail.train("PICTURES", weights="start.safetensors", recipe="finetune", epochs=1, batch_size=8, check=False)


def sit_down(page: Path, desk: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Work in a copy of the desk, with the hub, the named data sets and the cache of that desk.

    Who reads the README or a guide has not trained anything yet.
    """
    begins = page == Path("README.md") or page.is_relative_to("docs/guides")
    shutil.copytree(desk, folder, ignore=shutil.ignore_patterns("runs") if begins else None)
    (folder / "docs").symlink_to(ROOT / "docs")
    patch.chdir(folder)
    patch.setenv("VITRAIL_CACHE", str(folder / "cache"))
    patch.setenv("VITRAIL_DATA", str(desk / "named-data"))
    patch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(desk / HUB[name]))
    _hurry(patch)


def _hurry(patch: pytest.MonkeyPatch) -> None:
    """Without what has tests of its own and takes seconds: reports, many epochs, and the speed of the machine."""
    skip_reports(patch)
    shorten_probes(patch)
    patch.setattr("vitrail.verbs.contest.measure_gemm_peak", lambda *_: 1e11)


def _write_photographs() -> None:
    """Ten classes of photographs as the guides have them: each of its own colour, but for two that are alike."""
    noise = np.random.default_rng(0)
    colours = noise.integers(30, 220, (len(IMAGENETTE), 1, 1, 3))
    colours[IMAGENETTE.index("gas_pump")] = colours[IMAGENETTE.index("chain_saw")] + 4
    for colour, name in zip(colours, IMAGENETTE, strict=True):
        for folder, count in (("imagenette", 36), ("more-pictures", 10)):
            Path(folder, name).mkdir(parents=True)
            for index in range(count):
                coarse = (colour + noise.integers(-30, 30, (5, 5, 3))).clip(0, 255).astype(np.uint8)
                photograph = Image.fromarray(coarse).resize((96, 96), Image.Resampling.BICUBIC)
                if name == "chain_saw" and index < 2:
                    photograph = photograph.convert("L")
                photograph.save(f"{folder}/{name}/n{index:08d}_{index}.jpg", quality=90)
    Path("new").mkdir()
    for name in ("church", "french_horn", "gas_pump", "golf_ball", "tench"):
        shutil.copy(f"more-pictures/{name}/n00000000_0.jpg", f"new/{name}.jpg")
    shutil.copy(ROOT / "docs" / "images" / "ship.png", "new/drawing.png")


def _write_cifar(folder: Path) -> None:
    """60 pictures of noise in each of CIFAR-10's files: a label, then 3 × 32 × 32 bytes."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        records = noise.integers(0, 256, (60, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(60) % 10
        (folder / name).write_bytes(records.tobytes())


def _write_checkpoints() -> None:
    two = replace(TINY, depth=1, num_classes=2)
    write_checkpoint(_checkpoint(replace(two, patch_size=(4, 4)), ("cat", "dog")), "start.safetensors")
    write_checkpoint(_checkpoint(two, ("cat", "dog")), "model.safetensors")
    write_checkpoint(_checkpoint(two, ("cat", "dog")), HUB["google/vit-base-patch16-224"], "hf")
    dino = replace(_checkpoint(DINO, None), preprocess=preset("dinov2", (224, 224)))
    write_checkpoint(dino, HUB["facebook/dinov2-small"], "hf")
    tower = replace(two, num_classes=0, pre_norm=True, patch_bias=False, projection=24)
    write_checkpoint(_checkpoint(tower, None), "tower.safetensors")
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

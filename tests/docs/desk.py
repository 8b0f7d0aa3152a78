"""A reader's folder, as the pages assume it: pictures, a trained run, checkpoints of several formats; all of them tiny."""

from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import torch
from tests.data.conftest import picture

import vitrail
from conftest import TINY, randomize
from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, ViT, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.writer import write_checkpoint

FOLDERS = {"flowers": ("rose", "tulip"), **dict.fromkeys(("my-pictures", "pictures", "PICTURES"), ("cat", "dog"))}
# What the pages load from the hub → the files that stand for it.
HUB = {"google/vit-base-patch16-224": "hub-vit", "facebook/dinov2-small": "hub-features"}
DEIT = ViTConfig(image_size=(224, 224), patch_size=(16, 16), width=48, depth=2, heads=6, mlp_width=96, num_classes=5)


def lay_out(desk: Path) -> None:
    """Write everything into the folder `desk`."""
    with chdir(desk):
        for number, (folder, classes) in enumerate(FOLDERS.items()):
            for label, name in enumerate(classes):
                Path(folder, name).mkdir(parents=True)
                for index in range(14):
                    picture(1000 * number + 100 * label + index).save(f"{folder}/{name}/{index:02d}.jpg", quality=90)
        for index, name in enumerate(("rose.jpg", "cat.jpg", "photos/one.jpg", "photos/two.jpg")):
            Path(name).parent.mkdir(exist_ok=True)
            picture(index, (48, 40)).save(name)
        _write_checkpoints()
        vitrail.train("PICTURES", model="cifar-tiny", recipe="scratch", epochs=1, batch_size=8, check=False)


def _write_checkpoints() -> None:
    named = ("cat", "dog", "horse", "ship", "bird", "frog", "deer")
    write_checkpoint(_checkpoint(TINY, named), "model.safetensors")
    write_checkpoint(_checkpoint(TINY, named), HUB["google/vit-base-patch16-224"], "hf")
    write_checkpoint(_checkpoint(replace(TINY, num_classes=0), None), HUB["facebook/dinov2-small"], "hf")
    write_checkpoint(_checkpoint(DEIT, None), "deit.pth", "timm")
    write_checkpoint(_checkpoint(replace(DEIT, block=BlockConfig(activation="gelu_tanh")), None), "B_16.npz", "google")


def _checkpoint(config: ViTConfig, classes: tuple[str, ...] | None) -> Checkpoint:
    torch.manual_seed(0)
    model = randomize(ViT(config))
    spec = preset("timm", config.image_size, config.channels)
    return Checkpoint(config=config, tensors=model.state_dict(), preprocess=spec, classes=classes)

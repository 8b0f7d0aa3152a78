"""Oracle: timm's DINOv2 with registers, whose code google-deepmind/tips has taken over, with one register."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers import timm

from conftest import randomize
from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, ViTConfig
from vitrail.weights.checkpoint import expected_shapes
from vitrail.weights.foreign import dinov2, tips
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.keys import write_tensors
from vitrail.weights.read import read_checkpoint
from weights_fixtures import check_features, check_written_back

SIZES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "mlp_ratio": 2}


def test_features_and_every_key_back(tmp_path: Path) -> None:
    vit = timm.models.vision_transformer.VisionTransformer
    oracle = randomize(vit(**SIZES, num_classes=0, init_values=1.0, reg_tokens=1, no_embed_class=True)).eval()
    state = dict(oracle.state_dict())
    # timm adds the position of [cls] to [cls] itself
    state["pos_embed"] = torch.cat([torch.full((1, 1, 48), 0.5), state["pos_embed"]], dim=1)
    state["cls_token"] = state["cls_token"] - 0.5
    state["register_tokens"], state["mask_token"] = state.pop("reg_token"), torch.ones(1, 48)
    np.savez(tmp_path / "a.npz", **{name: tensor.numpy() for name, tensor in state.items()})
    read = read_checkpoint(tmp_path / "a.npz", hints=Hints(heads=3))
    assert (read.file_format, read.notes, read.preprocess) == ("tips", (), preset("tips", 32))
    check_features(read, oracle, (32, 32))
    check_written_back(read, tmp_path / "a.npz", tmp_path / "b.npz", "tips")
    torch.save(state, tmp_path / "c.pth")
    read = read_checkpoint(tmp_path / "c.pth", hints=Hints(heads=3), allow_pickle=True)
    assert read.notes == ("it has one register, as no DINOv2 has: assumed a TIPS, whose pictures have no mean and std",)


def test_so400m_has_wider_heads() -> None:
    config = ViTConfig(width=1152, depth=1, heads=16, registers=1, num_classes=0, block=BlockConfig(layer_scale=1.0))
    shapes = expected_shapes(config)
    ours = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    tensors = write_tensors(dinov2.key_table(config), ours)
    assert tips.read(Raw(path=Path("a.npz"), tensors=tensors, sidecars={}), Hints()).config.heads == 16

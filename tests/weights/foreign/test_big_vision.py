"""Oracle: timm's own reader of big_vision files (its forward pass, with the tanh GELU that big_vision has)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.peers import timm

from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint

TANH = BlockConfig(activation="gelu_tanh")
PATCHES = PositionConfig(covers="patches")
CASES: dict[str, dict[str, Any]] = {
    "gap": {"pooling": "mean", "class_token": False, "block": TANH},
    "map": {"pooling": "map", "class_token": False, "block": TANH},
    "tok": {"pooling": "cls", "positions": PATCHES, "block": TANH},
    "sincos": {"pooling": "mean", "class_token": False, "positions": PositionConfig(kind="sincos"), "block": TANH},
    "representation": {"pooling": "mean", "class_token": False, "representation": 24, "block": TANH},
}


@pytest.mark.parametrize("case", ["gap", "map"])
def test_timm_reads_what_we_write(tmp_path: Path, make_checkpoint: Any, case: str) -> None:
    checkpoint = make_checkpoint(**CASES[case])
    write_checkpoint(checkpoint, tmp_path / "a.npz", "big_vision")
    peer = timm.models.vision_transformer.VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=3,
        num_heads=4,
        mlp_ratio=2,
        num_classes=7,
        class_token=False,
        global_pool="avg" if case == "gap" else "map",
        fc_norm=False,
        act_layer="gelu_tanh",
    ).eval()
    peer.load_pretrained(str(tmp_path / "a.npz"))
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        ours, theirs = checkpoint.build()(images), peer(images)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layers", ["listed", "scanned"])
def test_both_layouts_of_layers(tmp_path: Path, make_checkpoint: Any, case: str, layers: str) -> None:
    checkpoint = make_checkpoint(**CASES[case])
    write_checkpoint(checkpoint, tmp_path / "a.npz", "big_vision")
    arrays = dict(np.load(tmp_path / "a.npz"))
    if layers == "scanned":
        block = "params/Transformer/encoderblock"
        names = [name.removeprefix(f"{block}_0/") for name in arrays if name.startswith(f"{block}_0/")]
        scanned = {f"{block}/{name}": np.stack([arrays[f"{block}_{i}/{name}"] for i in range(3)]) for name in names}
        arrays = {name: array for name, array in arrays.items() if "encoderblock_" not in name} | scanned
    np.savez(tmp_path / "b.npz", **arrays)
    hints = {"image_size": (32, 32)} if case == "sincos" else {}
    read = read_checkpoint(tmp_path / "b.npz", hints=Hints(**hints))
    assert read.config == checkpoint.config
    assert all(torch.equal(read.tensors[name], tensor) for name, tensor in checkpoint.tensors.items())
    write_checkpoint(read, tmp_path / "again.npz", "big_vision")
    again = dict(np.load(tmp_path / "again.npz"))
    assert again.keys() == arrays.keys()
    assert all(np.array_equal(again[name], array) for name, array in arrays.items())


@pytest.mark.parametrize(
    ("case", "notes"),
    [
        (
            "gap",
            ["does not state the shape of its grid of 16 patches", 'assumed the mean of the patches (pool_type "gap")'],
        ),
        ("map", ["does not state the shape of its grid of 16 patches"]),
        ("tok", ["does not state the shape of its grid of 16 patches"]),
        ("sincos", ["assumed the fixed ones of big_vision's sincos2d; pictures of 224×224, or pass", "pool_type"]),
        ("representation", ["the shape of its grid", "pool_type", "assumed tanh after pre_logits"]),
    ],
)
def test_what_the_keys_leave_open_is_noted(tmp_path: Path, make_checkpoint: Any, case: str, notes: list[str]) -> None:
    write_checkpoint(make_checkpoint(**CASES[case]), tmp_path / "a.npz", "big_vision")
    read = read_checkpoint(tmp_path / "a.npz")
    assert len(read.notes) == len(notes)
    assert all(expected in note for expected, note in zip(notes, read.notes, strict=True))
    told = Hints(image_size=(32, 32), pooling=CASES[case]["pooling"])
    left = {"sincos": 1, "representation": 1}.get(case, 0)  # what no hint settles
    assert len(read_checkpoint(tmp_path / "a.npz", hints=told).notes) == left


def test_pooling_the_first_patch_is_refused(tmp_path: Path, make_checkpoint: Any) -> None:
    """big_vision's pool_type "0" leaves the keys of "gap"."""
    write_checkpoint(make_checkpoint(**CASES["gap"]), tmp_path / "a.npz", "big_vision")
    with pytest.raises(WeightsError, match="our ViT cannot pool the first patch instead"):
        read_checkpoint(tmp_path / "a.npz", hints=Hints(pooling="cls"))


def test_one_of_two_towers(tmp_path: Path, make_checkpoint: Any) -> None:
    """SigLIP: the similarity's scale and bias are kept beside the picture's tower, the text's is left out."""
    write_checkpoint(make_checkpoint(**CASES["map"], num_classes=0), tmp_path / "a.npz", "big_vision")
    tower = {name.replace("params/", "params/img/"): array for name, array in np.load(tmp_path / "a.npz").items()}
    scales = {"params/t": np.array([2.3], np.float32), "params/b": np.array([-12.9], np.float32)}
    np.savez(tmp_path / "b.npz", **tower, **scales, **{"params/txt/Embed_0/embedding": np.ones((3, 2), np.float32)})
    read = read_checkpoint(tmp_path / "b.npz")
    assert {name: tensor.item() for name, tensor in read.extras.items()} == pytest.approx(
        {"logit_scale": 2.3, "logit_bias": -12.9}
    )
    assert "left out 1 tensor that does not start with params/img/" in read.remarks
    write_checkpoint(read, tmp_path / "again.npz", "big_vision")
    again = dict(np.load(tmp_path / "again.npz"))
    assert again.keys() == {**tower, **scales}.keys()
    assert all(np.array_equal(again[name], array) for name, array in {**tower, **scales}.items())

"""Every ViT that timm registers: the same numbers here as there, or a refusal by name; never a silent difference.

timm makes each model, small in width and depth; heads, norms, tokens, pooling, activation and positions are those of
the name. Its folder and its bare file are read, compared at several sizes, and written back to the bit.
"""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.peers import timm
from safetensors.torch import load_file, save_file
from torch import nn

from conftest import randomize
from vitrail.errors import WeightsError
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.timm_eva_names import BEIT_NAMES, EVA_NAMES
from vitrail.weights.foreign.timm_names import LOOKALIKES, NAMES, named_arguments
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint

PATTERNS = ("vit_*", "deit*", "eva*", "beit*", "flexivit*", "naflexvit*", "aimv2*", "test_vit*")
REGISTERED = [name for name in timm.list_models() if any(fnmatchcase(name, pattern) for pattern in PATTERNS)]
MODULE = timm.models._registry._model_to_module
MODULES = ("vision_transformer", "vision_transformer_hybrid", "deit", "naflexvit", "vision_transformer_relpos")
READ = [name for name in REGISTERED if MODULE[name] in MODULES and name in NAMES]
REFUSED = [name for name in REGISTERED if MODULE[name] in MODULES and name not in NAMES]
STRIDES: dict[Any, int] = {(): 32, (2, 2, 2, 2): 32, (3, 4, 9): 16, (3, 4, 6, 3): 32}  # of the hybrids' ResNets


def shrink(name: str) -> dict[str, Any]:
    """Arguments that make a model of this name small, and let it take pictures of other sizes if it can."""
    told = named_arguments(name)
    arguments: dict[str, Any] = {"depth": 1, "num_classes": 5, "embed_dim": 4 * told["num_heads"]}
    if told["layout"] == "naflex":
        return {**arguments, "pos_embed_grid_size": (2, 2)}
    stride = STRIDES.get(told["resnet"]) or told["patch_size"]
    arguments["img_size"] = 2 * stride
    return arguments if told["layout"] == "relpos" else {**arguments, "dynamic_img_size": told["resnet"] is None}


def sizes_of(checkpoint: Checkpoint, arguments: dict[str, Any]) -> list[tuple[int, int]]:
    """The model's own picture size, another one and one that is not square, where timm takes them."""
    (height, width), (row, column) = checkpoint.config.image_size, checkpoint.config.stride
    others = [(height + row, width + column), (height, width + 2 * column)]
    return [
        (height, width),
        *(others if arguments.get("dynamic_img_size", checkpoint.config.relative.kind == "none") else []),
    ]


def assert_same(checkpoint: Checkpoint, peer: nn.Module, sizes: list[tuple[int, int]]) -> None:
    model, generator = checkpoint.build(), torch.Generator().manual_seed(0)
    with torch.inference_mode():
        for size in sizes:
            images = torch.randn(2, 3, *size, generator=generator)
            expected = peer(images)
            assert (model(images) - expected).abs().max() <= 1e-5 * expected.abs().max(), size


@pytest.mark.parametrize("name", READ)
def test_the_same_numbers(tmp_path: Path, name: str) -> None:
    arguments = shrink(name)
    if MODULE[name] == "vision_transformer_hybrid" and name.endswith("_384"):  # as large as a whole ResNet
        assert named_arguments(name) == named_arguments(name.replace("_384", "_224"))
        return
    peer = randomize(timm.create_model(name, **arguments)).eval()
    size = (arguments.get("img_size", 32),) * 2
    data = {"input_size": (3, *size), "tag": "mine"}
    peer.pretrained_cfg = {**peer.pretrained_cfg, **data}
    timm.models.save_for_hf(peer, tmp_path / "theirs", model_args=arguments, safe_serialization=True)
    checkpoint = read_checkpoint(tmp_path / "theirs")
    config, gated = checkpoint.config, checkpoint.config.block.mlp == "swiglu"
    assert checkpoint.notes == ()
    assert_same(checkpoint, peer, sizes_of(checkpoint, arguments))

    write_checkpoint(checkpoint, tmp_path / "ours", "timm")
    theirs, ours = (load_file(tmp_path / folder / "model.safetensors") for folder in ("theirs", "ours"))
    if config.relative.kind == "none":  # other models get the table of biases in place of the MLP that computes it
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], tensor) for key, tensor in theirs.items())
    assert_same(checkpoint, timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True).eval(), [size])
    again = read_checkpoint(tmp_path / "ours")
    assert (again.config, again.preprocess, again.notes) == (checkpoint.config, checkpoint.preprocess, ())

    save_file(ours, tmp_path / "bare.safetensors")
    hints = Hints(heads=config.heads, pooling=config.pooling, activation=None if gated else config.block.activation)
    bare = read_checkpoint(tmp_path / "bare.safetensors", hints=hints)
    kernel = replace(bare.config.positions, resample=config.positions.resample)
    assert replace(bare.config, pool_prefix=config.pool_prefix, positions=kernel) == config  # no key shows these two
    named = read_checkpoint(tmp_path / "bare.safetensors", hints=Hints(architecture=name, heads=config.heads))
    assert named.config == config


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    with pytest.raises(WeightsError, match=f"timm's {name} has "):
        named_arguments(name)


@pytest.mark.parametrize("name", [name for name in REFUSED if "mci" not in name and "resnet" not in name])
def test_weights_of_another_architecture_are_refused(tmp_path: Path, name: str) -> None:
    """With a `config.json`, and without one: by its name, or by what its keys show of it."""
    arguments: dict[str, Any] = {"depth": 1, "num_classes": 5, "embed_dim": 64, "num_heads": 2, "img_size": 32}
    peer = timm.create_model(name, **arguments)
    timm.models.save_for_hf(peer, tmp_path, model_args=arguments, safe_serialization=True)
    with pytest.raises(WeightsError, match=f"timm's {name} has |looks like a ViT with (parallel|differential)"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    if name in LOOKALIKES:  # whose keys are those of a plain ViT; a note names it if its size is that of the name
        return
    if "rpn" in name:
        notes = read_checkpoint(tmp_path, hints=Hints(heads=2)).notes
        assert any("vit_relpos_*_rpn_* have the same keys and a LayerNorm after each branch" in note for note in notes)
        return
    with pytest.raises(WeightsError, match="missing|unknown|looks like|are those of no ViT"):
        read_checkpoint(tmp_path, hints=Hints(heads=2))


def test_the_counts_of_the_guide() -> None:
    """docs/weights.md tells how many names of timm are read."""
    text = (Path(__file__).parents[2] / "docs" / "weights.md").read_text(encoding="utf-8")
    read = {*READ, *EVA_NAMES, *BEIT_NAMES}
    assert read <= set(REGISTERED)
    assert f"{len(read)} of the {len(REGISTERED)} ViTs that timm registers" in " ".join(text.split())

"""Every module of ours is found in the models that libraries build, and sees there what it sees in ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.peers import timm, torchvision, transformers

from conftest import randomize
from vitrail.model import ViTConfig
from vitrail.weights.hints import Hints
from vitrail.weights.places import ENTRANCE, OUTPUT, Place, is_coarse, library_subject, our_subject, watch
from vitrail.weights.read import read_checkpoint

SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2}


def save_timm(folder: Path, **options: Any) -> Path:
    name = options.pop("name", "vit_base_patch16_224")
    model = randomize(timm.create_model(name, num_classes=3, **SIZES, **options))
    model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (3, 32, 32), "num_classes": 3}
    timm.models.save_for_hf(model, folder, safe_serialization=True, model_args={**SIZES, **options})
    return folder / "model.safetensors"


def save_dinov2(folder: Path, **options: Any) -> Path:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    config = transformers.Dinov2WithRegistersConfig(**sizes, **options)
    randomize(transformers.Dinov2WithRegistersModel(config)).save_pretrained(folder)
    return folder


def save_transformers(folder: Path, kind: str, **options: Any) -> Path:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    config = getattr(transformers, f"{kind}Config")(**sizes, intermediate_size=64, **options)
    randomize(getattr(transformers, f"{kind}Model")(config)).save_pretrained(folder)
    return folder


def save_torchvision(folder: Path) -> Path:
    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64}
    model = randomize(torchvision.models.VisionTransformer(**sizes, num_classes=3))
    torch.save(model.state_dict(), folder / "a.pth")
    return folder / "a.pth"


SWIGLU = {"name": "vit_giant_patch14_reg4_dinov2", "global_pool": "avg"}
CASES: dict[str, tuple[Callable[..., Path], dict[str, Any], tuple[str, ...]]] = {  # how, and what has no module there
    "timm": (save_timm, {"qk_norm": True, "init_values": 0.1, "reg_tokens": 2}, ()),
    "attention pooling": (save_timm, {"global_pool": "map"}, ()),
    "SwiGLU, packed": (save_timm, SWIGLU, ("mlp.gate", "mlp.up")),
    "transformers": (save_dinov2, {"num_register_tokens": 2}, ()),
    "SwiGLU": (save_dinov2, {"use_swiglu_ffn": True}, ()),
    "shuffled patches": (save_transformers, {"kind": "ViTMAE"}, ()),
    "a norm before the blocks": (save_transformers, {"kind": "CLIPVision"}, ()),
    "relative biases": (save_timm, {"name": "beit_base_patch16_224"}, ()),
    "torchvision": (save_torchvision, {}, ("attention.qkv",)),
}


@pytest.mark.parametrize("case", CASES)
def test_places_are_the_same_in_both(tmp_path: Path, case: str) -> None:
    save, options, missing = CASES[case]
    path = save(tmp_path, **options)
    checkpoint = read_checkpoint(path, hints=Hints(heads=4), allow_pickle=True)
    ours, theirs = our_subject(checkpoint, torch.float64), library_subject(checkpoint, path, torch.float64)
    assert {name for name in ours.modules if name not in theirs.modules} == {
        name for name in ours.modules if name.endswith(missing) and missing
    }
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    seen, other = (watch(subject, images, lambda place: True) for subject in (ours, theirs))
    compared = 0
    for place, tensor in seen.items():
        if place in other and tensor.shape == other[place].shape:
            torch.testing.assert_close(tensor, other[place], rtol=1e-10, atol=1e-10)
            compared += 1
    assert compared > 20
    assert OUTPUT in seen


def test_what_a_place_is_called(tiny: ViTConfig) -> None:
    assert ENTRANCE.describe(tiny) == "the tokens with their positions"
    assert Place(module="blocks.2.norm1", side="in").describe(tiny) == "the output of block 1"
    assert Place(module="blocks.2.mlp.fc2", side="in").describe(tiny) == "the activation of the MLP of block 2"
    assert Place(module="pool.proj", side="out").describe(tiny) == "what leaves pool.proj"
    assert OUTPUT.describe(tiny) == "the logits"
    assert is_coarse(Place(module="blocks.2.norm1", side="in"))
    assert not is_coarse(Place(module="blocks.2.norm1", side="out"))

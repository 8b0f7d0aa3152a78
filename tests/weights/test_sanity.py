from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from vitrail.data.preprocess import preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Origin
from vitrail.weights.sanity import diagnose


def change(checkpoint: Checkpoint, **tensors: torch.Tensor) -> Checkpoint:
    renamed = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    return replace(checkpoint, tensors={**checkpoint.tensors, **renamed})


@pytest.fixture
def sound(make_checkpoint: Callable[..., Checkpoint]) -> Callable[..., Checkpoint]:
    def make(**fields: Any) -> Checkpoint:
        checkpoint = make_checkpoint(**fields)
        names = tuple(f"class {index}" for index in range(checkpoint.config.num_classes)) or None
        return replace(checkpoint, classes=names)

    return make


def messages(checkpoint: Checkpoint) -> str:
    return "\n".join(f"{finding.severity}: {finding.message}" for finding in diagnose(checkpoint))


def test_a_sound_checkpoint_has_no_warnings(sound: Callable[..., Checkpoint]) -> None:
    assert diagnose(sound()) == []
    assert diagnose(sound(representation=24)) == []


def test_nan_and_infinity_are_errors(sound: Callable[..., Checkpoint]) -> None:
    checkpoint = sound()
    broken = checkpoint.tensors["norm.weight"].clone()
    broken[3] = torch.inf
    assert "error: NaN or infinite numbers in norm.weight" in messages(change(checkpoint, norm__weight=broken))


def test_a_head_of_zeros(sound: Callable[..., Checkpoint]) -> None:
    checkpoint = sound()
    assert "the head is all zeros" in messages(change(checkpoint, head__weight=torch.zeros(7, 32)))


def test_no_head_and_no_names(sound: Callable[..., Checkpoint]) -> None:
    assert "there is no head" in messages(sound(num_classes=0))
    assert "the 7 classes have no names" in messages(replace(sound(), classes=None))


def test_a_random_pooler(sound: Callable[..., Checkpoint]) -> None:
    """Oracle: the pooler that transformers itself makes."""
    from benchmarks.peers import transformers

    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    pooler = transformers.ViTModel(config).pooler.dense
    checkpoint = sound(representation=32)
    random = change(checkpoint, representation__weight=pooler.weight.data, representation__bias=pooler.bias.data)
    assert "looks random" in messages(random)
    trained = pooler.weight.data + 0.01 * torch.randn(32, 1) @ torch.randn(1, 32)
    assert "looks random" not in messages(change(random, representation__bias=torch.randn(32) * 1e-3))
    assert "looks random" not in messages(change(random, representation__weight=trained * 2))


def test_a_21k_head_without_its_representation(sound: Callable[..., Checkpoint]) -> None:
    assert "without the representation layer" in messages(sound(num_classes=21843))


def test_mixed_types(sound: Callable[..., Checkpoint]) -> None:
    checkpoint = sound()
    half = change(checkpoint, norm__weight=checkpoint.tensors["norm.weight"].half())
    assert "a mix of number types: torch.float16, torch.float32" in messages(half)


def test_statistics_of_another_family(sound: Callable[..., Checkpoint]) -> None:
    wrong = replace(sound(), origin=Origin(format="hf"), preprocess=preset("torchvision", 32))
    assert "are not those of its family (hf: 0.5 and 0.5)" in messages(wrong)
    assert diagnose(replace(wrong, origin=Origin(format="torchvision"))) == []


def test_notes_of_the_reader_are_shown(sound: Callable[..., Checkpoint]) -> None:
    shown = messages(replace(sound(), notes=("something",), remarks=("nothing much",)))
    assert shown == "warning: something\nnote: nothing much"

"""LoRA in a run: what is trained and remembered, what is written, and that it continues to the bit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import randomize
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError
from vitrail.model import ConvStem, ViT, ViTConfig
from vitrail.training import Listener, Start, train
from vitrail.training.loop import Trainer
from vitrail.training.lora import adapted_layers
from vitrail.training.signals import InterruptedRunError
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import save_checkpoint

from .conftest import quick_config

SMALL = ViTConfig(
    image_size=(8, 8), patch_size=(4, 4), channels=1, width=16, depth=2, heads=2, mlp_width=32, num_classes=0
)


@pytest.fixture
def base(tmp_path: Path) -> str:
    """Weights to start from."""
    model = randomize(ViT(SMALL))
    spec = Preprocess(size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    save_checkpoint(
        Checkpoint(config=SMALL, tensors=model.state_dict(), preprocess=spec), tmp_path / "base.safetensors"
    )
    return str(tmp_path / "base.safetensors")


LORA = {"model": None, "train": "lora", "optimizer": "adamw", "lora_rank": 2, "lr": 0.01, "ema": None, "mixup": 0.0}


def trained_names(model: ViT) -> set[str]:
    return {name for name, weight in model.named_parameters() if weight.requires_grad}


def test_only_the_pairs_and_the_head_are_trained_and_remembered(
    make_trainer: Callable[..., Trainer], base: str
) -> None:
    trainer = make_trainer(**LORA, weights=base, lora_targets="query,mlp")
    names = trained_names(trainer.model)
    assert all(".adapters." in name or name.startswith("head.") for name in names)
    assert {name.split(".")[2] for name in names if ".adapters." in name} == {"attention", "mlp"}
    assert not [name for name in names if ".adapters.value" in name or ".adapters.key" in name]
    remembered = {id(weight) for optimizer in trainer.optimizers for weight in optimizer.state}
    assert remembered == {id(weight) for weight in trainer.model.parameters() if weight.requires_grad}
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.run()
    changed = {name for name, tensor in trainer.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == names, "the weights themselves stay as they are"


def test_frozen_batch_norms_keep_their_statistics(make_trainer: Callable[..., Trainer], tmp_path: Path) -> None:
    config = replace(SMALL, patch_size=(2, 2), stem=ConvStem(widths=(16,), strides=(2,), norm="batch"))
    tensors, spec = randomize(ViT(config)).state_dict(), Preprocess(size=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    path = tmp_path / "stem.safetensors"
    save_checkpoint(Checkpoint(config=config, tensors=tensors, preprocess=spec), path)
    trainer = make_trainer(**LORA, weights=str(path))
    before = {name: buffer.clone() for name, buffer in trainer.model.named_buffers()}
    trainer.run()
    assert before
    assert all(torch.equal(buffer, before[name]) for name, buffer in trainer.model.named_buffers())


def test_a_run_leaves_a_plain_checkpoint_and_adapters(base: str, tmp_path: Path) -> None:
    said: list[str] = []

    class Hearing(Listener):
        def said(self, message: str) -> None:
            said.append(message)

    run = train(quick_config(**LORA, weights=base), tmp_path / "run", Hearing())
    assert len([line for line in said if "merged into best.safetensors" in line and "evaluate" not in line]) == 1
    best = load_file(run.best)
    assert best.keys() == ViT(ViTConfig(**{**vars(SMALL), "num_classes": 10})).state_dict().keys()
    start = load_file(base)
    changed = {name for name in start if not torch.equal(start[name], best[name])}
    assert changed == {f"blocks.{block}.attention.qkv.weight" for block in range(2)}
    third = slice(16, 32)
    assert torch.equal(best["blocks.0.attention.qkv.weight"][third], start["blocks.0.attention.qkv.weight"][third]), (
        "the keys are not among the targets"
    )
    folder = run.folder / "weights" / "peft-timm"
    facts = json.loads((folder / "adapter_config.json").read_text())
    pairs = load_file(folder / "adapter_model.safetensors")
    scale = facts["alpha_pattern"].get("blocks.0.attn.qkv", facts["lora_alpha"]) / 4
    qkv = "base_model.model.blocks.0.attn.qkv"
    product = scale * pairs[f"{qkv}.lora_B.weight"] @ pairs[f"{qkv}.lora_A.weight"]
    torch.testing.assert_close(
        start["blocks.0.attention.qkv.weight"] + product, best["blocks.0.attention.qkv.weight"], rtol=1e-5, atol=1e-6
    )


def test_an_interrupted_run_ends_with_the_same_bits(make_trainer: Callable[..., Trainer], base: str) -> None:
    class Stop(Listener):
        def stepped(self, step: int, loss: float, images_per_second: float) -> None:
            if step == 6:
                raise InterruptedRunError(2, Path())

    whole = make_trainer("whole", **LORA, weights=base, save_minutes=1e-6)
    whole.run()
    broken = make_trainer("broken", **LORA, weights=base, save_minutes=1e-6)
    broken.listener = Stop()
    with pytest.raises(InterruptedRunError):
        broken.run()
    again = make_trainer("broken", **LORA, weights=base, save_minutes=1e-6)
    again.resume()
    assert again.state.step > 0
    again.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    assert (whole.folder / "weights/best.safetensors").read_bytes() == (
        again.folder / "weights/best.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_targets": "querry"}, "did you mean query"),
        ({"lora_targets": " , "}, "must list some of query, key, value, proj, mlp"),
        ({"lora_rank": 0}, "lora_rank= must be between 1"),
        ({"lora_alpha": 0.0}, "lora_alpha= must be above 0"),
    ],
)
def test_mistakes(settings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Start(**settings)


def test_targets_are_in_the_order_of_the_model() -> None:
    assert Start(lora_targets="value, query").adapted == ("query", "value")
    assert Start(lora_targets="all").adapted == ("query", "key", "value", "proj", "mlp")


def test_without_weights_there_is_nothing_to_adapt(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="training with LoRA needs pretrained weights"):
        train(quick_config(train="lora"), tmp_path / "run")


def test_swiglu_has_three_matrices(make_setup: Callable[..., object], make_model: Callable[..., ViT]) -> None:
    from vitrail.model import BlockConfig
    from vitrail.training.lora import add_adapters

    model = make_model(block=BlockConfig(mlp="swiglu"))
    add_adapters(model, rank=2, alpha=2, targets=("mlp",))
    names = {name.rpartition(".")[2] for name, _ in adapted_layers(model)}
    assert names == {"gate", "up", "down"}

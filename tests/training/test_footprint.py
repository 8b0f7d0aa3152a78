"""A training step on paper, against what autograd keeps and what optimisers hold."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from vitrail.errors import ConfigError
from vitrail.model import BlockConfig, ViT, ViTConfig, variant
from vitrail.training import Optim, estimate_footprint
from vitrail.training.optim import build_optimizers, start_state

SMALL = ViTConfig(image_size=(64, 64), patch_size=(8, 8), width=96, depth=4, heads=3, mlp_width=384, num_classes=10)
PICTURES = 4
KINDS = {
    "cls": SMALL,
    "mean": replace(SMALL, pooling="mean"),
    "attention pooling": replace(SMALL, pooling="map"),
    "layer scale": replace(SMALL, block=BlockConfig(layer_scale=1.0)),
    "swiglu": replace(SMALL, block=BlockConfig(mlp="swiglu")),
}


def kept_by_autograd(config: ViTConfig, precision: str, *, recompute: bool) -> tuple[int, int]:
    """Bytes of what the backward pass needs, without the weights: activations, and copies of matrices.

    The tensors are fake: nothing is computed, so that processors without bf16 give the same answer.
    """
    kept: dict[int, Tensor] = {}  # storage → what is there, kept alive

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    watch = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with FakeTensorMode(), patch.object(ViT, "init_weights"):  # which looks at numbers
        model = ViT(config).train()
        model.gradient_checkpointing = recompute
        images = keep(torch.randn(PICTURES, config.channels, *config.image_size))
        with watch, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            model(images)
    weights = {each.untyped_storage()._cdata for each in model.parameters()}
    shapes = {tuple(each.shape) for each in model.parameters()}
    others = [each for storage, each in kept.items() if storage not in weights]
    copies = [each for each in others if {tuple(each.shape), tuple(each.shape[::-1])} & shapes]
    copied = sum(each.untyped_storage().nbytes() for each in copies)
    return sum(each.untyped_storage().nbytes() for each in others) - copied, copied


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's kernel attends in bf16 too, and keeps no probabilities."""
    monkeypatch.setattr("vitrail.model.attention.SHORT", 0)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_what_autograd_keeps(kind: str, precision: str) -> None:
    paper = estimate_footprint(KINDS[kind], pictures=PICTURES, precision=precision)
    activations, copies = kept_by_autograd(KINDS[kind], precision, recompute=False)
    assert paper.activations == pytest.approx(activations, rel=0.01)
    assert paper.copies == pytest.approx(copies, rel=0.01)


def test_recomputing_keeps_one_vector_per_token_and_one_block() -> None:
    paper, deeper, less = (
        estimate_footprint(config, pictures=PICTURES, recompute=recompute).activations
        for config, recompute in ((SMALL, False), (replace(SMALL, depth=SMALL.depth + 1), False), (SMALL, True))
    )
    kept, _ = kept_by_autograd(SMALL, "bf16", recompute=True)
    assert less == pytest.approx(kept + deeper - paper, rel=0.01)  # a block's own are there while it is computed again
    assert less < paper


@pytest.mark.parametrize("optim", [Optim(), Optim(optimizer="sgd"), Optim(optimizer="muon")], ids=lambda o: o.optimizer)
def test_the_state_is_what_the_optimisers_hold(optim: Optim) -> None:
    model = ViT(SMALL)
    optimizers = build_optimizers(model, optim, SMALL.depth)
    start_state(optimizers)
    states: list[Any] = [state for optimizer in optimizers for state in optimizer.state.values()]
    held = sum(value.nbytes for state in states for value in state.values() if value.ndim)
    paper = estimate_footprint(SMALL, pictures=1, optim=optim)
    assert paper.optimizer == held
    assert paper.parameters == paper.gradients == sum(each.nbytes for each in model.parameters())


def test_a_moving_average_is_one_more_copy_of_the_weights() -> None:
    paper = estimate_footprint(SMALL, pictures=1, optim=Optim(ema=0.999))
    assert paper.average == paper.parameters
    assert paper.state == 5 * paper.parameters


def test_shards_and_rings() -> None:
    """Of (n - 1) / n of the weights, DDP sends twice as much, and FSDP three times, apart from what it gathers once."""
    config = variant("vit-G14")
    ddp, fsdp = (estimate_footprint(config, pictures=8, ranks=8, strategy=strategy) for strategy in ("ddp", "fsdp"))
    assert fsdp.state == pytest.approx(ddp.state / 8, rel=0.01)
    assert ddp.gathered == 0 < fsdp.gathered < fsdp.state
    assert ddp.sent == 2 * 7 * ddp.parameters // 8
    assert 2.9 < fsdp.sent / (7 / 8 * ddp.parameters) < 3
    assert (ddp.activations, ddp.copies) == (fsdp.activations, fsdp.copies)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"ranks": 0}, "at least 1"), ({"strategy": "zero"}, "strategy"), ({"precision": "fp8"}, "precision")],
)
def test_what_cannot_be_is_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        estimate_footprint(SMALL, **{"pictures": 1, **wrong})

"""Which weights are decayed and how fast they learn (timm is the oracle), and Muon (torch is)."""

import importlib
from collections.abc import Callable

import pytest
import torch
from benchmarks.peers import timm
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from vitrail.model import ConvStem, ViT, variant
from vitrail.training import Optim, Schedule
from vitrail.training.muon import Muon, orthogonalize
from vitrail.training.optim import build_optimizers, group_parameters, lr_factor, set_learning_rate, start_state


def test_every_parameter_is_in_one_group(make_model: Callable[..., ViT]) -> None:
    model = make_model(registers=2, stem=ConvStem(widths=(8, 16), strides=(1, 1)))
    for kind in ("adamw", "sgd", "muon"):
        groups = group_parameters(model, Optim(optimizer=kind, layer_decay=0.7), 3)
        found = [id(parameter) for group in groups for parameter in group.parameters]
        assert sorted(found) == sorted(id(parameter) for parameter in model.parameters())


def test_norms_biases_tokens_and_positions_are_not_decayed(make_model: Callable[..., ViT]) -> None:
    model = make_model(registers=2, pooling="map")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = group_parameters(model, Optim(weight_decay=0.1), 3)
    free = {names[id(parameter)] for group in groups if not group.decay for parameter in group.parameters}
    assert {"embed.class_token", "embed.registers", "embed.positions", "pool.probe", "norm.weight"} <= free
    assert all(name.endswith("bias") or "norm" in name or name.startswith(("embed.", "pool.probe")) for name in free)
    assert "embed.patches.weight" not in free


def test_layer_decay_is_timms() -> None:
    """The same architecture in timm: (learning rate, decayed) → number of weights must agree.

    The last norm is left out: timm counts it to the last block, BEiT, where the idea comes from, and we to the head.
    """
    layer_decay = importlib.import_module("timm.optim").param_groups_layer_decay
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=10, depth=3)
    ours = ViT(variant("vit-ti16", num_classes=10, depth=3))
    norms = {id(parameter) for model in (theirs, ours) for parameter in model.norm.parameters()}  # pyright: ignore
    expected: dict[tuple[float, bool], int] = {}
    undecayed = theirs.no_weight_decay()
    for group in layer_decay(theirs, weight_decay=0.05, no_weight_decay_list=undecayed, layer_decay=0.6):
        key = (round(group["lr_scale"], 9), group["weight_decay"] > 0)
        weights = sum(parameter.numel() for parameter in group["params"] if id(parameter) not in norms)
        expected[key] = expected.get(key, 0) + weights
    found: dict[tuple[float, bool], int] = {}
    for group in group_parameters(ours, Optim(lr=1.0, weight_decay=0.05, layer_decay=0.6), 3):
        key = (round(group.lr, 9), group.decay > 0)
        weights = sum(parameter.numel() for parameter in group.parameters if id(parameter) not in norms)
        found[key] = found.get(key, 0) + weights
    assert found == expected


def test_orthogonalize_makes_singular_values_alike() -> None:
    for shape in ((4, 48, 24), (2, 192, 48), (3, 48, 192)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.4


@pytest.mark.parametrize(("split", "blocks"), [("none", 1), ("qkv", 3), ("heads", 12)])
def test_muon_may_treat_parts_of_attention_as_matrices(split: str, blocks: int, make_model: Callable[..., ViT]) -> None:
    """Each block of rows steps as the same matrix on its own does; all other matrices as ever."""
    model = make_model(stem=ConvStem(widths=(8, 16), strides=(1, 1))).double()  # the iteration lifts what is rounded
    config = Optim(optimizer="muon", muon_lr=0.1, weight_decay=0.2, muon_split=split)  # pyright: ignore[reportArgumentType]
    muon = next(each for each in build_optimizers(model, config, 3) if isinstance(each, Muon))
    start_state([muon])
    alone: dict[str, list[nn.Parameter]] = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    handled = [parameter for group in muon.param_groups for parameter in group["params"]]
    for parameter in handled:
        own = blocks if names[id(parameter)].endswith("attention.qkv.weight") else 1
        parts = parameter.detach().flatten(1).chunk(own)
        alone[names[id(parameter)]] = [nn.Parameter(part.clone()) for part in parts]
    singles = [Muon([{"params": [part], "lr": 0.1, "weight_decay": 0.2}]) for parts in alone.values() for part in parts]
    set_learning_rate([muon], 1.0)
    for _ in range(3):
        for parameter in handled:
            parameter.grad = torch.randn_like(parameter)
            parts = alone[names[id(parameter)]]
            for part, gradient in zip(parts, parameter.grad.flatten(1).chunk(len(parts)), strict=True):
                part.grad = gradient.clone()
        for optimizer in (muon, *singles):
            optimizer.step()
    assert {len(parts) for name, parts in alone.items() if "qkv" in name} == {blocks}
    for parameter in handled:
        expected = torch.cat([part.detach() for part in alone[names[id(parameter)]]]).view_as(parameter)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-9, atol=1e-9)


def test_matrices_of_one_shape_are_orthogonalised_together(make_model: Callable[..., ViT], monkeypatch) -> None:
    """Queries, keys and values on their own have the shape of the projection after attention."""
    seen: list[tuple[int, ...]] = []

    def watch(matrices: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(matrices.shape))
        return matrices

    monkeypatch.setattr("vitrail.training.muon.orthogonalize", watch)
    start_state(build_optimizers(make_model(), Optim(optimizer="muon", muon_split="qkv"), 3))
    assert sorted(seen) == [(3, 32, 64), (3, 64, 32), (12, 32, 32)]


def test_muon_is_torchs_up_to_its_bfloat16() -> None:
    torch.manual_seed(3)
    first = torch.randn(64, 32)
    ours, theirs = nn.Parameter(first.clone()), nn.Parameter(first.clone())
    mine = Muon([{"params": [ours], "lr": 0.02, "weight_decay": 0.1}])
    peer = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1)
    for _ in range(5):
        gradient = torch.randn(64, 32)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        peer.step()
    moved, expected = (ours - first).detach().flatten(), (theirs - first).detach().flatten()
    assert torch.cosine_similarity(moved, expected, dim=0) > 0.995
    assert moved.norm() / expected.norm() == pytest.approx(1.0, abs=0.03)


def test_muon_takes_inner_matrices_alone(make_model: Callable[..., ViT]) -> None:
    model = make_model(stem=ConvStem(widths=(8, 16), strides=(1, 1)))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = group_parameters(model, Optim(optimizer="muon"), 3)
    taken = {names[id(parameter)] for group in groups if group.kind == "muon" for parameter in group.parameters}
    assert "embed.stem.3.weight" in taken
    assert taken.isdisjoint({"embed.stem.0.weight", "embed.patches.weight", "head.weight", "embed.positions"})
    assert sum(name.startswith("blocks.") for name in taken) == 12


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
def test_starting_the_memory_changes_nothing(kind, make_model: Callable[..., ViT]) -> None:
    """A first step after `start_state` equals a first step without it."""
    models = [make_model(), make_model()]
    for model, prepared in zip(models, (True, False), strict=True):
        optimizers = build_optimizers(model, Optim(optimizer=kind, lr=0.1), 3)
        if prepared:
            start_state(optimizers)
        set_learning_rate(optimizers, 0.5)
        for index, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.01 * (index + 1))
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(a, b)


def test_cosine_is_torchs() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = CosineAnnealingLR(optimizer, T_max=50)
    config = Schedule(warmup=0.0)
    for step in range(50):
        assert lr_factor(config, step, 50) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


def test_warmup_rises_in_a_straight_line_to_the_peak() -> None:
    config = Schedule(warmup=0.1)
    assert [lr_factor(config, step, 100) for step in range(10)] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert lr_factor(config, 10, 100) == pytest.approx(1.0)


def test_wsd_is_flat_and_then_falls_in_a_straight_line() -> None:
    config = Schedule(schedule="wsd", warmup=0.1, cooldown=0.2, final_lr=0.1)
    assert {lr_factor(config, step, 100) for step in range(10, 81)} == {1.0}
    assert lr_factor(config, 90, 100) == pytest.approx(0.55)
    assert lr_factor(config, 99, 100) == pytest.approx(0.1 + 0.9 * 0.05)


@given(
    st.sampled_from(["cosine", "constant", "wsd"]),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
    st.floats(0, 1),
    st.integers(1, 500),
)
def test_always_above_zero_and_never_above_the_peak(
    kind: str, warmup: float, cooldown: float, final: float, total: int
) -> None:
    config = Schedule(schedule=kind, warmup=warmup, cooldown=cooldown, final_lr=final)  # type: ignore[arg-type]
    factors = [lr_factor(config, step, total) for step in range(total)]
    assert all(0 < factor <= 1 + 1e-12 for factor in factors)

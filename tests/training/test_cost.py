"""What is decided by measuring, before the first step."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from conftest import Clock
from vitrail.data import Batch
from vitrail.errors import ConfigError, OutOfMemoryError
from vitrail.model.block import Block
from vitrail.ranks import Ranks
from vitrail.training import cost as measuring
from vitrail.training import cost as precision
from vitrail.training.cost import (
    SAVE_SECONDS,
    Measured,
    find_batch_size,
    measure,
    run_seconds,
    settle_compile,
    settle_precision,
    time_gradients,
)
from vitrail.training.gradients import Lanes, Plain
from vitrail.training.objectives import make_objective
from vitrail.training.run_folder import refuse_conflicts
from vitrail.training.setup import Setup

ALONE = Ranks()


def test_measuring_changes_nothing(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup()
    before = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    began = time.perf_counter()
    measured = measure(setup, ALONE)
    assert measured.images == 64
    assert 0 < measured.seconds < time.perf_counter() - began
    assert measured.epoch_overhead > SAVE_SECONDS
    assert measured.peak_bytes > 50 * 2**20
    assert all(torch.equal(tensor, before[name]) for name, tensor in setup.model.state_dict().items())
    assert all(parameter.grad is None for parameter in setup.model.parameters())


def test_time_to_compile_is_not_the_time_of_a_step(make_setup: Callable[..., Setup], monkeypatch) -> None:
    calls: list[int] = []
    clock = Clock()
    monkeypatch.setattr("vitrail.timing.time", clock)

    class Compiled(Plain):
        def accumulate(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            calls.append(len(batch.images))
            clock.sleep(0.02 if len(calls) > 1 else 0.3)
            return torch.zeros(()), {}

    monkeypatch.setattr(measuring, "PATIENCE", 0.2)
    setup = make_setup()
    measured = measure(setup, ALONE, Compiled(*[make_objective(setup)] * 3, None, "float32"))
    assert len(calls) > 1
    assert measured.seconds == pytest.approx(0.02)


def test_a_run_takes_its_epochs_or_its_features(make_setup: Callable[..., Setup]) -> None:
    setup = make_setup(epochs=3)
    pictures = {name: len(source) for name, source in setup.dataset.splits.items()}
    measured = Measured(seconds=0.5, images=50, peak_bytes=0, epoch_overhead=2.0, ranks=2)
    epoch = (pictures["train"] + pictures["val"] / 3) / 100 / 2 + 2.0
    assert run_seconds(setup, measured) == pytest.approx(3 * epoch)
    start = replace(setup.config.start, train="head", model=None, weights="x")
    on_features = replace(setup, config=replace(setup.config, start=start))
    assert run_seconds(on_features, measured) == pytest.approx((pictures["train"] + pictures["val"]) / 100 / 2)


def test_slow_pictures_are_timed_a_few_at_a_time(make_setup: Callable[..., Setup]) -> None:
    """A second per picture, and twelve for all that is timed: no batch of 64, whose time and memory nobody has."""
    clock, calls = Clock(), []

    class Slow(Plain):
        def accumulate(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            calls.append(len(batch.images))
            clock.sleep(len(batch.images))
            return torch.zeros(()), {}

    setup = make_setup()
    engine = Slow(*[make_objective(setup)] * 3, 16, "float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitrail.timing.time", clock)
        patch.setattr(measuring, "make_engine", lambda *_: engine)
        patch.setattr(measuring, "PATIENCE", 12.0)
        measured = measure(setup, ALONE)
    assert calls == [2, 2, 2, 2, 2, 2]
    assert measured.seconds / measured.images == pytest.approx(1.0)


def test_batch_sizes_are_tried_and_the_learning_rate_follows(make_setup: Callable[..., Setup], monkeypatch) -> None:
    speeds = {16: 100.0, 32: 180.0}
    tried: list[int] = []

    def fake(setup: Setup, _: Ranks) -> Measured:
        size = setup.config.machine.batch_size
        assert isinstance(size, int)
        tried.append(size)
        return Measured(seconds=size / speeds[size], images=size, peak_bytes=0)

    monkeypatch.setattr(measuring, "measure", fake)
    said: list[str] = []
    chosen = find_batch_size(make_setup(batch_size="auto"), ALONE, said.append)
    assert tried == [16, 32]  # 256 pictures: a larger batch would leave fewer than eight steps
    assert chosen.machine.batch_size == 32
    assert chosen.optim.lr == pytest.approx(make_setup().config.optim.lr / 2)  # a quarter of the recipe's batch of 128
    assert "batch size 32" in said[0]


def test_memory_that_runs_out_ends_the_search(make_setup: Callable[..., Setup], monkeypatch) -> None:
    def fake(setup: Setup, _: Ranks) -> Measured:
        if setup.config.machine.batch_size == 32:
            raise OutOfMemoryError("does not fit into the memory")
        return Measured(seconds=1.0, images=16, peak_bytes=0)

    monkeypatch.setattr(measuring, "measure", fake)
    assert find_batch_size(make_setup(batch_size="auto"), ALONE, lambda _: None).machine.batch_size == 16


@pytest.mark.parametrize("asked", ["auto", "on"])
def test_a_compiler_that_fails_is_no_obstacle(asked: str, make_setup: Callable[..., Setup], monkeypatch) -> None:
    def broken(_module):
        def forward(_images):
            raise RuntimeError("no C++ compiler found\nmore text")

        return forward

    monkeypatch.setattr(measuring, "compiled", broken)
    said: list[str] = []
    assert settle_compile(make_setup(compile=asked), ALONE, said.append).machine.compile == "off"
    assert said[1:] == ["torch.compile does not work here (no C++ compiler found); continuing without it"]


def test_a_compiler_that_does_not_pay_is_left_out(make_setup: Callable[..., Setup], monkeypatch) -> None:
    monkeypatch.setattr(measuring, "compiled", lambda module: module)
    speeds = iter([100.0, 100.0, 130.0, 100.0])
    monkeypatch.setattr(measuring, "measure", lambda *_: Measured(seconds=64 / next(speeds), images=64, peak_bytes=0))
    said: list[str] = []
    assert settle_compile(make_setup(compile="auto"), ALONE, said.append).machine.compile == "off"
    assert settle_compile(make_setup(compile="auto"), ALONE, said.append).machine.compile == "on"
    assert [line.split(";")[0] for line in said if "gives" in line] == [
        "torch.compile gives 1.00× here",
        "torch.compile gives 1.30× here",
    ]


@pytest.mark.parametrize(("strategy", "blocks"), [("ddp", 2), ("fsdp", 1)])
def test_of_a_model_that_is_spread_only_one_block_is_copied(
    strategy: str, blocks: int, make_setup: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank with room for its share has none for the moments of the whole model."""
    setup = make_setup(strategy=strategy, optimizer="adamw")
    copied: list[nn.Module] = []
    build = measuring.build_optimizers

    def watch(model: nn.Module, *rest: Any) -> Any:
        copied.append(model)
        return build(model, *rest)

    monkeypatch.setattr(measuring, "build_optimizers", watch)
    assert measure(setup, ALONE).seconds > 0
    assert sum(isinstance(module, Block) for module in copied[0].modules()) == blocks
    assert not any(module is setup.model for module in copied)


@pytest.mark.parametrize(
    ("gains", "chosen", "text"),
    [
        ([1.48, 1.60], "bf16", "computing in bf16, 1.48× float32 here"),
        ([1.05], "float32", "bf16 gives 1.05× here; computing in float32"),
        ([1.14, 0.56], "float32", "bf16 gives 0.56× here; computing in float32"),  # the first met other work
    ],
)
def test_what_is_faster_is_kept(gains, chosen: str, text: str, make_setup: Callable[..., Setup], monkeypatch) -> None:
    seen: list[tuple[type, ...]] = []

    def fake(setup: Setup, engines: list) -> list[float]:
        seen.append(tuple(map(type, engines)))
        return [gains[len(seen) - 1], 1.0]

    monkeypatch.setattr(precision, "computes_bf16", lambda: True)
    monkeypatch.setattr(precision, "time_gradients", fake)
    monkeypatch.setattr(precision, "NARROW", 0)
    said: list[str] = []
    setup = make_setup(compile="auto")
    settled = settle_precision(setup, Ranks(), said.append)
    assert settled == replace(setup.config, machine=replace(setup.config.machine, precision=chosen))
    assert said == [text]
    assert seen == [(Lanes, Plain)] * len(gains), "as each would run"
    assert settle_precision(replace(setup, config=settled), Ranks(), said.append) is settled, "decided is decided"


def test_nothing_is_measured_where_bf16_is_emulated(make_setup: Callable[..., Setup], monkeypatch) -> None:
    monkeypatch.setattr(precision, "computes_bf16", lambda: False)
    setup = make_setup()
    assert settle_precision(setup, Ranks(), pytest.fail) is setup.config


def test_no_noise_decides_for_a_narrow_model(make_setup: Callable[..., Setup], monkeypatch) -> None:
    monkeypatch.setattr(precision, "computes_bf16", lambda: True)
    monkeypatch.setattr(precision, "time_gradients", pytest.fail)
    setup = make_setup()
    settled = settle_precision(setup, Ranks(), pytest.fail)
    assert settled == replace(setup.config, machine=replace(setup.config.machine, precision="float32"))


def test_measuring_is_short_and_changes_nothing(make_setup: Callable[..., Setup]) -> None:
    setup, now = make_setup(), 0.0
    before = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    calls: list[str] = []

    class Timed(Plain):
        def accumulate(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            nonlocal now
            calls.append(f"{self.precision} {len(batch.images)}")
            now += (4.0 if self.precision == "float32" else 2.0) + 10.0 * (len(calls) <= 2)
            return super().accumulate(batch)

    objective = precision.make_objective(setup)
    engines: list[Plain | Lanes] = [Timed(objective, objective, objective, 16, name) for name in ("float32", "bf16")]
    assert time_gradients(setup, engines, lambda: now) == [14.0, 2.0], "no second round after so long"
    assert calls == ["float32 2", "float32 2", "bf16 2"], "and only a few pictures, since they are slow"
    assert all(torch.equal(tensor, before[name]) for name, tensor in setup.model.state_dict().items())
    assert all(parameter.grad is None for parameter in setup.model.parameters())
    now -= 30
    precision_times = time_gradients(setup, engines[1:], lambda: now)
    assert precision_times == [2.0]


def test_a_slow_first_call_does_not_mean_slow_pictures(make_setup: Callable[..., Setup]) -> None:
    setup, now = make_setup(), 0.0
    counts: list[int] = []

    class Cold(Plain):
        def accumulate(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            nonlocal now
            counts.append(len(batch.images))
            now += 0.01 * len(batch.images) + 4.0 * (len(counts) == 1)
            return super().accumulate(batch)

    objective = precision.make_objective(setup)
    engines: list[Plain | Lanes] = [Cold(objective, objective, objective, 16, name) for name in ("float32", "bf16")]
    time_gradients(setup, engines, lambda: now)
    assert counts[:2] == [2, 2]
    assert min(counts[2:]) == 16, "as many as go through the model at once"


def test_a_resumed_run_keeps_what_was_decided(make_setup: Callable[..., Setup]) -> None:
    config = make_setup(precision="bf16").config
    assert refuse_conflicts(config, {"precision": "auto"}) == config
    with pytest.raises(ConfigError, match="precision='float32' conflicts with the run"):
        refuse_conflicts(config, {"precision": "float32"})

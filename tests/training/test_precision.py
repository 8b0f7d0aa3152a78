"""bf16 on a processor: measured before a run, kept if it gains, and part of the run from then on."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.ranks import Ranks
from vitrail.training import precision
from vitrail.training.building import Setup
from vitrail.training.gradients import Lanes, Plain
from vitrail.training.precision import settle_precision, time_gradients
from vitrail.training.run import refuse_conflicts


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
        def accumulate(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            nonlocal now
            calls.append(f"{self.precision} {len(inputs)}")
            now += (4.0 if self.precision == "float32" else 2.0) + 10.0 * (len(calls) <= 2)
            return super().accumulate(inputs, targets)

    objective = precision.make_objective(setup)
    engines: list[Plain | Lanes] = [
        Timed(setup.model, setup.model, objective, 16, name) for name in ("float32", "bf16")
    ]
    assert time_gradients(setup, engines, lambda: now) == [14.0, 2.0], "no second round after so long"
    assert calls == ["float32 2", "float32 2", "bf16 2"], "and only a few pictures, since they are slow"
    assert all(torch.equal(tensor, before[name]) for name, tensor in setup.model.state_dict().items())
    assert all(parameter.grad is None for parameter in setup.model.parameters())
    now -= 30
    precision_times = time_gradients(setup, engines[1:], lambda: now)
    assert precision_times == [2.0]


def test_a_resumed_run_keeps_what_was_decided(make_setup: Callable[..., Setup]) -> None:
    config = make_setup(precision="bf16").config
    assert refuse_conflicts(config, {"precision": "auto"}) == config
    with pytest.raises(ConfigError, match="precision='float32' conflicts with the run"):
        refuse_conflicts(config, {"precision": "float32"})

"""Whether a run on a processor computes in bf16: measured on its own model and pictures before it begins.

Processors differ: one multiplies in bf16 at twice the speed of float32, another at a quarter. Narrow models gain
nothing on any of them, so they are not timed, and no noise decides how they are trained. What is decided goes into the
run's config, so that a resumed run computes the same bits.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.processor import computes_bf16
from vitrail.ranks import Ranks
from vitrail.training.building import Setup, training_loader
from vitrail.training.config import TrainConfig
from vitrail.training.gradients import Lanes, Plain, make_engine
from vitrail.training.objectives import make_objective

NARROW = 128  # up to this width, matrix products are too small to gain: 0.57× at width 48
WORTH = 1.1  # bf16 rounds: it must be this much faster
MOST_TIMED = 256  # pictures of a batch that are timed
PATIENCE = 5.0  # seconds after which no further round is timed
ROUNDS = 3
FEWEST = 2  # pictures that are timed at once, however slow they are

Clock = Callable[[], float]


def settle_precision(setup: Setup, ranks: Ranks, say: Callable[[str], None]) -> TrainConfig:
    """Decide what `auto` means on a processor that computes in bf16; elsewhere, the device decides."""
    config = setup.config
    if config.machine.precision != "auto" or ranks.device.type != "cpu" or not computes_bf16():
        return config
    if setup.model.config.width <= NARROW:
        return _with_precision(config, "float32")
    engines = [_engine(setup, ranks, name) for name in ("float32", "bf16")]
    gain = _time_gain(setup, engines)
    if gain >= WORTH:  # other work on the machine may have met one of the two: a second look must agree
        gain = min(gain, _time_gain(setup, engines))
    if gain < WORTH:
        say(f"bf16 gives {gain:.2f}× here; computing in float32")
    else:
        say(f"computing in bf16, {gain:.2f}× float32 here")
    return _with_precision(config, "float32" if gain < WORTH else "bf16")


def _time_gain(setup: Setup, engines: list[Plain | Lanes]) -> float:
    plain, rounded = time_gradients(setup, engines)
    return plain / rounded


def _with_precision(config: TrainConfig, precision: str) -> TrainConfig:
    return replace(config, machine=replace(config.machine, precision=precision))


def time_gradients(setup: Setup, engines: list[Plain | Lanes], clock: Clock = time.perf_counter) -> list[float]:
    """The best time of each engine for the gradient of the same pictures, taken in turns; nothing else changes."""
    setup.model.train()
    states = {name: buffer.clone() for name, buffer in setup.model.named_buffers()}
    images, targets = _some_pictures(setup, engines)
    times: list[list[float]] = [[] for _ in engines]
    try:
        start = clock()
        engines[0].accumulate(images[:FEWEST], targets[:FEWEST])
        each = (clock() - start) / FEWEST
        count = max(int(PATIENCE / len(engines) / max(each, 1e-9)), FEWEST)  # of slow pictures, a few will do
        images, targets = images[:count], targets[:count]
        began = clock()
        for _ in range(ROUNDS):
            for engine, own in zip(engines, times, strict=True):
                start = clock()
                engine.accumulate(images, targets)
                own.append(clock() - start)
            if clock() - began > PATIENCE:
                break
    finally:
        setup.model.zero_grad(set_to_none=True)
        for name, buffer in setup.model.named_buffers():
            buffer.copy_(states[name])
    return [min(own[1:] or own) for own in times]


def _some_pictures(setup: Setup, engines: list[Plain | Lanes]) -> tuple[Tensor, Tensor]:
    """A batch, or of a large model as many pictures as it takes at once."""
    batch = next(iter(training_loader(setup, Ranks(device=torch.device("cpu")))))
    count = MOST_TIMED
    if not any(isinstance(engine, Lanes) for engine in engines):
        count = min(engine.micro_batch or MOST_TIMED for engine in engines)
    return batch.images[:count], batch.targets[:count]


def _engine(setup: Setup, ranks: Ranks, precision: str) -> Plain | Lanes:
    machine = replace(setup.config.machine, precision=precision, compile="off")
    asked = replace(setup, config=replace(setup.config, machine=machine))
    return make_engine(asked, setup.model, make_objective(asked), ranks)

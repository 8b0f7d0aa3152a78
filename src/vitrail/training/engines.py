"""What computes a run's gradients: threads, one forward pass or a compiled one, and in which number type."""

from typing import cast

import torch
from torch import nn

from vitrail.ranks import Ranks
from vitrail.training.building import Setup, num_threads
from vitrail.training.gradients import Forward, Lanes, Plain, Scorer, default_micro_batch, lane_batch, suits_lanes


def make_engine(setup: Setup, module: nn.Module, scorer: Scorer, ranks: Ranks) -> Plain | Lanes:
    """What computes gradients of the module: threads with micro-batches of their own where these are faster."""
    machine = setup.config.machine
    precision = pick_precision(machine.precision, ranks.device)
    if machine.compile == "on":
        micro = machine.micro_batch or default_micro_batch(setup.model, ranks.device)
        return Plain(module, compiled(module), scorer, micro, precision)
    alone = ranks.world_size == 1 and module is setup.model and precision == "float32"
    if alone and suits_lanes(setup.model, ranks.device):
        lanes, size = num_threads(), machine.batch_size
        assert isinstance(size, int)
        return Lanes(module, module, scorer, machine.micro_batch or lane_batch(setup.model, size, lanes), lanes)
    micro = machine.micro_batch or default_micro_batch(setup.model, ranks.device)
    return Plain(module, module, scorer, micro, precision)


def compiled(module: nn.Module) -> Forward:
    """The module through torch.compile; compilation happens on the first run, and errors appear then."""
    return cast("Forward", torch.compile(module))


def pick_precision(asked: str, device: torch.device) -> str:
    """bf16 on GPUs that have it; elsewhere it would be slower, or emulated."""
    if asked == "auto":
        return "bf16" if device.type == "cuda" and _has_bf16() else "float32"
    return asked


def _has_bf16() -> bool:
    """Whether the GPU computes in bf16; torch also counts those that emulate it, slowly, by default."""
    return torch.cuda.is_bf16_supported(including_emulation=False)

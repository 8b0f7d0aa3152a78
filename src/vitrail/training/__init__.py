"""Training: one loop for every recipe, on one process or many.

config      `TrainConfig`: everything that decides a run, as data; recipes are named ones
choosing    the whole config, from what was requested and what suits the data
building    config → data, model, loaders; measuring finds out how long it will take
optim       which weights change and how; muon, schedule
gradients   the gradient of one batch, in micro-batches; ranks: one process or torchrun's many
loop        the training loop; judging evaluates, checkpoint makes it resumable, signals and listener connect it
run         the run folder, from its first file to its last
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.training.config import Machine, Optim, Schedule, Start, TrainConfig
    from vitrail.training.listener import Listener
    from vitrail.training.recipes import recipe
    from vitrail.training.run import Run, train

# Public name → the module that defines it.
_HOME = {
    "Listener": "vitrail.training.listener",
    "Machine": "vitrail.training.config",
    "Optim": "vitrail.training.config",
    "Run": "vitrail.training.run",
    "Schedule": "vitrail.training.config",
    "Start": "vitrail.training.config",
    "TrainConfig": "vitrail.training.config",
    "recipe": "vitrail.training.recipes",
    "train": "vitrail.training.run",
}

__all__ = [
    "Listener",
    "Machine",
    "Optim",
    "Run",
    "Schedule",
    "Start",
    "TrainConfig",
    "recipe",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'vitrail.training' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__

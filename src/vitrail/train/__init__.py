"""Training: one loop for every recipe, on one process or many.

config      `TrainConfig`: everything that decides a run, as data; recipes are named ones; choose picks one for the data
setup       config → data, model, loaders; plan measures what the run will take
optim       which weights change and how; muon, schedule
gradients   the gradient of one batch, in micro-batches; ranks: one process or torchrun's many
loop        the training loop; judging evaluates, checkpoint makes it resumable, signals and listener connect it
run         the run folder, from its first file to its last
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.train.config import Machine, Optim, Schedule, Start, TrainConfig
    from vitrail.train.listener import Listener
    from vitrail.train.recipes import recipe
    from vitrail.train.run import Outcome, train

# Public name → the module that defines it.
_HOME = {
    "Listener": "vitrail.train.listener",
    "Machine": "vitrail.train.config",
    "Optim": "vitrail.train.config",
    "Outcome": "vitrail.train.run",
    "Schedule": "vitrail.train.config",
    "Start": "vitrail.train.config",
    "TrainConfig": "vitrail.train.config",
    "recipe": "vitrail.train.recipes",
    "train": "vitrail.train.run",
}

__all__ = [
    "Listener",
    "Machine",
    "Optim",
    "Outcome",
    "Schedule",
    "Start",
    "TrainConfig",
    "recipe",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'vitrail.train' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__

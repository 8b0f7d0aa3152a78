"""Training: one loop for every recipe, on one process or many.

config      `TrainConfig`: everything that decides a run, as data; recipes are named ones
choosing    the whole config, from what was requested and what suits the data
building    config → data, model, loaders; measuring finds out how long it will take, footprint what ranks hold and send
optim       which weights change and how; muon, schedule
gradients   the gradient of one batch, in micro-batches; ranks: one process or torchrun's many
loop        the training loop; judging evaluates, snapshots make it resumable, signals and listener connect it
run         the run folder, from its first file to its last
"""

from typing import TYPE_CHECKING

from vitrail.lazy import lazy_names

if TYPE_CHECKING:
    from vitrail.training.config import Machine, Optim, Schedule, Start, TrainConfig
    from vitrail.training.footprint import Footprint, estimate_footprint
    from vitrail.training.listener import Listener
    from vitrail.training.recipes import recipe
    from vitrail.training.run import Run, train

# Module → the public names that it defines; pyright wants `__all__` spelled out too, and a test compares them.
_HOMES = {
    "config": (
        "Machine",
        "Optim",
        "Schedule",
        "Start",
        "TrainConfig",
    ),
    "footprint": (
        "Footprint",
        "estimate_footprint",
    ),
    "listener": ("Listener",),
    "recipes": ("recipe",),
    "run": (
        "Run",
        "train",
    ),
}

__all__ = [
    "Footprint",
    "Listener",
    "Machine",
    "Optim",
    "Run",
    "Schedule",
    "Start",
    "TrainConfig",
    "estimate_footprint",
    "recipe",
    "train",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

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
    from vitrail.training.config import Machine as Machine
    from vitrail.training.config import Optim as Optim
    from vitrail.training.config import Schedule as Schedule
    from vitrail.training.config import Start as Start
    from vitrail.training.config import TrainConfig as TrainConfig
    from vitrail.training.footprint import Footprint as Footprint
    from vitrail.training.footprint import estimate_footprint as estimate_footprint
    from vitrail.training.listener import Listener as Listener
    from vitrail.training.recipes import recipe as recipe
    from vitrail.training.run import Run as Run
    from vitrail.training.run import train as train


__getattr__, __dir__, __all__ = lazy_names(__name__)

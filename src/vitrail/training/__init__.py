"""Training: one loop for every recipe, on one process or many.

config        `TrainConfig`: everything that decides a run, as data; recipes are named ones
auto_config   the whole config, from what was requested and what suits the data
setup         config → data, model, loaders
plan          what a run will be: cost is measured, budget is a limit of time, footprint is what ranks hold and send
objectives    what is learned, from what: pictures, features, with lora
distillation  what a teacher adds to the loss; its teacher_answers about fixed views, and teacher_comparison at the end
optim         which weights change and how; muon
gradients     the gradient of one batch, in micro-batches, on one process or torchrun's many
loop          the training loop; snapshots make it resumable, signals stop it, listener and display show it
run           one run from its setup to the measured result; best_weights is what it makes
session       a whole run: one model; folds and a last model; or trials, a search
run_folder    its files; run_data its pictures, curves its epochs; result what a finished one has to show
trackers      its numbers for tracking_services: TensorBoard, W&B, MLflow, which predicts with mlflow_model
"""

from typing import TYPE_CHECKING

from vitrail.lazy import lazy_names

if TYPE_CHECKING:
    from vitrail.training.config import Distill as Distill
    from vitrail.training.config import Machine as Machine
    from vitrail.training.config import Optim as Optim
    from vitrail.training.config import Schedule as Schedule
    from vitrail.training.config import Selection as Selection
    from vitrail.training.config import Start as Start
    from vitrail.training.config import TrainConfig as TrainConfig
    from vitrail.training.footprint import Footprint as Footprint
    from vitrail.training.footprint import estimate_footprint as estimate_footprint
    from vitrail.training.listener import Listener as Listener
    from vitrail.training.recipes import recipe as recipe
    from vitrail.training.result import Run as Run
    from vitrail.training.session import train as train


__getattr__, __dir__, __all__ = lazy_names(__name__)

"""Linear probing, then fine-tuning ("Fine-Tuning can Distort Pretrained Features"): a head that already fits the
features, trained on them in seconds, is where fine-tuning starts. It is kept if fine-tuning does not improve on it.

The head's own run is in `probe/` of the run folder, with its features; an interrupted one continues.
"""

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitrail.files import atomic_path
from vitrail.model import ViT
from vitrail.ranks import Ranks
from vitrail.training import snapshots
from vitrail.training.config import TrainConfig
from vitrail.training.listener import Listener
from vitrail.training.loop import Trainer
from vitrail.training.lora import merged
from vitrail.training.objectives import Judgement
from vitrail.training.recipes import recipe
from vitrail.training.setup import Setup, fit_batch_size
from vitrail.training.signals import InterruptedRunError
from vitrail.weights.native import read_native

FOLDER = "probe"


@dataclass(frozen=True, kw_only=True)
class Probed:
    """A trained head."""

    val: Judgement | None
    train_loss: float
    seconds: float


class _Quiet(Listener):
    """Passes on what users should know, but no epochs: there are many, and each takes a moment."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def prepared(self, what: str, done: int, total: int) -> None:
        self.listener.prepared(what, done, total)

    def said(self, message: str) -> None:
        self.listener.said(message)


def probe_config(config: TrainConfig) -> TrainConfig:
    """The head's own run: the recipe for it, on the same data, with the same seed; rounding would save no time."""
    linear = recipe("linear")
    start = replace(config.start, train="head", probe=False, dropout=0.0, drop_path=0.0)
    batch_size = linear.machine.batch_size
    machine = replace(config.machine, batch_size=batch_size, compile="off", strategy="ddp", precision="float32")
    return replace(linear, data=config.data, start=start, machine=machine, source=config.source)


def probe(setup: Setup, ranks: Ranks, folder: Path, listener: Listener) -> Probed | None:
    """Train the head and put it into the model and the run folder; None if the run has gone beyond that."""
    if ranks.from_first(lambda: bool(snapshots.list_snapshots(folder / "weights" / "last"))):
        return None
    began = time.monotonic()
    config = fit_batch_size(probe_config(setup.config), setup.dataset, ranks.world_size)
    plain = ViT(setup.model.config)
    plain.load_state_dict(merged(setup.model, setup.model.state_dict()))
    trainer = Trainer(replace(setup, config=config, model=plain), ranks, folder / FOLDER, _Quiet(listener))
    try:
        trainer.resume()
        progress = trainer.run()
    except InterruptedRunError as error:
        raise InterruptedRunError(error.exit_code - 128, folder) from None
    best = folder / FOLDER / "weights" / "best.safetensors"
    tensors = ranks.in_turn(lambda: read_native(best)).tensors
    assert setup.model.head is not None
    with torch.no_grad():
        setup.model.head.weight.copy_(tensors["head.weight"])
        setup.model.head.bias.copy_(tensors["head.bias"])
    ranks.from_first(lambda: _keep(best, folder / "weights" / "best.safetensors"))
    val = None
    if setup.has_validation:
        count = len(setup.dataset.split("val"))
        val = Judgement(loss=progress.best_loss, accuracy=progress.best_accuracy, count=count)
        listener.said(f"the head alone reaches {val.accuracy:.2%} of val; fine-tuning starts from it")
    return Probed(val=val, train_loss=progress.lowest_train_loss, seconds=time.monotonic() - began)


def _keep(best: Path, target: Path) -> None:
    """The probe's weights are the best so far."""
    with atomic_path(target) as draft:
        shutil.copyfile(best, draft)

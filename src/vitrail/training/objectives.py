"""The goal of a run. The loop asks an `Objective` for its batches, the loss and the score of a batch, what counts as
better and what as diverged, and knows nothing else about it.

A new kind of training is a class here with its line in `OBJECTIVES`, and one in `TRAININGS` of `training/config.py`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.loader import Loader
from vitrail.errors import DataError
from vitrail.ranks import Ranks
from vitrail.training.curves import is_better
from vitrail.training.features import FeatureLoader, feature_loader
from vitrail.training.gradients import Forward, Scores
from vitrail.training.listener import Listener
from vitrail.training.lora import adapted_layers, merged, write_adapter
from vitrail.training.setup import Setup, plain_loader, training_loader
from vitrail.training.snapshots import RunState
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.peft import libraries
from vitrail.weights.proof import Agreement, compare, outputs, sample_images

Batches = Loader | FeatureLoader  # of one split, epoch after epoch; the position within the epoch can be saved


@dataclass(frozen=True, kw_only=True)
class SplitScore:
    """A model on a split."""

    loss: float
    accuracy: float
    count: int


def evaluate(
    score: Callable[[Tensor, Tensor], Scores],
    loader: Batches,
    ranks: Ranks,
    take_part: Callable[[], object] = lambda: None,
) -> SplitScore:
    """Mean loss and accuracy over a split, every picture counted once, whatever the number of ranks.

    `take_part` is called for each batch in which this rank has no pictures.
    """
    loss = 0.0
    correct = count = batches = 0
    for batch in loader:
        part = score(batch.images.to(ranks.device), batch.targets.to(ranks.device))
        loss, correct, count = loss + part.loss, correct + part.correct, count + len(batch.targets)
        batches += 1
    for _ in range(len(loader) - batches):
        take_part()
    total_loss, total_correct, total = ranks.sum([loss, correct, count])
    if not total:
        raise DataError("no picture of the split could be read; run vitrail data check.")
    return SplitScore(loss=total_loss / total, accuracy=total_correct / total, count=round(total))


RISEN = 2.0  # times the lowest training loss so far: above it, the loss diverges,
ABOVE_CHANCE = 1.5  # unless it is still below this many times the loss of guessing


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What is learned, from what, and how that is scored; by default all weights, from pictures and their classes:
    labels, or shares of the classes where pictures are mixed.
    """

    setup: Setup
    keeps_only_trained: bool = False  # resumable checkpoints hold only the weights that are trained
    fits_epochs: bool = True  # a time budget decides how many there are

    @property
    def module(self) -> nn.Module:
        """What is trained."""
        return self.setup.model

    @property
    def forward(self) -> Forward:
        """Inputs of a batch → outputs, for evaluation."""
        return self.setup.model

    def trained(self) -> Iterable[nn.Parameter]:
        """The weights that change."""
        return self.module.parameters()

    def plain(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors of a plain model, from those of the trained one."""
        return tensors

    def prove(self, finished: Checkpoint) -> Agreement | None:
        """How far a plain model is from the trained one, if they are not the same; all ranks must ask."""
        return None

    def write_beside(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Write what else there is to keep of the best weights, given all tensors of the trained model."""

    def batches(self, split: str, ranks: Ranks, listener: Listener, folder: Path) -> Batches:
        """This rank's part: of "train", shuffled batches; of another split, every sample once.

        What is made for them once is kept in the run folder.
        """
        return training_loader(self.setup, ranks) if split == "train" else plain_loader(self.setup, split, ranks)

    def blank(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """An input and a target of the right shapes, for a rank without pictures that must take part."""
        config = self.setup.model.config
        images = torch.zeros((1, config.channels, *config.image_size), device=device)
        return images, torch.zeros(1, dtype=torch.long, device=device)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of some outputs, which training minimises."""
        return F.cross_entropy(outputs, targets, label_smoothing=self.setup.config.optim.label_smoothing)

    def score(self, outputs: Tensor, targets: Tensor) -> Scores:
        """What evaluation adds up over a split."""
        return count(outputs, targets)

    def has_diverged(self, loss: float, lowest: float) -> bool:
        """Whether an epoch's training loss has diverged, `lowest` being the lowest before."""
        chance = math.log(len(self.setup.dataset.classes))
        return not loss <= max(RISEN * lowest, ABOVE_CHANCE * chance)  # so that NaN counts too

    def improves(self, score: SplitScore, state: RunState) -> bool:
        """Whether the run still improves: what patience waits for."""
        return score.accuracy > state.best_accuracy or score.loss < state.lowest_val_loss

    def is_better(self, score: SplitScore, state: RunState) -> bool:
        """Whether these weights replace the best so far."""
        return is_better(score.accuracy, score.loss, state.best_accuracy, state.lowest_val_loss)


@dataclass(frozen=True, kw_only=True)
class HeadOnFeatures(Objective):
    """Only the head, on features of unchanged pictures that are computed once."""

    keeps_only_trained: bool = True
    fits_epochs: bool = False  # they take a moment

    @property
    def module(self) -> nn.Module:
        assert self.setup.model.head is not None
        return self.setup.model.head

    @property
    def forward(self) -> Forward:
        return self.setup.model.classify

    def batches(self, split: str, ranks: Ranks, listener: Listener, folder: Path) -> Batches:
        return feature_loader(self.setup, split, ranks, listener, folder)


@dataclass(frozen=True, kw_only=True)
class LowRank(Objective):
    """The head, and LoRA's pairs beside weights that stay as they are."""

    def trained(self) -> Iterable[nn.Parameter]:
        pairs = [layer.adapters for _, layer in adapted_layers(self.setup.model)]
        return (weight for part in (*pairs, self.setup.model.head) if part is not None for weight in part.parameters())

    def plain(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return merged(self.setup.model, tensors)

    def prove(self, finished: Checkpoint) -> Agreement:
        model, images = self.setup.model, sample_images(finished)
        was_training = model.training
        model.eval()
        with torch.no_grad():
            expected = model(images.to(next(model.parameters()).device)).float().cpu()
        model.train(was_training)
        return compare("logits", expected, outputs(finished, images)["logits"])

    def write_beside(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        model, base = self.setup.model, self.setup.source.removeprefix("hf://")
        for library in libraries(model.config):
            write_adapter(folder / f"peft-{library.name}", library, model, tensors, base)


OBJECTIVES: dict[str, type[Objective]] = {
    "all": Objective,
    "head": HeadOnFeatures,
    "lora": LowRank,
}  # by `train`


def make_objective(setup: Setup) -> Objective:
    """The one that a config asks for; weights that it does not train are frozen."""
    objective = OBJECTIVES[setup.config.start.train](setup=setup)
    trained = set(objective.trained())
    for parameter in setup.model.parameters():
        parameter.requires_grad_(parameter in trained)
    return objective


def count(logits: Tensor, targets: Tensor) -> Scores:
    """Summed loss and correct answers of some logits."""
    loss = F.cross_entropy(logits, targets, reduction="none").cpu().double().sum()  # not every device has float64
    return Scores(float(loss), int((logits.argmax(dim=1) == targets).sum()))

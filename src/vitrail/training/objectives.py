"""The goal of a run. An `Objective` is a module: everything in it is optimised, clipped, averaged, spread over the
ranks and saved. The loop asks it for its batches, for the loss and the metrics of a batch, which metric chooses the
best epoch and what counts as diverged, and knows nothing else about it.

A new kind of training is a class here with its line in `OBJECTIVES`, and one in `TRAININGS` of `training/config.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data import Batch
from vitrail.data.loader import Loader
from vitrail.errors import ConfigError, DataError, suggest
from vitrail.model.mae_decoder import EXTRAS
from vitrail.ranks import Ranks
from vitrail.tasks.task import Task
from vitrail.training.balance import METRIC, has_uneven_classes, make_goal
from vitrail.training.curves import Choice, choice_of
from vitrail.training.distillation import Distillation, make_distillation
from vitrail.training.features import FeatureLoader, feature_loader
from vitrail.training.gradients import Outcome, move
from vitrail.training.listener import Listener
from vitrail.training.lora import adapted_layers, merged, write_adapter
from vitrail.training.masked import (
    KNN,
    PROBED,
    Probe,
    build_decoder,
    check_model,
    draw_patches,
    masked_choice,
    masked_loss,
    plan_probe,
)
from vitrail.training.setup import Setup, plain_loader, training_loader
from vitrail.training.snapshots import RunState
from vitrail.training.teacher_answers import keep_answers
from vitrail.training.whitening import first_weight
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.peft import libraries
from vitrail.weights.proof import Agreement, compare, outputs, sample_images

Batches = Loader | FeatureLoader  # of one split, epoch after epoch; the position within the epoch can be saved


@dataclass(frozen=True, kw_only=True)
class SplitScore:
    """A model on a split."""

    loss: float
    metrics: Mapping[str, float]  # those of the objective, by name
    count: int

    @property
    def accuracy(self) -> float:
        """The share of pictures whose class is right; NaN where pictures have no class."""
        return self.metrics.get("accuracy", float("nan"))

    def facts(self) -> dict[str, Any]:
        """As JSON values, on one level."""
        return {"loss": self.loss, **self.metrics, "count": self.count}

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "SplitScore":
        """The inverse of `facts`."""
        metrics = {name: float(value) for name, value in facts.items() if name not in ("loss", "count")}
        return cls(loss=float(facts["loss"]), metrics=metrics, count=int(facts["count"]))


RISEN = 2.0  # times the lowest training loss so far: above it, the loss diverges,
ABOVE_CHANCE = 1.5  # unless it is still below this many times the loss of guessing


class Objective(nn.Module, ABC):
    """What is learned, from what, and how that is scored. A subclass says the loss; parts of its own, such as a
    decoder, are attributes, and are trained and saved with the model.
    """

    keeps_only_trained = False  # resumable checkpoints hold only the weights that are trained
    fits_epochs = True  # a time budget decides how many there are
    on_pictures = True  # rather than on features
    draws = False  # `forward` draws random numbers of its own
    choice = Choice("loss", higher=False)  # the metric that chooses the best epoch
    shown: tuple[str, ...] = ()  # the metrics that people follow, the first one first; none: only the first there is

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup = setup
        self.model = setup.model

    @abstractmethod
    def forward(self, batch: Batch) -> Outcome:
        """The mean loss of some samples, which training minimises, and means of other numbers by name."""

    def score(self, outcome: Outcome, batch: Batch) -> Any:
        """What validation keeps of a batch: small, and the same however samples are batched."""
        return len(batch.images), {"loss": float(outcome.loss), **{k: float(v) for k, v in outcome.metrics.items()}}

    def summarize(self, parts: Sequence[Any]) -> dict[str, float]:
        """The loss and the metrics of a split, from the parts of all its batches."""
        total = sum(count for count, _ in parts)
        names = parts[0][1]
        return {name: sum(count * means[name] for count, means in parts) / total for name in names}

    def trained(self) -> Iterable[nn.Parameter]:
        """The weights that change: all of these must take part in the loss."""
        return self.parameters()

    def train(self, mode: bool = True) -> Self:
        """In training, batch norms whose weights are frozen keep their statistics too."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d) and not module.weight.requires_grad:
                module.eval()
        return self

    def plain(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors of a plain model, from those of the trained one."""
        return tensors

    def prove(self, finished: Checkpoint) -> Agreement | None:
        """How far a plain model is from the trained one, if they are not the same; all ranks must ask."""
        return None

    def extras(self) -> Mapping[str, Tensor]:
        """Tensors that are no part of the plain model, and are kept in its file; they may be spread over the ranks."""
        return {}

    def write_beside(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """Write what else there is to keep of the best weights, given all tensors of the trained model."""

    def batches(self, split: str, ranks: Ranks, listener: Listener, folder: Path) -> Batches:
        """This rank's part: of "train", shuffled batches; of another split, every sample once.

        What is made for them once is kept in the run folder.
        """
        return training_loader(self.setup, ranks) if split == "train" else plain_loader(self.setup, split, ranks)

    def prepare(self, loader: Batches, ranks: Ranks, listener: Listener, folder: Path) -> None:
        """Compute what is needed once for the batches of training, or read it from the run folder."""

    def blank(self, device: torch.device) -> Batch:
        """A sample of the right shapes, for a rank without pictures that must take part."""
        config = self.setup.model.config
        images = torch.zeros((1, config.channels, *config.image_size), device=device)
        labels = torch.as_tensor(self.setup.dataset.split("train").labels[:1], device=device)
        return Batch(images, torch.zeros_like(labels), torch.zeros(1, dtype=torch.long))

    def begin_epoch(self, epoch: int) -> None:
        """An epoch of training, counted from 0, begins or goes on: what is random follows from it."""

    def examining(self, epoch: int, epochs: int, ranks: Ranks) -> AbstractContextManager[Batches | None]:
        """After validation: other pictures to score now, if there are any, whose metrics go with those of validation.

        Args:
            epoch: how many epochs are done.
            epochs: how many there will be.
            ranks: all of which must ask.
        """
        return nullcontext()

    def has_diverged(self, loss: float, lowest: float) -> bool:
        """Whether an epoch's training loss has diverged, `lowest` being the lowest before."""
        return not loss <= RISEN * lowest  # so that NaN counts too

    def improves(self, score: SplitScore, state: RunState) -> bool:
        """Whether the run still improves: what patience waits for; by the loss, where no metric chooses the epoch."""
        better = not self.choice.keeps_last and self.rank(score) > self._best(state)
        return better or score.loss < state.lowest_val_loss

    def is_better(self, score: SplitScore, state: RunState) -> bool:
        """Whether these weights replace the best so far."""
        return self.choice.is_better(self.rank(score), score.loss, self._best(state), state.lowest_val_loss)

    def rank(self, score: SplitScore) -> float:
        """Higher for better weights."""
        return self.choice.rank(score.loss, score.metrics)

    def _best(self, state: RunState) -> float:
        return self.choice.rank(state.best_loss, state.best_metrics)


class Supervised(Objective):
    """All weights, from pictures and their labels, by the loss of their task."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.task = setup.task
        self.choice = choice_of(setup.config, setup.task)
        self.goal = make_goal(setup, check_loss(setup.config.optim.loss, setup.task))
        self.task.check_goal(self.goal)
        self.shown = _shown_metrics(setup, self.choice)
        self._chance = setup.task.chance(setup.dataset.split("train").labels)
        self.distillation = make_distillation(setup)

    def features(self, inputs: Tensor) -> Tensor:
        """What the head sees of the inputs of a batch."""
        return self.model.features(inputs)

    def outputs(self, inputs: Tensor) -> Tensor:
        """What the model says of the inputs of a batch."""
        return self.model.classify(self.features(inputs))

    def forward(self, batch: Batch) -> Outcome:
        if self.training and self.distillation is not None:
            return self._learn_from_teacher(batch, self.distillation)
        outputs = self.outputs(batch.images).float()
        return Outcome(self.task.loss(outputs, batch.targets, self.goal), {}, outputs)

    def _learn_from_teacher(self, batch: Batch, distillation: Distillation) -> Outcome:
        """With a distillation token (DeiT), its head learns from the teacher, and that of [cls] from the labels."""
        features = self.features(batch.images)
        heads = [logits.float() for logits in self.model.classify_apart(features)]
        return distillation(batch, self.task.loss(heads[0], batch.targets, self.goal), heads[-1], features)

    def prepare(self, loader: Batches, ranks: Ranks, listener: Listener, folder: Path) -> None:
        if self.distillation is not None and self.setup.kept_views:
            rows = loader.stored.indices if isinstance(loader, FeatureLoader) else None
            self.distillation.known = keep_answers(self.setup, ranks, listener, folder, rows)

    def score(self, outcome: Outcome, batch: Batch) -> Any:
        assert outcome.outputs is not None
        return self.task.score(outcome.outputs, batch.targets)

    def summarize(self, parts: Sequence[Any]) -> dict[str, float]:
        return self.task.summarize(parts)

    def has_diverged(self, loss: float, lowest: float) -> bool:
        return not loss <= max(RISEN * lowest, ABOVE_CHANCE * self._chance)


class HeadOnFeatures(Supervised):
    """Only the head, on features of unchanged pictures that are computed once."""

    keeps_only_trained = True
    fits_epochs = False  # they take a moment
    on_pictures = False

    def trained(self) -> Iterable[nn.Parameter]:
        assert self.model.head is not None
        return self.model.head.parameters()

    def features(self, inputs: Tensor) -> Tensor:
        return inputs

    def batches(self, split: str, ranks: Ranks, listener: Listener, folder: Path) -> Batches:
        return feature_loader(self.setup, split, ranks, listener, folder)


class LowRank(Supervised):
    """The head, and LoRA's pairs beside weights that stay as they are."""

    def trained(self) -> Iterable[nn.Parameter]:
        pairs = [layer.adapters for _, layer in adapted_layers(self.setup.model)]
        return (
            weight
            for part in (*pairs, self.setup.model.head, self.distillation)
            if part is not None
            for weight in part.parameters()
        )

    def plain(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return merged(self.setup.model, tensors)

    def prove(self, finished: Checkpoint) -> Agreement:
        images, was_training = sample_images(finished), self.training
        blank = self.blank(next(self.parameters()).device)
        targets, indices = (tensor.repeat_interleave(len(images), dim=0) for tensor in (blank.targets, blank.indices))
        self.eval()
        with torch.no_grad():  # through the whole objective, which may be spread over the ranks
            seen = self(Batch(images.to(blank.images.device), targets, indices)).outputs
        self.train(was_training)
        assert seen is not None
        return compare("logits", seen.float().cpu(), outputs(finished, images)["logits"])

    def write_beside(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        model, base = self.setup.model, self.setup.source.removeprefix("hf://")
        for library in libraries(model.config):
            write_adapter(folder / f"peft-{library.name}", library, model, tensors, base)


class Masked(Objective):
    """A model without a head, from pictures only: the pixels of hidden patches from the others (`masked.py`).

    The loss says little about the features, so that the last epoch is kept; a kNN probe on a few pictures follows them.
    """

    shown = (KNN,)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        settings, seed = setup.config.pretraining, setup.config.machine.seed
        check_model(setup.model.config)
        self.choice = masked_choice(setup.config, probes=plan_probe(setup) is not None)
        self.decoder = build_decoder(setup.model.config, settings, setup.beside, seed)
        self.rate, self.pixels, self.seed, self.epoch = settings.mask_rate, settings.pixels, seed, 0
        self._probe: Probe | None = None  # while features are examined

    def trained(self) -> Iterable[nn.Parameter]:
        unread = [self.model.pool, self.model.representation, self.model.projection]
        frozen = {weight for part in unread if part is not None for weight in part.parameters()}
        return (weight for weight in self.parameters() if weight not in frozen)

    def forward(self, batch: Batch) -> Outcome:
        if self._probe is not None:
            return Outcome(batch.images.new_zeros(()), {}, self.model.features(batch.images))
        grid = self.model.embed.grid_of(batch.images)
        epoch = self.epoch if self.training else None
        visible, hidden = draw_patches(batch.indices, grid, self.rate, self.seed, epoch)
        return Outcome(masked_loss(self.model, self.decoder, batch.images, visible, hidden, self.pixels))

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @contextmanager
    def examining(self, epoch: int, epochs: int, ranks: Ranks) -> Generator[Batches | None]:
        probe = plan_probe(self.setup)
        if probe is None or not probe.is_due(epoch, epochs):
            yield None
            return
        self._probe = probe
        try:
            yield plain_loader(replace(self.setup, dataset=probe.dataset), PROBED, ranks)
        finally:
            self._probe = None

    def score(self, outcome: Outcome, batch: Batch) -> Any:
        if self._probe is None:
            return super().score(outcome, batch)
        assert outcome.outputs is not None
        return batch.indices.numpy(), outcome.outputs.float().cpu().numpy(), batch.targets.cpu().numpy()

    def summarize(self, parts: Sequence[Any]) -> dict[str, float]:
        return super().summarize(parts) if self._probe is None else {"loss": 0.0, KNN: self._probe.accuracy(parts)}

    def extras(self) -> Mapping[str, Tensor]:
        return {EXTRAS + name: tensor for name, tensor in self.decoder.state_dict().items()}


def check_loss(name: str, task: Task) -> str:
    """The loss that a config asks for, which must be one of the task's."""
    if name not in ("auto", *task.losses):
        raise ConfigError(f"has no {name!r} for this task; {suggest(name, ['auto', *task.losses])}", field="loss")
    return task.losses[0] if name == "auto" else name


def _shown_metrics(setup: Setup, choice: Choice) -> tuple[str, ...]:
    """The task's first metric, and the one that chooses; of uneven classes, balanced accuracy first."""
    metrics = [METRIC] if has_uneven_classes(setup) else []
    metrics += [next(iter(setup.task.metrics)), choice.metric]
    return tuple(dict.fromkeys(name for name in metrics if name in setup.task.metrics))


OBJECTIVES: dict[str, type[Objective]] = {
    "all": Supervised,
    "head": HeadOnFeatures,
    "lora": LowRank,
    "mae": Masked,
}  # by `method`, or by `train` where there is no such method


def make_objective(setup: Setup) -> Objective:
    """The one that a config asks for; weights that it does not train are frozen."""
    config = setup.config
    return freeze(OBJECTIVES[config.pretraining.method if config.pretrains else config.start.train](setup))


def freeze(objective: Objective) -> Objective:
    """The objective, whose weights are frozen if it does not train them, or if they are to stay as they began."""
    trained = set(objective.trained())
    if objective.setup.config.start.whiten == "frozen":
        trained.discard(first_weight(objective.setup.model))
    for parameter in objective.parameters():
        parameter.requires_grad_(parameter in trained)
    return objective


def evaluate(
    objective: Objective,
    score: Callable[[Batch], Sequence[Any]],
    loader: Batches,
    ranks: Ranks,
    take_part: Callable[[], object] = lambda: None,
) -> SplitScore:
    """Loss and metrics over a split, every picture counted once, whatever the number of ranks.

    `score` gives the parts of a batch; `take_part` is called for each batch in which this rank has no pictures.
    """
    parts: list[Any] = []
    count = batches = 0
    for batch in loader:
        parts += score(move(batch, ranks.device))
        count += len(batch.images)
        batches += 1
    for _ in range(len(loader) - batches):
        take_part()
    everything = [part for own in ranks.gather(parts) for part in own]
    if not everything:
        raise DataError("no picture of the split could be read; run vitrail data check.")
    metrics = objective.summarize(everything)
    loss = float(metrics.pop("loss"))
    finite = {name: float(value) for name, value in metrics.items() if np.isfinite(value)}
    return SplitScore(loss=loss, metrics=finite, count=round(ranks.sum([count])[0]))

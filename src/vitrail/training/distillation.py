"""Knowledge distillation, as a part of an objective: what a teacher adds to the loss of the labels."""

import math
from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data import Batch
from vitrail.errors import ConfigError
from vitrail.training.distill_config import Distill
from vitrail.training.gradients import Outcome
from vitrail.training.setup import Setup
from vitrail.training.teacher import Teacher


class Distillation(nn.Module):
    """(1 − w) × the loss of the labels + w × the distance from the teacher's answers (+ that from its features).

    The projection from the model's features to the teacher's is trained and saved with the run; the teacher is not.
    """

    def __init__(self, setup: Setup, teacher: Teacher) -> None:
        super().__init__()
        self.config, self.task, self.teacher = setup.config.distill, setup.task, teacher
        self._look: Callable[[Tensor], Tensor] = teacher.look
        if setup.config.machine.compile != "off":  # which leaves the teacher as it is
            self._look = cast("Callable[[Tensor], Tensor]", torch.compiler.disable(teacher.look))
        self.known: Tensor | None = None  # what the teacher says of each fixed view, where it is asked once:
        if setup.kept_views:  # until then, no number, so that a step can be timed and no loss is made of it
            rows = setup.kept_views * len(setup.dataset.split("train"))
            self.known = torch.full((1, teacher.width), math.nan, dtype=torch.float16).expand(rows, -1)
        self.projection = None
        if width := teacher.feature_width:
            self.projection = nn.Linear(setup.model.config.feature_width, width, bias=False)
            drawn = torch.Generator().manual_seed(setup.config.machine.seed)  # whatever was drawn before
            nn.init.xavier_uniform_(self.projection.weight, generator=drawn)

    def forward(self, batch: Batch, own: Tensor, outputs: Tensor, features: Tensor) -> Outcome:
        """The loss of a batch, given that of its labels."""
        config, said = self.config, self._ask(batch)
        answers = said[:, : outputs.shape[1]]
        imitation = self.task.imitation(outputs, answers, config.distill_temperature, hard=config.distill_hard)
        metrics = {"label_loss": own.detach(), "teacher_loss": imitation.detach()}
        loss = (1 - config.distill_weight) * own + config.distill_weight * imitation
        if self.projection is not None:
            similarity = F.cosine_similarity(self.projection(features).float(), said[:, outputs.shape[1] :])
            distance = (1 - similarity).mean()
            metrics["feature_loss"] = distance.detach()
            loss = loss + config.distill_features * distance
        return Outcome(loss, metrics)

    def _ask(self, batch: Batch) -> Tensor:
        """What the teacher says of the pictures (B, width)."""
        if self.known is not None:
            return self.known[batch.indices].to(batch.images.device).float()
        return self._look(batch.images).float()


def make_distillation(setup: Setup) -> Distillation | None:
    """What a config asks for; None without a teacher."""
    config, teacher = setup.config, setup.teacher
    if teacher is None or config.distill.teacher is None:
        return None
    if config.distill.distill_features and config.start.training.on_features:
        raise ConfigError(
            f"{config.start.training.called} does not change the features; omit it.", field="distill_features"
        )
    for name in () if setup.task.softens else ("distill_hard", "distill_temperature"):
        if getattr(config.distill, name) != getattr(Distill, name):
            raise ConfigError(
                "is for the probabilities of classes or labels, which numbers do not have; omit it.", field=name
            )
    return Distillation(setup, teacher)

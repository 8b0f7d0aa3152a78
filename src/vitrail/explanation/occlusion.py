"""Occlusion: cover one patch at a time and see what the answer loses. A plain check, with many forward passes.

A patch is covered with the picture's own mean colour. The task says what counts (`Task.influence`): of one class, its
log-odds; of one of several labels, its logit; of a measured value, how far it moves.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model.parts import Pair
from vitrail.tasks.one import ONE
from vitrail.tasks.task import Task

PIXELS = 32 * 224 * 224  # of the pictures in one batch

Answer = Callable[[Tensor], Tensor]  # prepared pictures (B, C, H, W) → logits


def occlude(
    answer: Answer,
    num_classes: int,
    grid: Pair,
    images: Tensor,
    targets: Tensor | None = None,
    task: Task = ONE,
) -> tuple[Tensor, Tensor]:
    """How much of the answer about the target each patch of a grid accounts for (B, h, w), and the logits.

    It takes a pass per patch.

    What answers may be a model or an export.
    """
    if not num_classes:
        raise ConfigError("this model has no head, so there is no class to explain; use method attention or rollout.")
    rows, columns = grid
    with torch.inference_mode():
        logits = answer(images)
        chosen = logits.argmax(dim=1) if targets is None else targets.to(logits.device)
        maps = torch.empty(len(images), rows * columns, device=images.device)
        for index, image in enumerate(images):
            hidden = ~torch.eye(rows * columns, dtype=torch.bool, device=images.device).view(-1, rows, columns)
            covered = answer_in_batches(answer, image, mean_colour(image), hidden)
            maps[index] = task.influence(logits[index], covered, int(chosen[index]))
    return maps.view(-1, rows, columns), logits


def answer_in_batches(answer: Answer, image: Tensor, baseline: Tensor, shown: Tensor) -> Tensor:
    """Logits (n, classes) of one picture (C, H, W), where patches that are not `shown` (n, h, w) show the baseline."""
    step = max(1, PIXELS // (image.shape[-2] * image.shape[-1]))
    cell = (image.shape[-2] // shown.shape[-2], image.shape[-1] // shown.shape[-1])
    parts: list[Tensor] = []
    for some in shown.split(step):
        mask = some.repeat_interleave(cell[0], dim=-2).repeat_interleave(cell[1], dim=-1)[:, None]  # (n, 1, H, W)
        parts.append(answer(torch.where(mask, image, baseline)))
    return torch.cat(parts)


def mean_colour(image: Tensor) -> Tensor:
    """The picture's own mean colour: (C, 1, 1)."""
    return image.mean(dim=(-2, -1), keepdim=True)

"""Occlusion: cover one patch at a time and see what the class loses. A plain check, with many forward passes.

A patch is covered with the picture's own mean colour. What counts is the target's log-odds, log p / (1 − p), because
the probability of a confident model hardly moves.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model.parts import Pair

PIXELS = 32 * 224 * 224  # of the pictures in one batch

Answer = Callable[[Tensor], Tensor]  # prepared pictures (B, C, H, W) → logits


def occlude(
    answer: Answer, num_classes: int, grid: Pair, images: Tensor, targets: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """How much of the target's log-odds each patch of a grid accounts for (B, h, w), and the logits; a pass per patch.

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
            covered = log_odds(answer_in_batches(answer, image, mean_colour(image), hidden), chosen[index])
            maps[index] = log_odds(logits[index : index + 1], chosen[index]) - covered
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


def log_odds(logits: Tensor, target: Tensor) -> Tensor:  # (n, classes) → (n,)
    """The target's logit minus the log of what the others weigh together; the logit itself if there are none."""
    logits = logits.float()
    if logits.shape[1] == 1:
        return logits[:, 0]
    others = logits.clone()
    others[:, target] = -torch.inf
    return logits[:, target] - others.logsumexp(dim=1)

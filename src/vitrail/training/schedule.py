"""The learning rate over a run, as a share of its highest value."""

import math

from vitrail.training.config import Schedule


def lr_factor(config: Schedule, step: float, total_steps: int) -> float:
    """For one step, counted from 0, or a point between two: the warm-up's last step is the first at full rate."""
    warmup = round(config.warmup * total_steps)
    if step < warmup:
        return min((step + 1) / warmup, 1.0)
    progress = (step - warmup) / max(total_steps - warmup, 1)
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "cosine":
        shape = 0.5 * (1 + math.cos(math.pi * progress))
    else:
        left = (total_steps - step) / max(round(config.cooldown * total_steps), 1)
        shape = min(1.0, left)
    return config.final_lr + (1 - config.final_lr) * shape

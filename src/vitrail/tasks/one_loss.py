"""The loss of one class per picture, with what makes up for uneven classes.

All of them are means over pictures, so that micro-batches and ranks add up to the same whatever classes they hold. A
picture that is mixed of several classes has their losses, in its shares of them.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.tasks.task import Goal

# Of "Class-Balanced Loss" (Cui et al., 2019): up to some thousand pictures, weights are inverse to a class's count;
# beyond 1 / (1 - BETA) = 10,000, further pictures tell little new, and its weight falls no more.
BETA = 0.9999
GAMMA = 2.0  # of the focal loss (Lin et al., 2017)


def cross_entropy(outputs: Tensor, targets: Tensor, goal: Goal) -> Tensor:
    """The mean cross-entropy of (B, C) outputs with classes (B,), or with their shares (B, C)."""
    smoothing = goal.label_smoothing
    if goal.balance in ("none", "sample"):
        return F.cross_entropy(outputs, targets, label_smoothing=smoothing)
    counts = torch.tensor(goal.counts, dtype=torch.float32, device=outputs.device).clamp(min=1)
    if goal.balance == "logit":  # Menon et al., 2021, equation 10 with τ = 1: predictions go without
        return F.cross_entropy(outputs + (counts / counts.sum()).log(), targets, label_smoothing=smoothing)
    shares = targets if targets.is_floating_point() else F.one_hot(targets, outputs.shape[1]).float()
    shares = shares * class_weights(counts)
    # Smoothing spreads a part of what the picture weighs: weights of the classes it is spread over would make a rare
    # class the target of every common picture.
    shares = (1 - smoothing) * shares + smoothing * shares.mean(dim=1, keepdim=True)
    logs = outputs.log_softmax(dim=1)
    if goal.balance == "focal":
        logs = (1 - logs.exp()) ** GAMMA * logs
    return -(shares * logs).sum(dim=1).mean()


def class_weights(counts: Tensor) -> Tensor:  # (C,) → (C,)
    """Weights inverse to the effective numbers of pictures, whose mean over all pictures is 1."""
    weights = 1 / -torch.expm1(counts * math.log(BETA))
    return weights * counts.sum() / (counts * weights).sum()

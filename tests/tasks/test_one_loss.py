"""Losses for uneven classes, against torch, scikit-learn and the papers' formulas written out."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from vitrail.tasks.one import One
from vitrail.tasks.one_loss import BETA, class_weights
from vitrail.tasks.task import Goal

COUNTS = (5000, 900, 60, 8)
TASK = One()
DRAWN = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(12, 4, generator=DRAWN)
LABELS = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
MIXED = torch.rand(12, 4, generator=DRAWN).softmax(dim=1)


def effective_weights(counts: tuple[int, ...]) -> np.ndarray:
    """Cui et al., 2019: (1 - β) / (1 - β^n), scaled so that the mean over pictures is 1."""
    numbers = np.array(counts, dtype=np.float64)
    weights = (1 - BETA) / (1 - BETA**numbers)
    return weights / (weights * numbers).sum() * numbers.sum()


WEIGHTS = torch.tensor(effective_weights(COUNTS), dtype=torch.float32)
GOAL = Goal(counts=COUNTS, pictures=sum(COUNTS))


def loss(balance: str, targets: torch.Tensor, **changes: float) -> torch.Tensor:
    return TASK.loss(LOGITS, targets, replace(GOAL, balance=balance, **changes))


def test_weights_are_those_of_the_paper_and_inverse_to_small_counts() -> None:
    torch.testing.assert_close(class_weights(torch.tensor(COUNTS).float()), WEIGHTS, rtol=1e-5, atol=0)
    small = (100, 50, 7, 3)
    labels = np.repeat(np.arange(4), small)
    inverse = compute_class_weight("balanced", classes=np.arange(4), y=labels)
    ours = class_weights(torch.tensor(small).float()).numpy()
    np.testing.assert_allclose(ours, inverse, rtol=6e-3)
    assert ours[labels].mean() == pytest.approx(1)
    large = class_weights(torch.tensor([1e5, 1e7])).numpy()
    assert large[0] / large[1] < 1.001, "enough is enough"


def test_weighted_loss_is_torchs() -> None:
    # torch divides by the weights of the batch rather than by its pictures, which would depend on the batch
    expected = F.cross_entropy(LOGITS, LABELS, weight=WEIGHTS, reduction="sum") / len(LABELS)
    torch.testing.assert_close(loss("weight", LABELS), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(loss("weight", MIXED), F.cross_entropy(LOGITS, MIXED, weight=WEIGHTS), rtol=1e-5, atol=0)


def test_smoothing_spreads_what_a_picture_weighs() -> None:
    each = F.cross_entropy(LOGITS, LABELS, label_smoothing=0.1, reduction="none")
    expected = (WEIGHTS[LABELS] * each).mean()
    torch.testing.assert_close(loss("weight", LABELS, label_smoothing=0.1), expected, rtol=1e-5, atol=0)


def test_focal_loss_is_the_papers_with_weights() -> None:
    shares = np.exp(LOGITS.double().numpy())
    shares /= shares.sum(axis=1, keepdims=True)
    each = -((1 - shares) ** 2) * np.log(shares) * effective_weights(COUNTS)  # of every class, if it were the truth
    of_labels = each[np.arange(12), LABELS.numpy()].mean()
    assert loss("focal", LABELS).item() == pytest.approx(of_labels, rel=1e-5)
    assert loss("focal", MIXED).item() == pytest.approx((MIXED.numpy() * each).sum(axis=1).mean(), rel=1e-5)


@pytest.mark.parametrize("targets", [LABELS, MIXED], ids=["labels", "mixed"])
def test_logit_adjustment_is_the_papers(targets: torch.Tensor) -> None:
    """Menon et al., 2021, equation 10: log(1 + Σ (π' / π_y) exp(f' - f_y)), with τ = 1."""
    priors, outputs = np.array(COUNTS) / sum(COUNTS), LOGITS.double().numpy()
    pairs = (priors[None, :] / priors[:, None])[None] * np.exp(outputs[:, None, :] - outputs[:, :, None])
    each = np.log(pairs.sum(axis=2))  # (pictures, the class that is true)
    shares = np.eye(4)[targets.numpy()] if targets.ndim == 1 else targets.numpy()
    assert loss("logit", targets).item() == pytest.approx((shares * each).sum(axis=1).mean(), rel=1e-5)


@pytest.mark.parametrize("balance", TASK.balances)
@pytest.mark.parametrize("targets", [LABELS, MIXED], ids=["labels", "mixed"])
def test_parts_of_a_batch_add_up_to_it(balance: str, targets: torch.Tensor) -> None:
    goal = replace(GOAL, balance=balance, label_smoothing=0.1)
    parts = [TASK.loss(LOGITS[at : at + 3], targets[at : at + 3], goal) for at in range(0, 12, 3)]
    torch.testing.assert_close(torch.stack(parts).mean(), TASK.loss(LOGITS, targets, goal))


@pytest.mark.parametrize("balance", TASK.balances)
def test_guessing_costs_no_more_than_chance(balance: str) -> None:
    """So what counts as diverged stays the same: all losses have one scale."""
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor(COUNTS))
    guess = TASK.loss(torch.zeros(len(labels), 4), labels, replace(GOAL, balance=balance)).item()
    chance = TASK.chance(labels.numpy())
    assert chance == pytest.approx(math.log(4))
    if balance in ("focal", "logit"):
        assert guess < chance
    else:
        assert guess == pytest.approx(chance, rel=1e-4)


@pytest.mark.parametrize("balance", ["weight", "focal", "logit"])
def test_a_class_without_pictures_does_no_harm(balance: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    goal = Goal(balance=balance, counts=(5000, 0, 60, 8), label_smoothing=0.1)
    TASK.loss(logits, LABELS % 3 * (LABELS != 1), goal).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()

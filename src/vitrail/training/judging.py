"""How good a model is on a split: every picture counted once, whatever the number of ranks."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from vitrail.errors import DataError
from vitrail.ranks import Ranks
from vitrail.training.batches import Batches
from vitrail.training.gradients import Scores


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A model on a split."""

    loss: float
    accuracy: float
    count: int


def judge(
    score: Callable[[Tensor, Tensor], Scores],
    loader: Batches,
    ranks: Ranks,
    take_part: Callable[[], None] = lambda: None,
) -> Judgement:
    """Mean loss and accuracy; `take_part` is called for each batch in which this rank has no pictures."""
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
    return Judgement(loss=total_loss / total, accuracy=total_correct / total, count=round(total))

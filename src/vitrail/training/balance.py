"""Uneven classes: what is said about them, and which way to make up for them `balance="auto"` takes.

Where a head is trained on features, all ways are tried on them, which takes seconds, and validation decides. Elsewhere
a trial would cost a run, and uneven classes get logit adjustment, which changes neither the pictures nor their order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from vitrail.data import Batch
from vitrail.errors import ConfigError, suggest
from vitrail.ranks import Ranks
from vitrail.tasks.task import Array, Goal, Task
from vitrail.training.changes import apply_changes
from vitrail.training.config import TrainConfig
from vitrail.training.features import FeatureLoader
from vitrail.training.setup import Setup
from vitrail.wording import counted

UNEVEN = 3.0  # times the pictures of the smallest class that the largest has
METRIC = "balanced_accuracy"
NAMES = {
    "logit": "logit adjustment",
    "weight": "class weights",
    "sample": "classes sampled equally often",
    "focal": "focal loss with class weights",
}  # in the order in which they are preferred
STEPS, FEWEST_STEPS = 1000, 200  # of a trial
WORK = 2e11  # floating-point operations of a trial, with which it takes some seconds
LR, DECAY = 3e-3, 1e-4  # as the recipe `linear` has them

Say = Callable[[str], None]


def count_labels(labels: Array, width: int) -> tuple[int, ...]:
    """The pictures with each class or label; nothing where labels are numbers."""
    if labels.dtype.kind == "f":
        return ()
    counts = np.bincount(labels, minlength=width) if labels.ndim == 1 else labels.sum(axis=0, dtype=np.int64)
    return tuple(counts.tolist())


def is_uneven(counts: Sequence[int]) -> bool:
    """Whether some class has far more pictures than another; classes without any are reported elsewhere."""
    there = [number for number in counts if number]
    return len(there) > 1 and max(there) >= UNEVEN * min(there)


def has_uneven_classes(setup: Setup) -> bool:
    """Whether the training pictures are unevenly spread over classes, of which each picture has one."""
    return METRIC in setup.task.metrics and is_uneven(_counts(setup))


def check_balance(name: str, task: Task) -> None:
    """Refuse what the task does not have."""
    if name not in ("auto", *task.balances):
        raise ConfigError(f"has no {name!r} for this task; {suggest(name, ['auto', *task.balances])}", field="balance")


def make_goal(setup: Setup, loss: str) -> Goal:
    """What a run asks of its loss; where `auto` is not settled yet, what the counts suggest."""
    counts, balance = _counts(setup), setup.config.optim.balance
    check_balance(balance, setup.task)
    if balance == "logit" and setup.config.augment.outlier_rate > 0:
        raise ConfigError(
            '"logit" would teach that outliers are of rare classes; use "weight" or "sample", or pass '
            "`outlier_rate=0`.",
            field="balance",
        )
    return Goal(
        loss=loss,
        label_smoothing=setup.config.optim.label_smoothing,
        balance=_usual(setup, counts) if balance == "auto" else balance,
        counts=counts,
        pictures=len(setup.dataset.split("train")),
    )


def settle_balance(setup: Setup, say: Say) -> TrainConfig:
    """Decide what `auto` means, unless the features of the run will tell; and tell who has not asked what may help."""
    config, counts = setup.config, _counts(setup)
    check_balance(config.optim.balance, setup.task)
    if config.optim.balance == "auto":
        on_features = config.start.training.on_features or config.start.probe
        if on_features and setup.has_validation and has_uneven_classes(setup):
            return config
        balance = _usual(setup, counts)
        because = f"{setup.task.noun[1]} are {'uneven' if is_uneven(counts) else 'even'}{_extremes(counts)}"
        if len(setup.task.balances) > 1:  # where labels are numbers, there is nothing to balance
            say(f"balance: {NAMES.get(balance, 'none')}, since {because}")
        return apply_changes(config, {"balance": balance})
    if config.optim.balance == "none" and has_uneven_classes(setup):
        say(
            f"classes are uneven{_extremes(counts)}: balanced accuracy is shown first; "
            '`balance="auto"` may serve rare classes better'
        )
    return config


def _counts(setup: Setup) -> tuple[int, ...]:
    return count_labels(setup.dataset.split("train").labels, len(setup.dataset.classes))


def _usual(setup: Setup, counts: Sequence[int]) -> str:
    """What uneven labels get without a trial."""
    names = [name for name in NAMES if name in setup.task.balances]
    if setup.config.augment.outlier_rate > 0 and "logit" in names:
        names.remove("logit")  # outliers would seem to be of rare classes
    return next(iter(names), "none") if is_uneven(counts) else "none"


def _extremes(counts: Sequence[int]) -> str:
    there = [number for number in counts if number]
    return f" (largest {max(there):,}, smallest {counted(min(there), 'picture')})" if there else ""


# Trials on features -------------------------------------------------------------------------------------------------


class Gain(NamedTuple):
    """How much more balanced accuracy one classifier has than another on the same pictures."""

    mean: float
    error: float  # its standard error


def try_on_features(setup: Setup, train: FeatureLoader, val: FeatureLoader, say: Say) -> str:
    """The way that is best for a head on these features, by balanced accuracy on validation."""
    refused = {"logit"} if setup.config.augment.outlier_rate > 0 else set[str]()  # which fine-tuning may have
    if not setup.config.start.training.on_features:
        refused.add("sample")  # suits heads, but the features that follow it suffer (Kang et al., 2020)
    names = [name for name in NAMES if name in setup.task.balances and name not in refused]
    targets = val.targets.numpy()
    hits = {name: _fit(setup, train, val, name) for name in ("none", *names)}
    scores = {name: mean_of_classes(hit, targets) for name, hit in hits.items()}
    best = max(names, key=lambda name: scores[name])
    gain = measure_gain(hits[best], hits["none"], targets)
    if gain.mean > gain.error:
        say(
            f"balance: {NAMES[best]}, {_percent(scores[best])} balanced accuracy on val against "
            f"{_percent(scores['none'])} without"
        )
        return best
    say(
        f"balance: none, {_percent(scores['none'])} balanced accuracy on val; the best other way, {NAMES[best]}, has "
        f"{_percent(scores[best])}, which is not more than chance explains"
    )
    return "none"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def mean_of_classes(values: Array, targets: Array) -> float:
    """The mean over classes of their means: of hits, balanced accuracy."""
    counts, sums = np.bincount(targets), np.bincount(targets, values)
    return float((sums[counts > 0] / counts[counts > 0]).mean())


def measure_gain(hits: Array, others: Array, targets: Array) -> Gain:
    """The gain, paired: pictures on which both are right, or both wrong, add no noise.

    Of each class, one picture more of two is taken to differ, so that a class with a single picture counts as unsure.
    """
    differences = hits.astype(np.float64) - others
    counts, changed = np.bincount(targets), np.bincount(targets, differences**2)
    there = counts > 0
    variances = (changed[there] + 1) / (counts[there] + 2) / counts[there]
    return Gain(mean_of_classes(differences, targets), float(np.sqrt(variances.sum()) / there.sum()))


def _fit(setup: Setup, train: FeatureLoader, val: FeatureLoader, balance: str) -> Array:
    """Which validation pictures a linear classifier gets right that a short fit finds; it starts at zero."""
    goal = make_goal(replace(setup, config=apply_changes(setup.config, {"balance": balance})), "")
    loader = replace(train, ranks=Ranks(), evenly=balance == "sample")
    width, classes = train.features.shape[1], len(setup.dataset.classes)
    steps = int(np.clip(WORK / (6 * train.batch_size * width * classes), FEWEST_STEPS, STEPS))
    head = nn.Linear(width, classes)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.AdamW(head.parameters(), lr=LR, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for batch in islice(_epochs(loader), steps):
        optimizer.zero_grad()
        setup.task.loss(head(batch.images), batch.targets, goal).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return (head(val.features).argmax(dim=1) == val.targets).numpy()


def _epochs(loader: FeatureLoader) -> Iterator[Batch]:
    for epoch in count():
        loader.set_epoch(epoch)
        yield from loader

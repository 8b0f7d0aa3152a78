"""What a run will be, decided before it begins from what was measured: bf16, torch.compile, and what fits into a time
budget: how many epochs, or else only the head, a smaller size, or fewer pictures.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vitrail.data import Dataset
from vitrail.errors import ConfigError
from vitrail.machine import freed_memory_kept
from vitrail.ranks import Ranks
from vitrail.schema import from_dict, to_dict
from vitrail.training.balance import settle_balance
from vitrail.training.budget import REPORT_PICTURES, Pace, fitting_epochs, pictures_at_the_end, seconds_left
from vitrail.training.changes import apply_changes, describe_config
from vitrail.training.config import TrainConfig
from vitrail.training.cost import (
    Measured,
    Say,
    answer_seconds,
    epoch_seconds,
    feature_seconds,
    find_batch_size,
    measure,
    measure_features,
    run_seconds,
    settle_compile,
    settle_precision,
)
from vitrail.training.features import check_batch_size
from vitrail.training.listener import Listener, Plan
from vitrail.training.objectives import make_objective
from vitrail.training.recipes import probe_config
from vitrail.training.setup import Setup, check_strategy, fit_batch_size, prepare_run
from vitrail.training.teacher import describe_extra
from vitrail.wording import counted

STEP = 2.0  # forward passes that a training step takes at least
ALMOST = 0.9  # of the pictures: if these fit, all are tried, since another runtime may be faster than torch
ENOUGH = 50  # pictures of a class: with fewer, a smaller size is better than still fewer pictures
SMALLEST_GRID = 8  # patches per side: no smaller size is chosen
HEAD_SECONDS = 10.0  # to train a head on features, and for the files of a report


def settle(
    config: TrainConfig,
    dataset: Dataset,
    ranks: Ranks,
    listener: Listener,
    *,
    began: float | None = None,
    may_shrink: bool = False,
    again: bool = False,
) -> tuple[Setup, Measured]:
    """Decide what is decided by measuring: batch size, bf16, torch.compile, what fits into a time budget.

    Args:
        began: when the budget began to run, by `time.monotonic`; now, if it is None.
        may_shrink: whether a smaller size than the config's may be chosen to keep to the budget.
        again: whether the run was settled before, as a larger one, and all about its data is said.
    """
    check_strategy(config, ranks.world_size)
    setup = prepare_run(config, dataset)
    setup = setup if began is None else replace(setup, began=began)
    if config.schedule.patience is not None and not setup.has_validation and not again:
        listener.said("no validation pictures: training does not stop early, and the last weights are kept")
    if not config.pretrains:
        setup = replace(setup, config=settle_balance(setup, Listener().said if again else listener.said))
    make_objective(setup)  # which refuses what the task cannot learn by, before anything is computed
    listener.prepared("timing a few pictures", 0, 1)
    planner = _Planner(setup, ranks, listener, may_shrink)
    try:
        with freed_memory_kept():  # as in training
            return planner.settle_head() if config.start.training.on_features else planner.settle_training()
    finally:
        listener.ended()


class _Planner:
    """Decides about one run, on which all ranks agree."""

    def __init__(self, setup: Setup, ranks: Ranks, listener: Listener, may_shrink: bool) -> None:
        self.setup, self.ranks, self.listener, self.may_shrink = setup, ranks, listener, may_shrink

    def settle_head(self) -> tuple[Setup, Measured]:
        """Training on features: what they take, and which pictures there is time for."""
        config = self.setup.config
        if config.machine.batch_size == "auto":
            raise ConfigError(f"{config.start.training.called} takes a moment: pass a number as `batch_size=`.")
        measured = replace(self._measure_features(), before=self._measure_answers())
        if config.schedule.minutes is not None:
            measured = self._fit_head(measured)
        size = self.setup.config.machine.batch_size
        assert isinstance(size, int)
        check_batch_size(size, len(self.setup.dataset.split("train")), self.ranks.world_size)
        return self.setup, measured

    def settle_training(self) -> tuple[Setup, Measured]:
        """Training on pictures, perhaps from a head that is trained first."""
        config, said = self.setup.config, self.listener.said
        before = 0.0
        if config.start.probe:
            features = self._measure_features()
            before = feature_seconds(self.setup, features)
            at_best = replace(features, seconds=STEP * features.seconds, before=before)
            if self._too_long(at_best):  # which needs no measuring
                return self._only_head(at_best)
        if config.machine.batch_size == "auto":
            self._decide(lambda: find_batch_size(self.setup, self.ranks, said))
        self._decide(lambda: settle_precision(self.setup, self.ranks, said))
        self._decide(lambda: settle_compile(self.setup, self.ranks, said))
        before += self._measure_answers()
        measured = replace(self.ranks.from_first(lambda: measure(self.setup, self.ranks)), before=before)
        if self._too_long(measured):
            if config.start.probe:
                return self._only_head(measured)
            measured = self._take_fewer_pictures(measured)
        self._decide(lambda: fit_minutes(self.setup, measured, said))
        return self.setup, measured

    def _measure_features(self) -> Measured:
        return self.ranks.from_first(lambda: measure_features(self.setup, self.ranks))

    def _measure_answers(self) -> float:
        return self.ranks.from_first(lambda: answer_seconds(self.setup, self.ranks))

    def _decide(self, make: Callable[[], TrainConfig]) -> None:
        decided: dict[str, Any] = self.ranks.from_first(lambda: to_dict(make()))
        self.setup = replace(self.setup, config=from_dict(TrainConfig, decided))

    def _too_long(self, measured: Measured) -> bool:
        """Whether a time budget has no room for an epoch."""
        if self.setup.config.schedule.minutes is None:
            return False
        return self.ranks.from_first(lambda: _epochs_in_time(self.setup, measured)) < 1

    def _only_head(self, measured: Measured) -> tuple[Setup, Measured]:
        """The run without its fine-tuning."""
        config, dataset, listener = self.setup.config, self.setup.dataset, self.listener
        minutes, seconds = config.schedule.minutes, epoch_seconds(self.setup, measured)
        listener.said(
            f"{minutes:g} minutes leave no time for fine-tuning, of which an epoch takes about {seconds:.0f} s"
        )
        chosen = "; ".join(filter(None, (config.chosen, "there is no time for more than the head")))
        head = fit_batch_size(probe_config(config), dataset, self.ranks.world_size)
        distill = replace(config.distill, distill_features=0.0)
        head = replace(head, chosen=chosen, schedule=replace(head.schedule, minutes=minutes), distill=distill)
        began, may_shrink = self.setup.began, self.may_shrink
        return settle(head, dataset, self.ranks, listener, began=began, may_shrink=may_shrink, again=True)

    def _fit_head(self, measured: Measured) -> Measured:
        """Choose the pictures whose features fit into the time budget; of too few of them, at a smaller size."""
        setup, splits, model = self.setup, self.setup.dataset.splits, self.setup.model.config
        pictures = len(splits["train"]) + len(splits.get("val", ())) + len(splits.get("test", ()))
        each = 1 / measured.pace + measured.before / pictures  # for its features, and the teacher's answer
        affordable = (self._seconds_left() - HEAD_SECONDS - REPORT_PICTURES / measured.pace) / each
        if affordable >= ALMOST * pictures:
            return measured
        enough = min(ENOUGH * len(setup.dataset.classes) * pictures / len(splits["train"]), pictures)
        slow_teacher = measured.before / pictures > each / 2  # which smaller pictures make no faster
        if not self.may_shrink or slow_teacher or affordable >= enough or min(model.grid) <= SMALLEST_GRID:
            self._sample(affordable / pictures)
            return replace(measured, before=measured.before * affordable / pictures)
        factor = max(math.sqrt(max(affordable, 1) / enough), 0.5)
        smaller = tuple(
            max(math.floor(count * factor), SMALLEST_GRID) * stride
            for count, stride in zip(model.grid, model.stride, strict=True)
        )
        faster = replace(measured, seconds=measured.seconds * math.prod(smaller) / math.prod(model.image_size))
        chosen = f"{setup.config.chosen}; pictures of {smaller[1]}×{smaller[0]}, to keep to the budget".lstrip("; ")
        config = replace(apply_changes(setup.config, {"image_size": smaller}), chosen=chosen)
        self.setup = replace(prepare_run(config, setup.dataset), began=setup.began)
        return self._fit_head(faster)

    def _take_fewer_pictures(self, measured: Measured) -> Measured:
        """Choose the share of the pictures of which one epoch, and all before and after it, fits into the budget."""
        fixed = measured.epoch_overhead + REPORT_PICTURES / 3 / measured.pace
        needed = measured.before + epoch_seconds(self.setup, measured) + _ending(self.setup, measured)
        share = (self._seconds_left() - fixed) / (needed - fixed)
        self._sample(share)
        return replace(measured, before=measured.before * share)

    def _sample(self, share: float) -> None:
        dataset, config, ranks = self.setup.dataset, self.setup.config, self.ranks
        total, least = len(dataset.split("train")), 2 * len(dataset.classes)
        if share * total < max(least, 2 * ranks.world_size):
            spent = time.monotonic() - self.setup.began
            raise ConfigError(
                f"`minutes={config.schedule.minutes:g}` is too little: {spent:.0f} s are gone for opening and checking "
                "the data and for planning, and what is left is not enough for two pictures of each class; pass more, "
                "or `check=False`."
            )
        fewer = dataset.sample(share, config.source.split_seed)
        left = f"{len(fewer.split('train')):,} of {counted(total, 'training picture')}"
        self.listener.said(
            f"{config.schedule.minutes:g} minutes are enough for {left}, and the same share of the others, chosen at "
            "random"
        )
        self.setup = replace(self.setup, dataset=fewer, config=fit_batch_size(config, fewer, ranks.world_size))

    def _seconds_left(self) -> float:
        """What is left of the time budget to plan for."""
        minutes = self.setup.config.schedule.minutes
        assert minutes is not None
        return self.ranks.from_first(lambda: seconds_left(minutes, time.monotonic() - self.setup.began))


def describe_plan(setup: Setup, measured: Measured, ranks: Ranks) -> Plan:
    """What users want to know before hours of work."""
    config = setup.config
    on_features = config.start.training.on_features  # which are computed once
    objective = make_objective(setup)
    own = set((objective if config.pretrains else setup.model).parameters())  # with the decoder, which learns as well
    return Plan(
        data=setup.dataset.name,
        classes=len(setup.dataset.classes),
        outputs=setup.dataset.described_outputs,
        pictures={name: len(source) for name, source in setup.dataset.splits.items()},
        recipe=config.recipe,
        model=config.start.model or config.start.weights or "",
        parameters=sum(weight.numel() for weight in own),
        image_size=setup.model.config.image_size,
        device=str(ranks.device),
        ranks=ranks.world_size,
        epochs=config.schedule.epochs,
        minutes=run_seconds(setup, measured) / 60 * (1 if on_features else config.selection.parts),
        memory_mb=round(measured.peak_bytes / 2**20),
        trained=sum(weight.numel() for weight in objective.trained() if weight in own),
        chosen=config.chosen,
        config=describe_config(config),
        folds=config.selection.rounds,
        trials=0 if config.selection.search is None else config.selection.trials,
        teacher=describe_teacher(setup),
    )


def describe_teacher(setup: Setup) -> str:
    """The model to learn from, and whether its answers are kept; nothing without one."""
    teacher, config = setup.teacher, setup.config
    if teacher is None or config.distill.teacher is None:
        return ""
    height, width = teacher.predictor.preprocess.size
    parts = [f"{config.distill.teacher}, on {teacher.predictor.runtime.name}, pictures of {width}×{height}"]
    views = config.augment.fixed_views
    size = f"{(setup.kept_views or views) * setup.answer_bytes / 1e6:,.1f} MB"
    if setup.kept_views:
        several = "" if setup.kept_views == 1 else f" {setup.kept_views} views of"
        parts.append(f"asked once about{several} each training picture; its answers are kept ({size})")
    elif views:
        parts.append(f"asked about each batch, since its answers about all views would take {size}")
    else:
        mixed = ", since mixed pictures have no fixed views" if config.augment.views else ""
        parts.append(f"asked about each batch{mixed}")
    return "; ".join(filter(None, (*parts, describe_extra(teacher, setup.dataset))))


def fit_minutes(setup: Setup, measured: Measured, say: Say) -> TrainConfig:
    """As many epochs as seem to fit into the time budget; `training/budget.py` revises that along the way."""
    minutes = setup.config.schedule.minutes
    if minutes is None:
        return setup.config
    epochs = max(_epochs_in_time(setup, measured), 1)
    each = f"{counted(epochs, 'epoch')} of {epoch_seconds(setup, measured):.1f} s"
    say(f"{minutes:g} minutes allow about {each}; this is revised after each")
    return apply_changes(setup.config, {"epochs": epochs})


def _epochs_in_time(setup: Setup, measured: Measured) -> int:
    minutes = setup.config.schedule.minutes
    assert minutes is not None
    so_far = time.monotonic() - setup.began + measured.before
    pace = Pace(so_far=so_far, epoch=epoch_seconds(setup, measured), ending=_ending(setup, measured))
    return fitting_epochs(minutes, pace)


def _ending(setup: Setup, measured: Measured) -> float:
    """Seconds for what comes after the last epoch, where a picture takes about a third of a step."""
    return pictures_at_the_end(setup.dataset.splits, pretrains=setup.config.pretrains) / 3 / measured.pace

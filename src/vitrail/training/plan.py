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
from vitrail.ranks import Ranks
from vitrail.schema import from_dict, to_dict
from vitrail.training.budget import REPORT_PICTURES, Pace, fitting_epochs, pictures_at_the_end, seconds_left
from vitrail.training.config import TrainConfig, describe_config
from vitrail.training.cost import (
    Measured,
    Say,
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
from vitrail.wording import counted

STEP = 2.0  # forward passes: a step of training takes at least so many
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
) -> tuple[Setup, Measured]:
    """Decide what is decided by measuring: batch size, bf16, torch.compile, what fits into a time budget.

    Args:
        began: when the budget began to run, by `time.monotonic`; now, if it is None.
        may_shrink: whether a smaller size than the config's may be chosen to keep to the budget.
    """
    check_strategy(config, ranks.world_size)
    setup = prepare_run(config, dataset)
    setup = setup if began is None else replace(setup, began=began)
    if config.schedule.patience is not None and not setup.has_validation:
        listener.said("no validation pictures: training does not stop early, and the last weights are kept")
    listener.prepared("timing a few pictures", 0, 1)
    try:
        if config.start.training.on_features:
            return _settle_head(setup, ranks, listener, may_shrink=may_shrink)
        return _settle_training(setup, ranks, listener, may_shrink=may_shrink)
    finally:
        listener.ended()


def _settle_head(setup: Setup, ranks: Ranks, listener: Listener, *, may_shrink: bool) -> tuple[Setup, Measured]:
    """Training on features: what they take, and which pictures there is time for."""
    config = setup.config
    if config.machine.batch_size == "auto":
        raise ConfigError(f"{config.start.training.called} takes a moment: pass a number as `batch_size=`.")
    measured = ranks.from_first(lambda: measure_features(setup, ranks))
    if config.schedule.minutes is not None:
        setup, measured = _fit_head(setup, measured, ranks, listener, may_shrink=may_shrink)
    size = setup.config.machine.batch_size
    assert isinstance(size, int)
    check_batch_size(size, len(setup.dataset.split("train")), ranks.world_size)
    return setup, measured


def _settle_training(setup: Setup, ranks: Ranks, listener: Listener, *, may_shrink: bool) -> tuple[Setup, Measured]:
    config = setup.config

    def decide(make: Callable[[], TrainConfig]) -> None:
        nonlocal setup
        decided: dict[str, Any] = ranks.from_first(lambda: to_dict(make()))
        setup = replace(setup, config=from_dict(TrainConfig, decided))

    def only_head() -> tuple[Setup, Measured]:
        head = _only_head(setup, ranks)
        return settle(head, setup.dataset, ranks, listener, began=setup.began, may_shrink=may_shrink)

    before = 0.0
    if config.start.probe:
        features = ranks.from_first(lambda: measure_features(setup, ranks))
        before = feature_seconds(setup, features, ranks.world_size)
        at_best = replace(features, seconds=STEP * features.seconds, before=before)
        if _too_long(setup, at_best, ranks):  # nobody needs to measure that
            listener.said(_no_time_for_more(setup, at_best, ranks))
            return only_head()
    if config.machine.batch_size == "auto":
        decide(lambda: find_batch_size(setup, ranks, listener.said))
    decide(lambda: settle_precision(setup, ranks, listener.said))
    decide(lambda: settle_compile(setup, ranks, listener.said))
    measured = replace(ranks.from_first(lambda: measure(setup, ranks)), before=before)
    if _too_long(setup, measured, ranks):
        if config.start.probe:
            listener.said(_no_time_for_more(setup, measured, ranks))
            return only_head()
        setup = _fewer_pictures(setup, measured, ranks, listener)
    decide(lambda: fit_minutes(setup, measured, ranks, listener.said))
    return setup, measured


def _too_long(setup: Setup, measured: Measured, ranks: Ranks) -> bool:
    """Whether a time budget has no room for an epoch."""
    if setup.config.schedule.minutes is None:
        return False
    return ranks.from_first(lambda: _epochs_in_time(setup, measured, ranks)) < 1


def _no_time_for_more(setup: Setup, measured: Measured, ranks: Ranks) -> str:
    seconds, minutes = epoch_seconds(setup, measured, ranks.world_size), setup.config.schedule.minutes
    return f"{minutes:g} minutes leave no time for fine-tuning, of which an epoch takes about {seconds:.0f} s"


def _only_head(setup: Setup, ranks: Ranks) -> TrainConfig:
    """The config without its fine-tuning."""
    config = setup.config
    chosen = "; ".join(filter(None, (config.chosen, "there is no time for more than the head")))
    head = fit_batch_size(probe_config(config), setup.dataset, ranks.world_size)
    return replace(head, chosen=chosen, schedule=replace(head.schedule, minutes=config.schedule.minutes))


def _fit_head(
    setup: Setup, measured: Measured, ranks: Ranks, listener: Listener, *, may_shrink: bool
) -> tuple[Setup, Measured]:
    """The pictures whose features fit into the time budget; of too few of them, at a smaller size."""
    splits = setup.dataset.splits
    pictures = len(splits["train"]) + len(splits.get("val", ())) + len(splits.get("test", ()))
    left = ranks.from_first(lambda: _left(setup)) - HEAD_SECONDS
    pace = measured.images_per_second * ranks.world_size
    affordable = left * pace - REPORT_PICTURES
    if affordable >= ALMOST * pictures:
        return setup, measured
    size, grid = setup.model.config.image_size, setup.model.config.grid
    enough = ENOUGH * len(setup.dataset.classes) * pictures / len(splits["train"])
    if may_shrink and affordable < min(enough, pictures) and min(grid) > SMALLEST_GRID:
        factor = max(math.sqrt(max(affordable, 1) / min(enough, pictures)), 0.5)
        smaller = tuple(
            max(math.floor(count * factor), SMALLEST_GRID) * stride
            for count, stride in zip(grid, setup.model.config.stride, strict=True)
        )
        faster = replace(measured, seconds=measured.seconds * math.prod(smaller) / math.prod(size))
        chosen = f"{setup.config.chosen}; pictures of {smaller[1]}×{smaller[0]}, to keep to the budget".lstrip("; ")
        config = replace(setup.config, chosen=chosen, start=replace(setup.config.start, image_size=smaller))
        again = replace(prepare_run(config, setup.dataset), began=setup.began)
        return _fit_head(again, faster, ranks, listener, may_shrink=True)
    return _sample(setup, affordable / pictures, ranks, listener), measured


def _fewer_pictures(setup: Setup, measured: Measured, ranks: Ranks, listener: Listener) -> Setup:
    """The share of the pictures of which one epoch, and all that comes after it, fits into the time budget."""
    pace = measured.images_per_second * ranks.world_size
    fixed = measured.epoch_overhead + REPORT_PICTURES / 3 / pace
    needed = epoch_seconds(setup, measured, ranks.world_size) + _ending(setup, measured, ranks)
    left = ranks.from_first(lambda: _left(setup))
    return _sample(setup, (left - fixed) / (needed - fixed), ranks, listener)


def _sample(setup: Setup, share: float, ranks: Ranks, listener: Listener) -> Setup:
    dataset, minutes = setup.dataset, setup.config.schedule.minutes
    total, least = len(dataset.split("train")), 2 * len(dataset.classes)
    if share * total < max(least, 2 * ranks.world_size):
        spent = time.monotonic() - setup.began
        raise ConfigError(
            f"`minutes={minutes:g}` is too little: {spent:.0f} s are gone for opening and checking the data and for "
            f"planning, and what is left is not enough for two pictures of each class; pass more, or `check=False`."
        )
    fewer = dataset.sample(share, setup.config.source.split_seed)
    left = f"{len(fewer.split('train')):,} of {counted(total, 'training picture')}"
    listener.said(f"{minutes:g} minutes are enough for {left}, and the same share of the others, chosen at random")
    return replace(setup, dataset=fewer, config=fit_batch_size(setup.config, fewer, ranks.world_size))


def _left(setup: Setup) -> float:
    """Seconds of the time budget that are left to plan for."""
    assert setup.config.schedule.minutes is not None
    return seconds_left(setup.config.schedule.minutes, time.monotonic() - setup.began)


def describe_plan(setup: Setup, measured: Measured, ranks: Ranks) -> Plan:
    """What users want to know before hours of work."""
    config = setup.config
    return Plan(
        data=setup.dataset.name,
        classes=len(setup.dataset.classes),
        pictures={name: len(source) for name, source in setup.dataset.splits.items()},
        recipe=config.recipe,
        model=config.start.model or config.start.weights or "",
        parameters=sum(parameter.numel() for parameter in setup.model.parameters()),
        image_size=setup.model.config.image_size,
        device=str(ranks.device),
        ranks=ranks.world_size,
        epochs=config.schedule.epochs,
        minutes=run_seconds(setup, measured, ranks.world_size) / 60,
        memory_mb=round(measured.peak_bytes / 2**20),
        trained=sum(parameter.numel() for parameter in make_objective(setup).trained()),
        chosen=config.chosen,
        config=describe_config(config),
    )


def fit_minutes(setup: Setup, measured: Measured, ranks: Ranks, say: Say) -> TrainConfig:
    """As many epochs as seem to fit into the time budget; `training/budget.py` revises that along the way."""
    config = setup.config
    minutes = config.schedule.minutes
    if minutes is None:
        return config
    each = epoch_seconds(setup, measured, ranks.world_size)
    epochs = max(_epochs_in_time(setup, measured, ranks), 1)
    noun = "epoch" if epochs == 1 else "epochs"
    say(f"{minutes:g} minutes allow about {epochs} {noun} of {each:.1f} s; this is revised after each")
    schedule = replace(config.schedule, epochs=epochs)
    return replace(config, schedule=schedule)


def _epochs_in_time(setup: Setup, measured: Measured, ranks: Ranks) -> int:
    minutes = setup.config.schedule.minutes
    assert minutes is not None
    each = epoch_seconds(setup, measured, ranks.world_size)
    so_far = time.monotonic() - setup.began + measured.before
    return fitting_epochs(minutes, Pace(so_far=so_far, epoch=each, ending=_ending(setup, measured, ranks)))


def _ending(setup: Setup, measured: Measured, ranks: Ranks) -> float:
    """Seconds for what comes after the last epoch, where a picture takes about a third of a step."""
    return pictures_at_the_end(setup.dataset.splits) / 3 / (measured.images_per_second * ranks.world_size)

"""A whole run, whatever it consists of: one model, folds and a last model, or the trials of a search."""

from pathlib import Path
from typing import Any

from vitrail.data import Dataset
from vitrail.data.agreement import check_same_data
from vitrail.prediction import Predictor
from vitrail.ranks import Ranks, join_ranks
from vitrail.training.auto_config import resolve
from vitrail.training.config import Selection, TrainConfig
from vitrail.training.cost import Measured
from vitrail.training.folds import carry_out_folds, settle_folds
from vitrail.training.listener import Listener
from vitrail.training.plan import settle
from vitrail.training.recipes import ask_for
from vitrail.training.result import Run
from vitrail.training.run import carry_out, has_begun, write_metrics
from vitrail.training.run_data import reopen_data, report_replaced
from vitrail.training.run_folder import (
    SPLIT,
    RunLock,
    begin,
    check_shared,
    read_config,
    read_task,
    refuse_part,
    take_begun,
)
from vitrail.training.setup import Setup, prepare_run, with_task
from vitrail.training.teacher_comparison import compare_with_teacher
from vitrail.training.trials import carry_out_search, settle_search
from vitrail.training.unlabelled_run import carry_out_pretraining


def train(config: TrainConfig, folder: str | Path, listener: Listener | None = None) -> Run:
    """Carry out a config in a folder, without a report; a begun run is continued.

    What the config leaves at its defaults is its recipe's; without a recipe, one is chosen that suits the data.
    """
    ranks = join_ranks(config.machine.device)
    folder, listener = Path(folder), listener or Listener()
    with RunLock() as lock:
        resume = ranks.from_first(lambda: take_begun(folder, lock))
        check_shared(folder, ranks)
        if resume:
            setup = reopen(read_config(folder), folder, ranks, listener)
        else:
            setup, _ = settle_run(*resolve("", ask_for(config), ranks, listener.said), ranks, listener)
            ranks.from_first(lambda: begin(setup, folder, lock))
        return carry_out_run(setup, ranks, folder, listener, resume=resume)[0]


def settle_run(
    config: TrainConfig, dataset: Dataset, ranks: Ranks, listener: Listener, **options: Any
) -> tuple[Setup, Measured]:
    """As `settle`, for whatever the run consists of."""
    if config.selection.search is not None:
        return settle_search(config, dataset, ranks, listener, **options)
    make = settle_folds if config.selection.folds is not None else settle
    return make(config, dataset, ranks, listener, **options)


def reopen(config: TrainConfig, folder: Path, ranks: Ranks, listener: Listener) -> Setup:
    """The setup of a begun run, on the pictures that it began with."""
    ranks.from_first(lambda: refuse_part(folder))
    begun = has_begun(ranks, folder)
    dataset = ranks.in_turn(lambda: reopen_data(config, folder / SPLIT, listener.said))
    check_same_data(dataset, ranks)
    ranks.from_first(lambda: report_replaced(dataset, folder, listener.said))
    task, alone = ranks.from_first(lambda: read_task(folder)), config.selection == Selection()
    if alone and config.schedule.minutes is not None and not begun:  # killed before its plan was saved
        return with_task(settle(config, dataset, ranks, listener)[0], task)
    return with_task(prepare_run(config, dataset), task)


def carry_out_run(
    setup: Setup, ranks: Ranks, folder: Path, listener: Listener, *, resume: bool
) -> tuple[Run, Predictor]:
    """Train and measure whatever the run consists of."""
    selection = setup.config.selection
    if setup.config.pretrains:
        return carry_out_pretraining(setup, ranks, folder, listener, resume=resume)
    make = carry_out if selection.folds is None else carry_out_folds
    make = make if selection.search is None else carry_out_search
    run, predictor = make(setup, ranks, folder, listener, resume=resume)
    if setup.teacher is not None:
        run = compare_with_teacher(setup, run, listener)
        ranks.from_first(lambda: write_metrics(run))
    return run, predictor

"""A run small enough for a test: the bundled digits, a few steps per epoch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitrail.data import Dataset
from vitrail.ranks import Ranks
from vitrail.training import TrainConfig, recipe
from vitrail.training.changes import apply_changes
from vitrail.training.loop import Trainer
from vitrail.training.setup import Setup, open_training_data, prepare_run

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 64}


def quick_config(**changes: Any) -> TrainConfig:
    return apply_changes(recipe("digits"), QUICK | changes)


def part_of_digits(config: TrainConfig, count: int = 256) -> Dataset:
    dataset = open_training_data(config)
    train = dataset.split("train")
    return replace(dataset, splits={**dataset.splits, "train": train.select(range(min(count, len(train))))})


@pytest.fixture
def make_setup() -> Callable[..., Setup]:
    def make(**changes: Any) -> Setup:
        config = quick_config(**changes)
        return prepare_run(config, part_of_digits(config))

    return make


@pytest.fixture
def make_trainer(make_setup: Callable[..., Setup], tmp_path: Path) -> Callable[..., Trainer]:
    def make(folder: str = "run", **changes: Any) -> Trainer:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        return Trainer(make_setup(**changes), Ranks(), path)

    return make

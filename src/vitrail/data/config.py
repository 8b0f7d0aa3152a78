"""How data are found, split and batched: config classes that the command line reads without torch or numpy."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vitrail.cache import cache_folder
from vitrail.errors import ConfigError
from vitrail.schema import IF_USED, validate

MAX_WORKERS = 1024
VAL_RATE = TEST_RATE = 0.15  # of each class, if we make the split
MAX_BROKEN_RATE = 0.01  # leaving out more pictures than this would change what is learned or measured


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns to read, if their names are not the usual ones."""

    picture: str | None = None
    """For a table: the column of paths or encoded pictures [default: found by its name]."""
    label: str | None = None
    """For a table: the column of labels."""
    split: str | None = None
    """For a table: the column of splits."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the data are and how they are split, for `open_data`."""

    data_dir: Path | None = None
    """Where named data sets are kept or downloaded to [default: $VITRAIL_DATA or the user's cache]."""
    split_file: Path | None = None
    """The split.csv to use, for data without splits of their own."""
    val_rate: float = VAL_RATE
    """Without a split file: the share of each class used for validation."""
    test_rate: float = TEST_RATE
    """Without a split file: the share of each class used for testing."""
    split_seed: int = 0
    """Without a split file: the seed of the split."""
    max_broken_rate: float = field(default=MAX_BROKEN_RATE, metadata=IF_USED)
    """The share of the pictures that may be unreadable; they are left out."""
    columns: Columns = field(default_factory=Columns)

    def __post_init__(self) -> None:
        validate(self)
        check_broken_rate(self.max_broken_rate)

    @property
    def cache(self) -> Path:
        return self.data_dir or default_data_dir()


def default_data_dir() -> Path:
    """$VITRAIL_DATA, or a folder in the user's cache."""
    return Path(os.environ.get("VITRAIL_DATA") or cache_folder() / "data")


def check_workers(workers: int | None) -> None:
    """Limit the threads that decode pictures: each takes memory, and the system has a limit too."""
    if workers is not None and not 0 <= workers <= MAX_WORKERS:
        raise ConfigError(f"workers must be between 0 and {MAX_WORKERS}; got {workers}.")


def check_broken_rate(rate: float) -> None:
    """Refuse what is no share."""
    if not 0 <= rate <= 1:
        raise ConfigError(f"max_broken_rate must be between 0 and 1; got {rate}.")


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """How batches are made."""

    batch_size: int = 64  # over all ranks
    seed: int = 0  # of the order and of augmentation
    workers: int | None = None  # threads; 0: the caller's own; None: one for pictures in memory, else one per core
    remainder: Literal["drop", "pad"] = "drop"  # in training, a last, shorter batch is left out, or filled up
    output: Literal["float", "bytes"] = "float"  # normalised floats, or bytes to normalise on the device
    on_broken: Literal["skip", "error"] = "skip"  # a picture that cannot be read
    max_broken_rate: float = MAX_BROKEN_RATE  # more than this in one epoch is always an error
    pin_memory: bool = False  # for faster copies to a GPU
    rank: int = 0  # of this process
    world_size: int = 1  # number of processes

    def __post_init__(self) -> None:
        validate(self)
        if self.world_size < 1:
            raise ConfigError(f"world_size must be at least 1; got {self.world_size}.")
        if self.batch_size < 1 or self.batch_size % self.world_size:
            raise ConfigError(f"batch_size must be a multiple of the {self.world_size} ranks; got {self.batch_size}.")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank must be between 0 and {self.world_size - 1}; got {self.rank}.")
        check_workers(self.workers)
        check_broken_rate(self.max_broken_rate)

"""How data are found, split, batched and augmented: configs that the command reads without torch or NumPy."""

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vitrail.cache import cache_folder
from vitrail.errors import ConfigError, shorten, suggest
from vitrail.registry import NO_TASK, TASKS, LabelKind, labels_of
from vitrail.schema import IF_USED, validate
from vitrail.storage import refuse_secrets

AUTO = "auto"  # the task, chosen from the data
MAX_WORKERS = 1024
VAL_RATE = TEST_RATE = 0.15  # of each class, if we make the split
MAX_BROKEN_RATE = 0.01  # leaving out more pictures than this would change what is learned or measured


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns to read, if their names are not the usual ones."""

    picture: str | None = None
    """For a table: the column of paths or encoded pictures [default: found by its name]."""
    label: str | None = None
    """For a table: the column of labels; or several, separated by commas, that hold 0 and 1, or numbers."""
    split: str | None = None
    """For a table: the column of splits."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the data are and how they are split, for `open_data`."""

    data_dir: Path | None = None
    """Where named data sets are kept or downloaded to [default: $VITRAIL_DATA or the user's cache]."""
    split_file: str | Path | None = None
    """The split.csv to use, by its path or address, for data without splits of their own."""
    val_rate: float = VAL_RATE
    """Without a split file: the share of each class used for validation."""
    test_rate: float = TEST_RATE
    """Without a split file: the share of each class used for testing."""
    split_seed: int = 0
    """Without a split file: the seed of the split."""
    max_broken_rate: float = field(default=MAX_BROKEN_RATE, metadata=IF_USED)
    """The share of the pictures that may be unreadable; they are left out."""
    exclude: tuple[Path, ...] = field(default=(), metadata=IF_USED)
    """CSV files whose column `key` lists samples to leave out, such as those of `vitrail data audit`. All other samples
    stay in their splits."""
    columns: Columns = field(default_factory=Columns)
    group: str | None = field(default=None, metadata=IF_USED)
    """For a table: a column whose values are never split up, such as the patient or the video: pictures with the same
    one are in the same split, and in the same fold."""
    task: str = field(default=AUTO, metadata=IF_USED)
    """What is learned of each picture: one (its class), several (all labels that apply), number (one or more measured
    values), or auto: what the labels look like."""
    separator: str | None = field(default=None, metadata=IF_USED)
    """For several labels in one cell of a table: what stands between them [default: found, if it is one of , ; |]."""

    def __post_init__(self) -> None:
        validate(self)
        check_broken_rate(self.max_broken_rate)
        self._check_task()
        if isinstance(self.split_file, str):
            refuse_secrets(self.split_file)
            if "\0" in self.split_file:
                raise ConfigError("must be a path, without a NUL character.", field="split_file")

    def _check_task(self) -> None:
        if self.task not in (AUTO, NO_TASK, *TASKS):
            known = (AUTO, *TASKS, NO_TASK)
            raise ConfigError(f"must be a task; got {shorten(self.task)}; {suggest(self.task, known)}", field="task")
        if self.separator is not None and (not self.separator or self.label_kind not in (None, "set")):
            raise ConfigError(
                f"stands between several labels in one cell, so it must be a text, and goes with `task=several`; got "
                f"{shorten(self.separator)} with `task={self.task}`.",
                field="separator",
            )

    @property
    def label_kind(self) -> LabelKind | None:
        """What the label of a picture is to be; None: what it looks like."""
        return None if self.task == AUTO else labels_of(self.task)

    @property
    def cache(self) -> Path:
        return self.data_dir or default_data_dir()


def default_data_dir() -> Path:
    """$VITRAIL_DATA, or a folder in the user's cache."""
    return Path(os.environ.get("VITRAIL_DATA") or cache_folder() / "data")


def check_workers(workers: int | None) -> None:
    """Limit the threads that decode pictures: each takes memory, and the system has a limit too."""
    if workers is not None and not 0 <= workers <= MAX_WORKERS:
        raise ConfigError(f"must be between 0 and {MAX_WORKERS}; got {workers}.", field="workers")


def check_broken_rate(rate: float) -> None:
    """Refuse what is no share."""
    if not 0 <= rate <= 1:
        raise ConfigError(f"must be between 0 and 1; got {rate}.", field="max_broken_rate")


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """How batches are made."""

    batch_size: int = 64  # over all ranks
    seed: int = 0  # of the order and of augmentation
    workers: int | None = None  # threads; 0: the caller's own; None: one for pictures in memory, else one per core
    remainder: Literal["drop", "pad"] = "drop"  # in training, a last, shorter batch is left out, or filled up
    evenly: bool = False  # in training, pictures of all classes equally often, rather than every picture once
    output: Literal["float", "bytes"] = "float"  # normalised floats, or bytes to normalise on the device
    on_broken: Literal["skip", "error"] = "skip"  # a picture that cannot be read
    max_broken_rate: float = MAX_BROKEN_RATE  # more than this in one epoch is always an error
    pin_memory: bool = False  # for faster copies to a GPU
    number_versions: bool = False  # `Batch.indices` number fixed views or repetitions: version × samples + sample
    rank: int = 0  # of this process
    world_size: int = 1  # number of processes

    def __post_init__(self) -> None:
        validate(self)
        if self.world_size < 1:
            raise ConfigError(f"world_size must be at least 1; got {self.world_size}.")
        if self.batch_size < 1 or self.batch_size % self.world_size:
            raise ConfigError(
                f"must be a multiple of the {self.world_size} ranks; got {self.batch_size}.", field="batch_size"
            )
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank must be between 0 and {self.world_size - 1}; got {self.rank}.")
        check_workers(self.workers)
        check_broken_rate(self.max_broken_rate)


# The numbers that options of an `Augment` may have.
AUGMENT_LIMITS = {
    **dict.fromkeys(("flip_rate", "vertical_flip_rate", "erase_rate", "mix_rate", "switch_rate"), (0, 1)),
    **dict.fromkeys(("mixup", "cutmix", "magnitude_std"), (0, math.inf)),
    "pad": (0, 1024),  # pixels
    "num_ops": (1, 100),  # each takes milliseconds, and no signal ends a run in the middle of a picture
    "magnitude": (0, 30),
    "repeats": (1, math.inf),
    "outlier_rate": (0, 0.9),
    "views": (0, math.inf),
}


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Crop → flip → policy → colour jitter → erase → mix. The defaults do nothing but flip."""

    crop: Literal["none", "pad", "resized"] = "none"
    """The random crop: none (as in evaluation), pad (shifted within a border) or resized (RandomResizedCrop)."""
    pad: int = 4
    """With crop=pad: the border, in pixels of the model's input."""
    pad_fill: Literal["black", "reflect"] = "black"
    """With crop=pad: what fills the border."""
    scale: tuple[float, float] = (0.08, 1.0)
    """With crop=resized: the range of the crop's share of the picture's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """With crop=resized: the range of the crop's aspect ratio."""
    flip_rate: float = 0.5
    """Share of pictures that are flipped left to right."""
    alternate_flip: bool = field(default=False, metadata=IF_USED)
    """Flip each picture in every other epoch, from a random start: two epochs in a row show both sides."""
    vertical_flip_rate: float = 0.0
    """Share of pictures that are flipped upside down."""
    policy: Literal["none", "rand", "auto", "trivial", "three"] = "none"
    """RandAugment, AutoAugment (with CIFAR-10's policy), TrivialAugment or 3-Augment."""
    num_ops: int = 2
    """With policy=rand: number of operations per picture."""
    magnitude: float = 9.0
    """With policy=rand: strength of the operations, 0 to 30."""
    magnitude_std: float = 0.0
    """With policy=rand: standard deviation of the strength."""
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Strength of random changes of brightness, contrast, saturation and hue."""
    erase_rate: float = 0.0
    """Share of pictures in which a box is erased."""
    erase_fill: Literal["mean", "noise"] = "mean"
    """What fills the erased box."""
    mixup: float = 0.0
    """Alpha of mixup's Beta distribution; 0 turns it off."""
    cutmix: float = 0.0
    """Alpha of cutmix's Beta distribution; 0 turns it off."""
    mix_rate: float = 1.0
    """Share of pictures that are mixed with another."""
    switch_rate: float = 0.5
    """Share of the mixed pictures that use cutmix, if both are on."""
    repeats: int = 1
    """Versions of each picture in one batch (repeated augmentation)."""
    outlier_rate: float = field(default=0.0, metadata=IF_USED)
    """Share of pictures that are replaced by outliers (collages, drawings of objects, turned or scrambled pictures,
    noise, crops of other photographs). The model learns to be unsure of them, so that it recognises unfamiliar pictures
    better; try 0.15 to 0.25."""
    views: int = field(default=0, metadata=IF_USED)
    """Fixed versions of each picture, which take turns; 0 makes a new one each time. A teacher is asked only once about
    each of them, unless pictures are mixed."""

    def __post_init__(self) -> None:
        validate(self)
        for name, (low, high) in AUGMENT_LIMITS.items():
            if not low <= getattr(self, name) <= high:
                limits = f"at least {low}" if high == math.inf else f"between {low} and {high}"
                raise ConfigError(f"must be {limits}; got {getattr(self, name)}.", field=name)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigError(f"must be (low, high) with 0 < low ≤ high ≤ 1; got {self.scale}.", field="scale")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ConfigError(f"must be (low, high) with 0 < low ≤ high; got {self.ratio}.", field="ratio")
        if min(self.jitter) < 0 or self.jitter[3] > 0.5:
            raise ConfigError(f"must be at least 0, and its hue at most 0.5; got {self.jitter}.", field="jitter")
        if self.views and self.outlier_rate:
            raise ConfigError(
                "cannot be combined with `outlier_rate=`: fixed views would fix which pictures are outliers, whose "
                "labels would never be learned; omit one of them.",
                field="views",
            )
        if self.alternate_flip and self.views % 2:
            raise ConfigError(
                f"must be even with `alternate_flip=True`, since sides take turns; got {self.views}.", field="views"
            )
        if self.alternate_flip and not self.flip_rate:
            raise ConfigError("flips pictures, and `flip_rate=0` does not; omit one of them.", field="alternate_flip")

    @property
    def mixes(self) -> bool:
        """Whether the targets are soft: a share of each class."""
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_rate > 0

    @property
    def pairs(self) -> bool:
        """Whether pictures are made of two: each and its neighbour."""
        return self.mixes or self.outlier_rate > 0

    @property
    def is_random(self) -> bool:
        """Whether a picture by itself is changed at random."""
        rates = (self.flip_rate, self.vertical_flip_rate, self.erase_rate, *self.jitter)
        return self.crop != "none" or self.policy != "none" or any(rates)

    @property
    def fixed_views(self) -> int:
        """How many versions of each picture there are in training; 0 if they never end."""
        if self.pairs:  # with whatever stands beside it
            return 0
        return self.views or (0 if self.is_random else 1)

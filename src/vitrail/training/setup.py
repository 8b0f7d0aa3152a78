"""From a config to what training works with: data, model, loaders."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vitrail.data import DataConfig, Dataset, LoaderConfig, Preprocess, open_data
from vitrail.data.config import AUTO
from vitrail.data.datasets import check_where
from vitrail.data.loader import Loader
from vitrail.data.source import ArraySource, Source, default_preprocess
from vitrail.errors import ConfigError, DataError
from vitrail.model import Rates, ViT, ViTConfig, variant
from vitrail.ranks import Ranks
from vitrail.registry import NO_TASK
from vitrail.tasks.one import One
from vitrail.tasks.task import Task, make_task
from vitrail.training.changes import apply_changes
from vitrail.training.config import TrainConfig
from vitrail.training.feature_store import Features
from vitrail.training.lora import add_adapters
from vitrail.training.teacher import Teacher, locate_teacher, open_teacher
from vitrail.training.whitening import check_whitening
from vitrail.weights.adapt import adapt, join_heads, split_heads
from vitrail.weights.read import check_source, open_checkpoint
from vitrail.weights.sanity import check_numbers
from vitrail.wording import counted

EVAL_BATCH = 256
MOST_ANSWERS = 4 << 30  # bytes of what a teacher says of all fixed views: more are not kept
HALF = 2  # bytes of a number of half precision
HELD_OUT = 0.05  # of pictures without labels
LEAST_BATCHES = 8  # per epoch: a batch size that would leave fewer is lowered


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a run trains, on what."""

    config: TrainConfig
    dataset: Dataset
    model: ViT
    preprocess: Preprocess
    task: Task = field(default_factory=One)  # what the labels mean
    source: str = ""  # where the first weights came from
    beside: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])  # what else was in their file
    began: float = field(default_factory=time.monotonic)  # when the user's minutes began to run
    shared: Mapping[str, Features] | None = None  # of each split, if other runs use them too; else computed here
    teacher: Teacher | None = None  # a model to learn from, beside the labels

    @property
    def kept_views(self) -> int:
        """The fixed views of each picture about which the teacher is asked once; 0: it is asked about each batch."""
        if self.teacher is None or self.config.distill.teacher is None:
            return 0
        views = 1 if self.config.start.training.on_features else self.config.augment.fixed_views
        return views if views * self.answer_bytes <= MOST_ANSWERS or self.config.start.training.on_features else 0

    @property
    def answer_bytes(self) -> int:
        """What a teacher says of one view of each training picture, as it is kept."""
        return 0 if self.teacher is None else len(self.dataset.split("train")) * self.teacher.width * HALF

    @property
    def has_validation(self) -> bool:
        return "val" in self.dataset.splits and len(self.dataset.splits["val"]) > 0


def check_start(config: TrainConfig, *, may_get_weights: bool = False) -> ViTConfig | None:
    """Raise for what cannot work whatever the pictures are: models, weights and files are checked before the data.

    The config of the model, if there is one on this machine.
    """
    start = config.start
    if not may_get_weights:
        require_weights(config)
    locate_teacher(config.distill)
    if start.weights is not None:
        model = check_source(start.weights, class_names=start.classes)
    else:
        model = None if start.model is None else variant(start.model)
    if model is not None and start.image_size is not None:
        replace(model, image_size=start.image_size)
    if model is not None and start.whiten != "off":
        check_whitening(model)
    if config.data:
        check_where(config.data)
    return model


def require_weights(config: TrainConfig, *, model: bool = False) -> None:
    """Refuse to start from scratch if weights are needed, or (once the recipe is chosen) if there is no model."""
    start = config.start
    if start.weights is not None:
        return
    if start.training.needs_weights or start.probe:
        called = start.training.called if start.training.needs_weights else "`probe=True`"
        raise ConfigError(f"{called} needs pretrained weights; pass `weights=`.")
    if start.model is None and (model or config.recipe):
        raise ConfigError(f"the recipe {config.recipe!r} starts from pretrained weights; pass `weights=`.")


def open_training_data(config: TrainConfig, *, validation: bool = True) -> Dataset:
    """The data, with a validation split if requested."""
    if not config.data:
        named = config.source.data_dir
        hint = "" if named is None else f"; `data_dir=` is where those with a name are kept, so pass {named} itself"
        raise ConfigError(
            f"pass the data to train on: a folder of class folders, a table, or a name such as digits{hint}."
        )
    dataset = open_data(config.data, config.source)
    return add_validation(dataset, config) if validation else dataset


def open_pictures(config: TrainConfig, *, validation: bool = True) -> Dataset:
    """The data of a run that needs no labels; those that cannot be read as labels stand in nobody's way."""
    if config.source.task != NO_TASK:
        try:
            return open_training_data(config, validation=validation)
        except DataError:
            if config.source.task != AUTO:
                raise
    source, usual = replace(config.source, task=NO_TASK), DataConfig()
    if (source.val_rate, source.test_rate) == (usual.val_rate, usual.test_rate):  # there is nothing to test
        source = replace(source, val_rate=HELD_OUT, test_rate=0.0)
    dataset = open_training_data(replace(config, source=source), validation=validation)
    return replace(dataset, assumed=("Not every picture has a label, so there is no kNN probe of the features",))


def add_validation(dataset: Dataset, config: TrainConfig) -> Dataset:
    """The data with a validation split: their own, or a part of the training pictures."""
    if "val" in dataset.splits or not config.source.val_rate:
        return dataset
    return dataset.with_validation(config.source.val_rate, config.source.split_seed)


def prepare_run(config: TrainConfig, dataset: Dataset) -> Setup:
    """The model with its first weights; everything random follows from the seed. And its teacher, if it has one."""
    setup = _prepare_model(config, dataset)
    teacher = open_teacher(config.distill, dataset, setup.task, setup.preprocess)
    if teacher is None:
        return setup
    known = apply_changes(config, {"teacher_sha256": teacher.sha256})  # a resumed run must have the same
    return replace(setup, config=known, teacher=teacher)


def with_task(setup: Setup, task: Task | None) -> Setup:
    """The same run with its task as it was fitted on other pictures, for its teacher too; None leaves it."""
    if task is None:
        return setup
    teacher = None if setup.teacher is None else replace(setup.teacher, task=task)
    return replace(setup, task=task, teacher=teacher)


def _prepare_model(config: TrainConfig, dataset: Dataset) -> Setup:
    torch.manual_seed(config.machine.seed)
    start, train = config.start, dataset.split("train")
    channels = start.channels or own_channels(train)
    rates = Rates(dropout=start.dropout, path=start.drop_path)
    task = One() if config.pretrains else make_task(dataset.task).fitted(train.labels)
    num_classes = 0 if config.pretrains else len(dataset.classes)
    if start.weights is None:
        require_weights(config, model=True)
        assert start.model is not None
        new = variant(start.model, num_classes=num_classes, channels=channels, rates=rates)
        if start.image_size is not None:
            new = replace(new, image_size=start.image_size)
        preprocess = default_preprocess(dataset, new.image_size, None, channels, start.value_range)
        return Setup(config=config, dataset=dataset, model=ViT(new), preprocess=preprocess, task=task)
    opened = open_checkpoint(start.weights, class_names=start.classes)
    checkpoint = adapt(
        join_heads(opened),
        num_classes=num_classes,
        classes=None if config.pretrains else dataset.classes,
        image_size=start.image_size,
        drop_representation=True,
        task=make_task(task.kind),
    )
    if opened.config.distilled and config.distill.teacher is not None and start.trains_all:
        checkpoint = split_heads(checkpoint)  # as in DeiT: one head learns from the labels, the other from the teacher
    check_numbers(checkpoint, start.weights)
    if channels > 3 or start.channels:  # which need filters; models of RGB get grey pictures as RGB
        checkpoint = adapt(checkpoint, channels=channels)
    model = ViT(replace(checkpoint.config, rates=rates))
    model.load_state_dict(checkpoint.tensors)
    if start.training.with_adapters:
        add_adapters(model, rank=start.lora_rank, alpha=start.lora_alpha, targets=start.adapted)
    preprocess = checkpoint.preprocess
    if start.value_range is not None:
        preprocess = replace(preprocess, value_range=start.value_range)
    return Setup(
        config=config,
        dataset=dataset,
        model=model,
        preprocess=preprocess,
        task=task,
        source=start.weights,
        beside=checkpoint.extras,
    )


def own_channels(source: Source) -> int:
    """The channels of pictures in memory; files are read as RGB."""
    return source.images.shape[1] if isinstance(source, ArraySource) else 3


def check_strategy(config: TrainConfig, world_size: int) -> None:
    """Refuse what cannot be spread over the ranks."""
    if config.machine.strategy != "fsdp" or not config.start.training.can_be_sharded:
        return
    if world_size == 1:
        raise ConfigError(
            '`strategy="fsdp"` needs several ranks, which torchrun starts; on one, use `strategy="ddp"`, '
            "with which a run that began with fsdp can also be resumed."
        )
    if config.optim.optimizer == "muon":
        raise ConfigError('muon needs whole matrices; use `strategy="ddp"`, or `optimizer="adamw"` with fsdp.')


def training_loader(setup: Setup, ranks: Ranks) -> Loader:
    """Shuffled and augmented batches of this rank."""
    machine = setup.config.machine
    assert isinstance(machine.batch_size, int)
    pinned = ranks.device.type == "cuda"
    evenly = setup.config.optim.balance == "sample"
    options = _loader_options(setup, machine.batch_size, ranks)
    numbered = setup.kept_views > 0 or setup.config.pretrains  # for its answers, for its masks
    options = replace(options, seed=machine.seed, pin_memory=pinned, evenly=evenly, number_versions=numbered)
    return Loader(setup.dataset, "train", setup.preprocess, options, setup.config.augment)


def plain_loader(setup: Setup, split: str, ranks: Ranks, batch_size: int = EVAL_BATCH) -> Loader:
    """Every picture of a split once, as evaluation sees it; this rank's part."""
    options = _loader_options(setup, batch_size * ranks.world_size, ranks)
    return Loader(setup.dataset, split, setup.preprocess, options)


def _loader_options(setup: Setup, batch_size: int, ranks: Ranks) -> LoaderConfig:
    """What all loaders of a run have in common; `batch_size` counts all ranks."""
    return LoaderConfig(
        batch_size=batch_size,
        workers=setup.config.machine.workers,
        rank=ranks.rank,
        world_size=ranks.world_size,
        max_broken_rate=setup.dataset.max_broken_rate,
    )


def fit_batch_size(config: TrainConfig, dataset: Dataset, world_size: int) -> TrainConfig:
    """A batch size that leaves a few steps per epoch, for data sets that are smaller than a recipe expects."""
    size = config.machine.batch_size
    if size == "auto":
        return config
    largest = max(len(dataset.split("train")) // LEAST_BATCHES, 1)
    least = 2 * world_size  # even on each rank, so that pictures can be mixed
    if len(dataset.split("train")) < least:
        raise ConfigError(
            f"{dataset.name} has {counted(len(dataset.split('train')), 'training picture')}; "
            f"training needs at least {least}."
        )
    while size > largest and size // 2 >= least:
        size //= 2
    return apply_changes(config, {"batch_size": max(size // least, 1) * least})


def num_threads() -> int:
    """Threads that this process may keep busy."""
    return min(torch.get_num_threads(), os.cpu_count() or 1)

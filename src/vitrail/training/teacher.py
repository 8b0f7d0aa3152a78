"""The model that another one learns from: opened, compared with the data, and shown what the student sees.

A teacher is no part of the objective: it is neither trained, averaged, spread over the ranks nor saved.
"""

import hashlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.data.source import Dataset
from vitrail.data.transform import denormalize, resize, restore_pixels
from vitrail.errors import ConfigError, VitrailError
from vitrail.evaluation.measurement import check_task
from vitrail.files import sha256_of
from vitrail.prediction import Predictor, load
from vitrail.tasks.task import Task
from vitrail.training.distill_config import Distill
from vitrail.weights.native import fingerprint
from vitrail.weights.resolve import Located, files_of, locate
from vitrail.wording import counted, name_metric, show_metric

SHOWN = 5  # names in a message


@dataclass(frozen=True, kw_only=True, eq=False)
class Teacher:
    """What it says of the student's pictures, as the student should say it."""

    predictor: Predictor
    sha256: str  # of its weights
    order: list[int]  # of its outputs, for each class of the data
    task: Task  # the student's
    shown: Preprocess  # how the student's pictures were prepared
    with_features: bool = False

    @cached_property
    def feature_width(self) -> int:
        """The numbers of its features; 0 if they are not asked for."""
        if not self.with_features:
            return 0
        if self.predictor.in_torch:
            return self.predictor.model.config.feature_width
        spec = self.predictor.preprocess
        return self.predictor.runtime.features(torch.zeros(1, spec.channels, *spec.size).numpy()).shape[1]

    @property
    def width(self) -> int:
        """The numbers that it says of a picture: an answer for each class, then its features if they are asked for."""
        return len(self.order) + self.feature_width

    @torch.no_grad()
    def look(self, images: Tensor) -> Tensor:
        """What it says of pictures that the student sees (B, C, H, W): (B, width), of half precision.

        They are rounded whether they are kept or not, so that both give the same bits.
        """
        size = self.predictor.runtime.batch_size
        with torch.autocast(images.device.type, enabled=False):  # whatever precision the student is trained in
            return torch.cat([self._look(some) for some in self.view(images).split(size)])

    def view(self, images: Tensor) -> Tensor:
        """The student's pictures as the teacher's preprocessing would prepare them, but whole: nothing is cropped."""
        spec = self.predictor.preprocess
        restore = denormalize if self.shown.value_range is None else restore_pixels  # bytes, which they were; or deeper
        pixels = restore(images.float(), self.shown).expand(-1, spec.channels, -1, -1)
        on_cpu = images.device.type == "cpu"
        fitted = resize(pixels, spec if on_cpu else replace(spec, kernel="float"), *spec.size)
        mean, std = (fitted.new_tensor(each, dtype=torch.float32).view(-1, 1, 1) for each in (spec.mean, spec.std))
        return fitted * (1 / (255 * std)) - mean / std

    def _look(self, images: Tensor) -> Tensor:
        runtime = self.predictor.runtime
        if self.predictor.in_torch:
            model = self.predictor.model
            if model.weight.device != images.device:
                model.to(images.device)
            features = model.features(images)
            logits = model.classify(features)
        elif self.with_features:
            logits, features = map(torch.from_numpy, runtime.logits_and_features(images.cpu().numpy()))
        else:
            logits, features = torch.from_numpy(runtime.logits(images.cpu().numpy())), None
        answers = self.task.learned_from(logits.float(), self.predictor.task, self.order)
        said = answers.to(images.device, torch.float16)
        if not self.with_features:
            return said
        assert features is not None
        return torch.cat([said, features.to(images.device, torch.float16)], dim=1)


@dataclass(frozen=True, kw_only=True)
class TeacherComparison:
    """What is in metrics.json about a run's teacher."""

    source: str
    sha256: str  # of its weights
    split: str
    pictures: int  # that both were measured on
    teacher: dict[str, float]  # its metrics
    student: dict[str, float]  # those of the model that learned from it
    agreement: float  # the share of pictures to which they give the same answer
    right: dict[str, int] = field(default_factory=dict[str, int])  # by both, student, teacher, none

    @property
    def metric(self) -> str:
        """The first of the metrics, beside the loss."""
        return next((name for name in self.teacher if name != "loss"), "loss")

    def describe(self) -> str:
        """The teacher's first metric, and how often the student answers the same."""
        shown = f"{name_metric(self.metric)} {show_metric(self.metric, self.teacher[self.metric])}"
        same = f"the student gives the same answer for {self.agreement:.1%} of {counted(self.pictures, 'picture')}"
        return f"teacher on {self.split}: {shown}; {same}"


def open_teacher(config: Distill, dataset: Dataset, task: Task, shown: Preprocess) -> Teacher | None:
    """The teacher that a config names, which must fit the data and the pictures; None without one."""
    if config.teacher is None:
        return None
    predictor = load_teacher(config, dataset)
    check_channels(predictor.preprocess.channels, shown.channels)
    _check_range(predictor.preprocess, shown)
    sha256 = checksum_of(predictor, config.teacher)
    if config.teacher_sha256 not in (None, sha256):
        raise ConfigError(
            f"{config.teacher} has changed: the run began with a teacher whose weights have the SHA-256 "
            f"{config.teacher_sha256}, and these have {sha256}; pass the old one as `teacher=`, or start a new run.",
            field="teacher",
        )
    assert predictor.classes is not None
    return Teacher(
        predictor=predictor,
        sha256=sha256,
        order=[predictor.classes.index(name) for name in dataset.classes],
        task=task,
        shown=shown,
        with_features=config.distill_features > 0,
    )


def locate_teacher(config: Distill) -> Located | None:
    """Where the teacher is; refused if opening it could only fail."""
    if config.teacher is None:
        return None
    with _about_teacher():
        return locate(config.teacher, allow_export=True)


@contextmanager
def _about_teacher() -> Generator[None]:
    try:
        yield
    except VitrailError as error:
        raise ConfigError(f"cannot be used: {error}", field="teacher") from error


def load_teacher(config: Distill, dataset: Dataset) -> Predictor:
    """The teacher, if it has learned what these data are about."""
    located = locate_teacher(config)
    assert located is not None
    with _about_teacher():
        predictor = load(located)
        check_task(predictor.task, dataset)
    _check_classes(predictor, dataset.classes, located.name)
    if config.distill_features and not predictor.runtime.has_features:
        raise ConfigError(
            f"needs the teacher's features, and {config.teacher} gives only logits; name its checkpoint, or omit it.",
            field="distill_features",
        )
    return predictor


def _check_classes(predictor: Predictor, classes: Sequence[str], source: str) -> None:
    """Refuse a teacher that lacks some classes of the data; one that has more is asked about theirs only."""
    known, noun = predictor.classes, predictor.task.noun
    if not predictor.num_classes:
        raise ConfigError(
            f"must be a classifier, and {source} has no head; train one first: vitrail train PICTURES --weights "
            f"{source}",
            field="teacher",
        )
    if known is None:
        raise ConfigError(
            f"must have named {noun[1]}, and {source} has none; `vitrail convert --class-names FILE` adds them.",
            field="teacher",
        )
    if missing := [name for name in classes if name not in known]:
        extra = [name for name in known if name not in set(classes)]
        more = f"; it has {_list(extra)}, which the data lack" if extra else ""
        raise ConfigError(
            f"must have all {noun[1]} of the data; {source} lacks {_list(missing)}{more}. Train it on these data, or "
            "rename its classes with `vitrail convert --class-names FILE`.",
            field="teacher",
        )


def check_channels(own: int, shown: int) -> None:
    """Refuse pictures of other channels than the teacher's, unless they are grey, which become RGB."""
    if own != shown and (own, shown) != (3, 1):
        raise ConfigError(f"must take pictures of {counted(shown, 'channel')}; it takes {own}.", field="teacher")


def _check_range(spec: Preprocess, shown: Preprocess) -> None:
    if shown.value_range is not None and spec.value_range != shown.value_range:
        raise ConfigError(
            f"must have the `value_range` of these deep pictures, {shown.value_range}; it has {spec.value_range}.",
            field="teacher",
        )


def describe_extra(teacher: Teacher, dataset: Dataset) -> str:
    """What is left out of the answers of a teacher that has learned more than the data are about; or nothing."""
    known = teacher.predictor.classes or ()
    if len(known) == len(dataset.classes):
        return ""
    noun = teacher.predictor.task.noun
    extra = [name for name in known if name not in set(dataset.classes)]
    return (
        f"the teacher also knows {noun[1]} that the data lack ({_list(extra)}); its answers are about the others only"
    )


def checksum_of(predictor: Predictor, source: str) -> str:
    """SHA-256 of the weights: the same for the same weights in any file; of an export, of its files."""
    if predictor.in_torch:
        return fingerprint({name: tensor.cpu() for name, tensor in predictor.model.state_dict().items()})
    path = locate(source, allow_export=True).path
    assert path is not None
    sums = [sha256_of(file) for file in sorted(map(Path, files_of(path)))]
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")

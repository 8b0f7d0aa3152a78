"""`measure_split`: a predictor over one split. Ranks share the work and each ends with the whole result, exactly."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.chunks import read_samples
from vitrail.data.label_kinds import LABELLINGS, Labels
from vitrail.data.source import Dataset, JoinedSource, Source, refuse_broken
from vitrail.errors import ConfigError, DataError, InputError, suggest
from vitrail.evaluation import ViewName
from vitrail.prediction import Predictor
from vitrail.prediction.results import familiarity_of
from vitrail.progress import Advance
from vitrail.ranks import current_ranks
from vitrail.registry import labels_of
from vitrail.rng import Integers, permutation
from vitrail.tasks.one import One
from vitrail.tasks.one_metrics import Answers, Floats, Metrics, SetScores
from vitrail.tasks.one_scores import OneScores
from vitrail.tasks.task import Results, Task, Trust
from vitrail.threads import map_in_order
from vitrail.wording import counted

HELD_OUT = "held-out"  # the split of what folds measured: each picture by a model that was not trained on it
COVERAGE = 0.95  # of the label sets that are measured unless another is requested
SHIFT = 16  # a shift moves the picture by 1/16 of its side

Singles = np.ndarray[Any, np.dtype[np.float32]]
Booleans = np.ndarray[Any, np.dtype[np.bool_]]
Change = Callable[[Tensor, Integers], Tensor]  # prepared pictures (B, C, H, W) and their indices in the split → others
_Part = tuple[Integers, Singles, dict[str, str]]  # samples, numbers, unreadable pictures


def views(images: Tensor, kind: ViewName | None) -> list[Tensor]:
    """Views of (B, C, H, W), the picture as it is first: mirrored, moved towards four corners, or both."""
    if kind is None:
        return [images]
    check_view(kind)
    moved = [images] if kind == "flip" else [images, *_shifts(images)]
    return moved if kind == "shift" else [*moved, *(view.flip(-1) for view in moved)]


def check_view(kind: ViewName | None) -> None:
    """Refuse an unknown kind of test-time augmentation."""
    if kind is not None and kind not in get_args(ViewName):
        raise ConfigError(f"has no {kind!r}; {suggest(str(kind), get_args(ViewName))}", field="tta")


def count_views(kind: ViewName | None) -> int:
    """How many views of each picture are computed."""
    return len(views(torch.zeros(1, 1, 1, 1), kind))


def _shifts(images: Tensor) -> list[Tensor]:
    height, width = images.shape[-2:]
    down, right = max(height // SHIFT, 1), max(width // SHIFT, 1)
    padded = F.pad(images, (right, right, down, down), mode="replicate")
    corners = [(top, left) for top in (0, 2 * down) for left in (0, 2 * right)]
    return [padded[..., top : top + height, left : left + width] for top, left in corners]


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """What a model predicted for every picture of a split."""

    data: str
    split: str
    classes: tuple[str, ...]  # the names of the outputs, in their order and that of the targets
    samples: Integers  # (N,) indices in the split, ascending
    keys: tuple[str, ...]  # the names of these samples
    logits: Singles  # (N, classes) the model's outputs; with test-time augmentation, averaged as the task says
    targets: Labels  # (N,) classes, or (N, classes)
    task: Task = field(default_factory=One)  # what they mean
    broken: dict[str, str] = field(default_factory=dict[str, str])  # picture → why it could not be read
    seconds: float | None  # None if the features were known already
    trust: Trust | None = None  # what the model's calibration found
    familiarity: Floats | None = None  # (N,) the scores of its `Familiarity`; None if it cannot tell
    coverage: float = COVERAGE  # of the label sets that are measured
    train_counts: tuple[int, ...] = ()  # training pictures with each label; empty: unknown
    folds: tuple[int, ...] | None = None  # of each picture, from 1, if the folds' models were measured
    chose_epoch: bool = False  # the weights are those of the best epoch on this split: optimistic
    tta: ViewName | None = None  # the views whose outputs were averaged; None: each picture as it is
    averaged: "Measurement | None" = None  # the same pictures with test-time augmentation, if that was measured too

    @property
    def described_views(self) -> str:
        """What was averaged."""
        return f"the mean over {counted(count_views(self.tta), 'view')} of each picture ({self.tta})"

    @cached_property
    def results(self) -> Results:
        """What the outputs are worth, as the task sees it."""
        results = self.task.measure(self.logits, self.targets, self.classes, self.trust, self.coverage)
        return results.trained_on(self.train_counts)

    @property
    def metrics(self) -> Any:
        """The numbers: `Metrics` for one class per picture; for another task, what its results offer."""
        return self.results.metrics

    @property
    def answers(self) -> Answers:
        """For one class per picture: the prediction for each picture, its confidence, and its loss."""
        return self._scores("answers").answers

    @property
    def label_sets(self) -> SetScores | None:
        """For one class per picture: how often label sets hold the truth; None without a calibration for them."""
        return self._scores("label_sets").label_sets

    @property
    def uncalibrated(self) -> Metrics:
        """For one class per picture: the metrics as they would be without the calibration."""
        return self._scores("uncalibrated").uncalibrated

    def _scores(self, name: str) -> OneScores:
        if not isinstance(self.results, OneScores):
            raise InputError(f"`{name}` is of one class per picture; this model has the task {self.task.kind}.")
        return self.results

    @cached_property
    def familiar_shares(self) -> Floats | None:
        """(N,) the share of validation pictures that are less familiar than each picture."""
        if self.trust is None or self.trust.familiarity is None or self.familiarity is None:
            return None
        return self.trust.familiarity.shares(self.familiarity)

    @property
    def familiar(self) -> Booleans | None:
        """(N,) whether each picture is like those seen in training."""
        known = None if self.trust is None else self.trust.familiarity
        return None if known is None or self.familiar_shares is None else known.accepts(self.familiar_shares)

    @property
    def images_per_second(self) -> float | None:
        return None if self.seconds is None else len(self.samples) / self.seconds


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Which output of a model is which label of some data.

    Classes are measured in the order of the data. Where each output has a calibration or a unit of its own, the outputs
    stay in the model's order, and the columns of the labels are put into it.
    """

    task: Task
    names: tuple[str, ...]  # in the order of what is measured
    order: list[int]  # of the model's outputs, for each name
    columns: list[int] | None  # of labels (N, C), for each name; None for classes (N,)
    train_counts: tuple[int, ...]  # training pictures with each name

    def targets(self, labels: Labels) -> Labels:
        """The labels of pictures, in the order of the names."""
        return labels if self.columns is None else labels[:, self.columns]


def align_outputs(predictor: Predictor, dataset: Dataset, *, by_position: bool = False) -> Outputs:
    """How a model's outputs and the labels of data fit together; those of another task are an error."""
    check_task(predictor.task, dataset)
    order = align_classes(predictor, dataset.classes, by_position=by_position)
    counts = dataset.labelling.counts(dataset.split("train").labels, len(dataset.classes))
    columns = None
    if predictor.task.labels != "class":
        columns, order = np.argsort(order).tolist(), list(range(len(order)))
    places = range(len(order)) if columns is None else columns
    return Outputs(
        task=predictor.task,
        names=tuple(dataset.classes[place] for place in places),
        order=order,
        columns=columns,
        train_counts=tuple(int(counts[place]) for place in places),
    )


def check_task(task: Task, dataset: Dataset) -> None:
    """Refuse data whose labels are of another kind than those that a model learned."""
    if labels_of(dataset.task) != task.labels:
        learned, have = LABELLINGS[task.labels].what, dataset.labelling.what
        raise DataError(
            f"the model learned {learned} (task {task.kind}); these data have {have}; pass data of the same kind."
        )


def measure_split(
    predictor: Predictor,
    dataset: Dataset,
    split: str = "test",
    *,
    tta: ViewName | None = None,
    change: Change | None = None,
    limit: int | None = None,
    by_position: bool = False,
    progress: Advance = lambda _: None,
) -> Measurement:
    """The predictions for a split.

    Args:
        split: the name of one, or `all` for every picture of the data set.
        tta: views whose outputs are averaged; of one class per picture, their probabilities.
        change: what to do to the prepared pictures, such as a corruption.
        limit: at most this many samples, evenly chosen and always the same.
        by_position: for a checkpoint without class names: its classes are those of the data, in the same order;
            classes that are whole numbers are ordered as numbers.
    """
    outputs = align_outputs(predictor, dataset, by_position=by_position)
    order, source = outputs.order, pick_split(dataset, split)
    samples = choose(len(source), limit)
    known = familiarity_of(predictor, predictor.runtime) if tta is None else None

    def compute(images: Singles) -> Singles:
        if known is not None:
            logits, features = predictor.runtime.logits_and_features(images)
            return np.concatenate(
                [logits[:, order], known.scores(features, logits)[:, None].astype(np.float32)], axis=1
            )
        shown = views(torch.from_numpy(images), tta)
        computed = [predictor.runtime.logits(view.contiguous().numpy()) for view in shown]
        return predictor.task.average(computed)[:, order]

    start = time.perf_counter()
    kept, logits, broken = run(predictor, source, samples, compute, change=change, progress=progress)
    familiarity = None if known is None else logits[:, -1].astype(np.float64)
    logits = np.ascontiguousarray(logits[:, : len(order)])
    refuse_broken(broken, len(samples), dataset.max_broken_rate)
    measurement = make_measurement(dataset, split, outputs, kept, logits, broken, time.perf_counter() - start)
    return replace(measurement, trust=predictor.trust, familiarity=familiarity, tta=tta)


def make_measurement(
    dataset: Dataset,
    split: str,
    outputs: Outputs,
    samples: Integers,
    logits: Singles,
    broken: dict[str, str],
    seconds: float,
) -> Measurement:
    """What a model computed for these samples of a split."""
    source = pick_split(dataset, split)
    return Measurement(
        data=dataset.name,
        split=split,
        classes=outputs.names,
        samples=samples,
        keys=tuple(source.key(int(sample)) for sample in samples),
        logits=logits,
        targets=outputs.targets(source.labels[samples]),
        task=outputs.task,
        train_counts=outputs.train_counts,
        broken=broken,
        seconds=seconds,
    )


def pick_split(dataset: Dataset, split: str) -> Source:
    """One split, or all of them together; those that were held out are the training pictures, by turns."""
    if split == HELD_OUT:
        return dataset.split("train")
    return JoinedSource(list(dataset.splits.values())) if split == "all" else dataset.split(split)


def align_classes(predictor: Predictor, classes: Sequence[str], *, by_position: bool = False) -> list[int]:
    """For each class of the data, its index in the model's head; by name, or by position if that is requested."""
    known = predictor.classes
    if known is None:
        width = predictor.num_classes
        if not width:
            raise DataError(
                f"{predictor.source} has no head, so it names no class; pass `probe=` to measure its features, or "
                f"train a head: vitrail train PICTURES --weights {predictor.source}"
            )
        if by_position and width == len(classes):
            positions = {name: position for position, name in enumerate(order_by_position(classes))}
            return [positions[name] for name in classes]
        if by_position:
            raise DataError(f"the model has {width} classes and the data have {len(classes)}; they must be the same.")
        first = ", ".join(order_by_position(classes)[:3])
        raise DataError(
            f"the checkpoint has no class names, so it is unknown which of its {width} outputs is which; name them "
            f"with `class_names=`, or pass `by_position=True` if they are in the data's order ({first}, …)."
        )
    if by_position:
        raise ConfigError(
            f"is for checkpoints without class names; this one has them ({_list(list(known))}), and "
            "classes are matched by name; omit it.",
            field="by_position",
        )
    missing = sorted(set(classes) - set(known))
    extra = sorted(set(known) - set(classes))
    if missing or extra:
        parts = [f"the data have {_list(missing)}, which the model lacks"] if missing else []
        parts += [f"the model has {_list(extra)}, which the data lack"] if extra else []
        raise DataError(f"the model and the data must have the same classes: {'; '.join(parts)}.")
    return [known.index(name) for name in classes]


def order_by_position(classes: Sequence[str]) -> list[str]:
    """The data's classes in the order that `by_position` assumes: whole numbers as numbers, so that 2 is before 10."""
    if all(name.isascii() and name.isdecimal() and len(name) <= 18 for name in classes):
        return sorted(classes, key=lambda name: (int(name), name))
    return list(classes)


def _list(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def choose(count: int, limit: int | None) -> Integers:
    """All samples, or `limit` of them: always the same ones, in ascending order."""
    if limit is not None and limit < 1:
        raise ConfigError(f"the number of pictures must be at least 1; got {limit}.")
    if not count:
        raise DataError("the split has no pictures.")
    if limit is None or limit >= count:
        return np.arange(count)
    return np.sort(permutation(0, 0, count, "limit")[:limit])


def run(
    predictor: Predictor,
    source: Source,
    samples: Integers,
    compute: Callable[[Singles], Singles],
    *,
    change: Change | None = None,
    progress: Advance = lambda _: None,
) -> _Part:
    """`compute` for the given samples, by all ranks together: (readable samples, their numbers, the other samples).

    Ranks share whole chunks, whose bounds do not depend on the number of ranks: the results are the same to the bit.
    """
    share = current_ranks()
    size = predictor.runtime.batch_size

    def work(number: int) -> _Part:
        images, chunk = read_samples(source, predictor.preprocess, samples[number * size : (number + 1) * size])
        if change is not None and len(images):
            images = change(images, chunk.indices)
        numbers = compute(images.numpy()) if len(images) else np.zeros((0, 0), dtype=np.float32)
        return chunk.indices, numbers, chunk.broken

    parts: list[_Part] = []
    for part in map_in_order(work, share.part(math.ceil(len(samples) / size)), predictor.runtime.threads):
        parts.append(part)
        progress((len(part[0]) + len(part[2])) * share.world_size)
    everything = [part for own in share.gather(parts) for part in own]
    kept = np.concatenate([part[0] for part in everything])
    numbers = [part[1] for part in everything if len(part[0])]
    broken = {key: why for part in everything for key, why in part[2].items()}
    if not numbers:
        refuse_broken(broken, len(samples))
    del parts, everything
    return kept, _join(numbers), broken


def _join(parts: list[Singles]) -> Singles:
    """All rows in one array; each part is released once copied, since together they may be gigabytes."""
    whole = np.empty((sum(map(len, parts)), parts[0].shape[1]), dtype=parts[0].dtype)
    end = len(whole)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole

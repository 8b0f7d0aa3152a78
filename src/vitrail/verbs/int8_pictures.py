"""Which pictures an int8 export is calibrated, chosen and accepted with: three sets that share none."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.data.chunks import Chunk, read_samples
from vitrail.data.source import Dataset, Source, refuse_broken
from vitrail.errors import ConfigError, DataError, WeightsError
from vitrail.evaluation.measurement import choose
from vitrail.evaluation.ood import is_unlabelled, open_unlabelled
from vitrail.registry import labels_of
from vitrail.report.assembly import run_of
from vitrail.rng import Integers
from vitrail.runtimes.int8_trials import ByteImages, CalibrationSet, Goal
from vitrail.threads import map_in_order, num_cores
from vitrail.verbs.call import resolve_dataset
from vitrail.verbs.measured_data import open_with_splits
from vitrail.weights.checkpoint import Checkpoint

RANGES = 300
HELD_OUT = 1000  # at most: one half chooses, the other accepts
CHUNK = 32

Part = tuple[Source, Integers]


def read_calibration(
    calibrate: Dataset | str | Path, checkpoint: Checkpoint, source: str, goal: Goal
) -> CalibrationSet:
    """The pictures, prepared as the checkpoint wants them; those of a run keep the splits of that run."""
    if not checkpoint.config.num_classes:
        raise WeightsError("int8 is accepted by the classes that pictures get, and this checkpoint has no classes.")
    task = checkpoint.task
    classes: tuple[str, ...] | None = None
    if goal.max_loss is not None and task.labels != "class":
        raise ConfigError(
            "is about one class per picture; for this model there is `agreement=` only.", field="max_loss"
        )
    if not isinstance(calibrate, Dataset) and is_unlabelled(Path(calibrate)):
        parts = _parts_of_files(Path(calibrate))
    else:
        dataset, _ = open_with_splits(resolve_dataset(calibrate), run_of(source), checkpoint)
        parts = _parts_of(dataset)
        known = set(checkpoint.classes or ()) if task.labels == labels_of(dataset.task) == "class" else set[str]()
        if set(dataset.classes) <= known:
            classes = dataset.classes
    if classes is None and goal.max_loss is not None:
        raise DataError(
            "needs pictures with labels, named as the classes of the model are; without them there is "
            "`agreement=` only.",
            field="max_loss",
        )
    places = None if classes is None else [(checkpoint.classes or ()).index(name) for name in classes]
    ranges, choosing, accepting = (_prepare(part, checkpoint, places) for part in parts)
    return CalibrationSet(ranges=ranges, choosing=choosing, accepting=accepting)


def _parts_of_files(folder: Path) -> Iterator[Part]:
    """Of pictures without labels: some for the ranges, at most half, and the others held out."""
    source = open_unlabelled(folder)
    ranges = choose(len(source), max(1, min(RANGES, len(source) // 2)))
    rest = np.setdiff1d(np.arange(len(source)), ranges)
    yield source, ranges
    yield from _halves(source, rest)


def _parts_of(dataset: Dataset) -> Iterator[Part]:
    """Of a data set: training pictures for the ranges; validation chooses and test accepts, or the halves of one."""
    held_out = [dataset.splits[name] for name in ("val", "test") if name in dataset.splits]
    if not held_out:
        dataset = dataset.with_validation()
        held_out = [dataset.splits["val"]] if "val" in dataset.splits else []
    train = dataset.split("train")
    yield train, choose(len(train), RANGES)
    if len(held_out) == 2:
        for source in held_out:
            yield source, choose(len(source), HELD_OUT // 2)
    else:
        source = held_out[0] if held_out else train.select([])
        yield from _halves(source, np.arange(len(source)))


def _halves(source: Source, samples: Integers) -> Iterator[Part]:
    """Every other one of up to `HELD_OUT` samples."""
    if len(samples) < 2:
        raise DataError(
            f"int8 needs at least two pictures that are not calibrated with, one to choose by and one to accept by; "
            f"there {'is 1' if len(samples) else 'are none'}."
        )
    some = samples[choose(len(samples), HELD_OUT)]
    yield source, some[::2]
    yield source, some[1::2]


def _prepare(part: Part, checkpoint: Checkpoint, places: list[int] | None) -> ByteImages:
    """Decode and resize on all cores; what cannot be read is left out, if it is little."""
    source, samples = part
    spec = checkpoint.preprocess

    def work(start: int) -> tuple[Tensor, Chunk]:
        return read_samples(source, spec, samples[start : start + CHUNK], torch.uint8)

    parts = list(map_in_order(work, range(0, len(samples), CHUNK), num_cores()))
    refuse_broken({name: why for _, chunk in parts for name, why in chunk.broken.items()}, len(samples))
    labels = source.labels[np.concatenate([chunk.indices for _, chunk in parts])]
    targets = None if places is None else np.asarray(places, dtype=np.int64)[labels]
    return ByteImages(pixels=torch.cat([pixels for pixels, _ in parts]).numpy(), spec=spec, targets=targets)

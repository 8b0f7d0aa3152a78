"""`fit_trust`: how far to trust a model, from pictures that it was not trained on, and from what it was trained on.

It finds what the task makes of the outputs (such as a temperature, and label sets with a guarantee), and which pictures
are unlike the training pictures (`ood`).
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.source import Dataset, refuse_broken
from vitrail.errors import DataError
from vitrail.evaluation.measurement import HELD_OUT, Measurement, Singles, align_outputs, choose, make_measurement, run
from vitrail.evaluation.ood import TRAINING_PICTURES, fit_familiarity, rank_by
from vitrail.prediction import Predictor
from vitrail.progress import Advance
from vitrail.registry import labels_of
from vitrail.rng import Integers
from vitrail.tasks.coverage import FEWEST
from vitrail.tasks.task import Trust
from vitrail.wording import counted


class SplitOutputs(NamedTuple):
    """What a model computes for some pictures of a split."""

    samples: Integers  # (n,) those that can be read
    logits: Singles  # (n, classes) in the order that is measured
    features: Singles  # (n, D)
    broken: dict[str, str]  # the others, and why


Known = Callable[[str, Integers, list[int]], SplitOutputs | None]  # of samples of a split, in the order of the outputs


def nothing_known(split: str, samples: Integers, order: list[int]) -> SplitOutputs | None:
    """Everything has to be computed."""
    return None


def count_pictures(dataset: Dataset, split: str = "val") -> int:
    """How many pictures `fit_trust` looks at."""
    return len(dataset.split(split)) + min(TRAINING_PICTURES, len(dataset.split("train")))


def fit_trust(
    predictor: Predictor,
    dataset: Dataset,
    split: str = "val",
    *,
    by_position: bool = False,
    unsure: bool = False,
    known: Known = nothing_known,
    progress: Advance = lambda _: None,
) -> tuple[Trust, Measurement]:
    """What a calibration on a split finds, and what was measured for it; too few pictures are an error.

    Args:
        unsure: whether the model was trained with outliers, so that familiarity shows in its logits too.
        known: what is known already of these samples of a split, by the order of the outputs; None: nothing is.
    """
    if len(dataset.split(split)) < FEWEST:
        raise DataError(
            f"a calibration needs at least {FEWEST} pictures that were not trained on; {split} has "
            f"{counted(len(dataset.split(split)), 'picture')}."
        )
    outputs = align_outputs(predictor, dataset, by_position=by_position)

    def outputs_of(name: str, limit: int | None = None) -> SplitOutputs:
        samples = choose(len(dataset.split(name)), limit)
        return known(name, samples, outputs.order) or _compute(
            predictor, dataset, name, outputs.order, samples, progress
        )

    start = time.perf_counter()
    kept, logits, features, broken = outputs_of(split)
    seconds = time.perf_counter() - start
    train = outputs_of("train", TRAINING_PICTURES)
    measurement = make_measurement(dataset, split, outputs, kept, logits, broken, seconds)
    trust = predictor.task.calibrate(logits, measurement.targets, outputs.names, f"{dataset.name}, {split}")
    classes = _classes_of(dataset.split("train").labels[train.samples])
    both = (train.logits, logits) if unsure and _has_one_class(dataset) else None
    familiarity = fit_familiarity(train.features, classes, features, both)
    trust = replace(trust, familiarity=familiarity)
    scores = None if familiarity is None else familiarity.scores(features, logits)
    return trust, replace(measurement, familiarity=scores)


def fit_trust_by_others(
    predictor: Predictor,
    dataset: Dataset,
    held_out: Measurement,
    *,
    unsure: bool = False,
    known: Known = nothing_known,
    progress: Advance = lambda _: None,
) -> Trust:
    """A calibration of a model that was trained on all pictures: by the outputs of models like it, each of which was
    measured on pictures that it was not trained on.
    """
    outputs = align_outputs(predictor, dataset)
    trust = predictor.task.calibrate(held_out.logits, held_out.targets, outputs.names, f"{dataset.name}, {HELD_OUT}")
    if held_out.familiarity is None:
        return trust
    samples = choose(len(dataset.split("train")), TRAINING_PICTURES)
    found = known("train", samples, outputs.order)
    found = found or _compute(predictor, dataset, "train", outputs.order, samples, progress)
    labels = _classes_of(dataset.split("train").labels[found.samples])
    both = (found.logits, found.logits) if unsure and _has_one_class(dataset) else None
    familiarity = fit_familiarity(found.features, labels, found.features, both)
    if familiarity is None:
        return trust
    return replace(trust, familiarity=rank_by(familiarity, held_out.familiarity))


def _has_one_class(dataset: Dataset) -> bool:
    """Whether logits that hardly differ show that the model is unsure; of several labels, none may apply."""
    return labels_of(dataset.task) == "class"


def _classes_of(labels: Any) -> Integers:
    """What pictures are grouped by: their classes; all together where they have several labels, or numbers."""
    return labels if labels.ndim == 1 else np.zeros(len(labels), dtype=np.int64)


def _compute(
    predictor: Predictor, dataset: Dataset, split: str, order: list[int], samples: Integers, progress: Advance
) -> SplitOutputs:
    def compute(images: Singles) -> Singles:
        logits, features = predictor.runtime.logits_and_features(images)
        return np.concatenate([logits[:, order], features], axis=1)

    kept, numbers, broken = run(predictor, dataset.split(split), samples, compute, progress=progress)
    refuse_broken(broken, len(samples), dataset.max_broken_rate)
    return SplitOutputs(kept, np.ascontiguousarray(numbers[:, : len(order)]), numbers[:, len(order) :], broken)

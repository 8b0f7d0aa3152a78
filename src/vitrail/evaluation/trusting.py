"""`fit_trust`: how far to trust a model, from pictures that it was not trained on, and from what it was trained on."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vitrail.data.source import Dataset, refuse_broken
from vitrail.errors import DataError
from vitrail.evaluation.confidence import FEWEST, fit_scaling
from vitrail.evaluation.measurement import (
    Floats,
    Measurement,
    align_classes,
    choose,
    run,
)
from vitrail.evaluation.metrics import fit_sets
from vitrail.evaluation.ood import TRAINING_PICTURES, fit_familiarity
from vitrail.prediction import Predictor
from vitrail.rng import Integers
from vitrail.weights.trust import Trust
from vitrail.wording import counted


def count_pictures(dataset: Dataset, split: str = "val") -> int:
    """How many pictures `fit_trust` looks at."""
    return len(dataset.split(split)) + min(TRAINING_PICTURES, len(dataset.split("train")))


class Look(NamedTuple):
    """What a model makes of some pictures of a split."""

    samples: Integers  # (n,) those that can be read
    logits: Floats  # (n, classes) in the order of the data
    features: Floats  # (n, D)
    broken: dict[str, str]  # the others, and why


def fit_trust(
    predictor: Predictor,
    dataset: Dataset,
    split: str = "val",
    *,
    by_position: bool = False,
    known: Callable[[str, Integers, list[int]], Look | None] = lambda _split, _classes, _samples: None,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Trust, Measurement]:
    """What a calibration on a split finds, and what was measured for it; too few pictures are an error.

    Args:
        known: what is known already of these samples of a split, by the order of the classes; None: nothing is.
    """
    source, train = dataset.split(split), dataset.split("train")
    if len(source) < FEWEST:
        raise DataError(
            f"a calibration needs at least {FEWEST} pictures that were not trained on; {split} has "
            f"{counted(len(source), 'picture')}."
        )
    order = align_classes(predictor, dataset.classes, by_position=by_position)

    def look(name: str, limit: int | None = None) -> Look:
        samples = choose(len(dataset.split(name)), limit)
        found = None if known is None else known(name, samples, order)
        return found or _look(predictor, dataset, name, order, samples, progress)

    start = time.perf_counter()
    kept, logits, features, broken = look(split)
    seconds = time.perf_counter() - start
    seen, _, trained_on, _ = look("train", TRAINING_PICTURES)
    measurement = Measurement(
        data=dataset.name,
        split=split,
        classes=dataset.classes,
        samples=kept,
        keys=tuple(source.key(int(sample)) for sample in kept),
        logits=logits,
        targets=source.labels[kept],
        broken=broken,
        seconds=seconds,
    )
    scaling = fit_scaling(logits, measurement.targets)
    if scaling is None:  # some could not be read
        raise DataError(f"a calibration needs at least {FEWEST} pictures; {len(kept)} of {split} could be read.")
    trust = Trust(data=f"{dataset.name}, {split}", pictures=len(kept), **scaling._asdict())
    trust = replace(
        trust,
        sets=fit_sets(logits, measurement.targets, trust),
        familiarity=fit_familiarity(trained_on, train.labels[seen], features),
    )
    strange = trust.familiarity
    return trust, replace(measurement, familiarity=None if strange is None else strange.scores(features))


def _look(
    predictor: Predictor,
    dataset: Dataset,
    split: str,
    order: list[int],
    samples: Integers,
    progress: Callable[[int], None],
) -> Look:
    """By computing it from the pictures."""

    def compute(images: Floats) -> Floats:
        logits, features = predictor.runtime.logits_and_features(images)
        return np.concatenate([logits[:, order], features], axis=1)

    kept, numbers, broken = run(predictor, dataset.split(split), samples, compute, progress=progress)
    refuse_broken(broken, len(samples), dataset.max_broken_rate)
    return Look(kept, np.ascontiguousarray(numbers[:, : len(order)]), numbers[:, len(order) :], broken)

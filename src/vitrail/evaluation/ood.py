"""Out-of-distribution pictures: what is unlike the training pictures, fitted on their features, measured on others."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.pixels import EXTENSIONS
from vitrail.data.source import FileSource, Source, refuse_broken
from vitrail.data.sources.folder import subfolders
from vitrail.evaluation.measurement import Measurement, Singles, choose, run
from vitrail.prediction import Predictor
from vitrail.prediction.results import familiarity_of
from vitrail.progress import Advance
from vitrail.storage import Disk
from vitrail.tasks.familiarity import Familiarity, Packed, Usual, pack, spreads
from vitrail.tasks.one_metrics import Floats, Integers
from vitrail.tasks.rates import Rate, rate

TRAINING_PICTURES = 1000  # whose features are used: more change little
FEWEST = 50
DIRECTIONS = 32
MOST_CENTRES = 100  # classes up to which each has a centre of its own,
FOR_A_CENTRE = 10  # if it has this many pictures
SPREAD_WEIGHT = 1.5  # of what logits say of a model that was trained with outliers, beside the distance
STEPS = 100  # between the quantiles
MOST_OTHERS = 10_000  # other pictures that are compared
PASSING = 0.95  # of the split, where the share of the others that pass is measured


@dataclass(frozen=True, kw_only=True)
class OodScores:
    """How well a model tells the pictures of a split from others, by their familiarity."""

    data: str
    pictures: int
    auroc: float  # how often a picture of the split is more familiar than another; ties count half
    false_positive_rate: float  # the share of the others that pass where 95 % of the split do
    marked: Rate  # the share of the others that the model marks as unfamiliar


def fit_familiarity(
    features: Any, labels: Integers, validation: Any, logits: tuple[Any, Any] | None = None
) -> Familiarity | None:
    """From features of training pictures (N, D) and their labels, and those of validation pictures; None: too few.

    Args:
        logits: those of both, if the model was trained with outliers: they then show what it is unsure of.
    """
    known = np.asarray(features).astype(np.float64)
    if len(known) < FEWEST:
        return None
    counts = np.bincount(labels)
    if len(counts) <= MOST_CENTRES and counts[counts > 0].min() >= FOR_A_CENTRE:
        places = np.unique(labels, return_inverse=True)[1]
        centres = np.stack([known[places == place].mean(axis=0) for place in range(places.max() + 1)])
    else:
        places, centres = np.zeros(len(known), dtype=np.int64), known.mean(axis=0, keepdims=True)
    packed = pack(centres)
    variances, directions, rest = _main_directions(known - packed.values[places])
    fitted = Familiarity(centres=packed, directions=directions, variances=variances, rest=rest, quantiles=(-1.0, 0.0))
    if logits is None:
        return rank_by(fitted, fitted.scores(validation))
    fitted = replace(fitted, usual=_find_usual(fitted, features, logits[0]))
    return rank_by(fitted, fitted.scores(validation, logits[1]))


def _find_usual(known: Familiarity, features: Any, logits: Any) -> Usual | None:
    """What is usual of training pictures; None where they do not differ."""
    distance, spread = np.sqrt(known.squared_distances(features)), spreads(logits)
    if not min(distance.std(), spread.std()) > 0:
        return None
    return Usual(
        distance=float(distance.mean()),
        distance_std=float(distance.std()),
        spread=float(spread.mean()),
        spread_std=float(spread.std()),
        weight=SPREAD_WEIGHT,
    )


def rank_by(known: Familiarity, scores: Floats) -> Familiarity:
    """The same, with the scores of pictures that were not trained on: what is usual."""
    quantiles = np.quantile(scores, np.linspace(0, 1, STEPS + 1))
    return replace(known, quantiles=tuple(quantiles.tolist()))


def _main_directions(offsets: Floats) -> tuple[tuple[float, ...], Packed, float]:
    """The main directions in which features differ from their centre, with the variances, and the mean of the rest."""
    count, width = offsets.shape
    values, vectors = np.linalg.eigh(offsets.T @ offsets / count)  # ascending
    kept = max(1, min(DIRECTIONS, width - 1, count // 10))
    least = max(float(values[-1]) * 1e-9, 1e-12)  # where all features are equal
    variances = tuple(np.maximum(values[::-1][:kept], least).tolist())
    rest = max(float(values[: width - kept].mean()) if width > kept else least, least)
    return variances, pack(vectors[:, ::-1][:, :kept]), rest


def is_unlabelled(path: Path) -> bool:
    """Whether a path is a folder with pictures and no folders in it, which could be classes."""
    return path.is_dir() and not subfolders(Disk(path)) and bool(_picture_names(path))


def open_unlabelled(folder: Path) -> FileSource:
    """The pictures of a folder without classes, by name; they have no labels."""
    names = _picture_names(folder)
    return FileSource(names, np.zeros((len(names), 0)), folder)


def _picture_names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir() if file.suffix.lower() in EXTENSIONS)


def measure_ood(
    predictor: Predictor, name: str, others: Source, measurement: Measurement, *, progress: Advance = lambda _: None
) -> OodScores:
    """The familiarity of other pictures compared with that of the measured ones; the model must be able to tell."""
    known = familiarity_of(predictor, predictor.runtime)
    assert known is not None
    assert measurement.familiarity is not None

    def compute(images: Singles) -> Singles:
        logits, features = predictor.runtime.logits_and_features(images)
        return known.scores(features, logits)[:, None].astype(np.float32)

    samples = choose(len(others), MOST_OTHERS)
    _, scores, broken = run(predictor, others, samples, compute, progress=progress)
    refuse_broken(broken, len(samples))
    return score_ood(name, measurement.familiarity, scores[:, 0].astype(np.float64), known)


def score_ood(data: str, own: Floats, others: Floats, known: Familiarity) -> OodScores:
    """How well scores tell pictures of the split (`own`) from other pictures (`others`)."""
    threshold = np.quantile(own, 1 - PASSING)
    marked = int((~known.accepts(known.shares(others))).sum())
    return OodScores(
        data=data,
        pictures=len(others),
        auroc=area_under_roc(own, others),
        false_positive_rate=float((others >= threshold).mean()),
        marked=rate(marked, len(others)),
    )


def area_under_roc(higher: Floats, lower: Floats) -> float:
    """How often a number of the first is above one of the second; ties count half."""
    ordered = np.sort(lower)
    below = np.searchsorted(ordered, higher, side="left") + np.searchsorted(ordered, higher, side="right")
    return float(below.sum() / (2 * len(higher) * len(lower)))

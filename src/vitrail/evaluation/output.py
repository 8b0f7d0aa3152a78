"""What an evaluation writes to disk: predictions, classes and confusions as CSV files, and the numbers as JSON."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.metrics import Rate, rate
from vitrail.evaluation.ood import Strangers
from vitrail.evaluation.robustness import Robustness
from vitrail.files import Cell, atomic_path, open_csv
from vitrail.weights.trust import is_familiar

COLUMNS = (
    *("picture", "true", "predicted", "score", "true_score", "correct"),
    *("set_size", "in_set", "familiarity", "familiar"),  # empty for a model that was not calibrated
    "error",
)
CURVE = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)  # coverages of which the facts tell what they get
SET_COLUMNS = ("coverage", "coverage_low", "coverage_high", "mean_set_size")
CLASS_COLUMNS = ("class", "precision", "recall", "f1", "pictures", *SET_COLUMNS)
MOST_CLASSES = 1000  # in the facts, the worst ones; classes.csv has them all
MOST_CELLS = 100  # classes up to which the facts hold the confusion matrix; confusion.csv has every pair
MOST_MISTAKES = 100  # pairs of classes in the facts
ROW_BYTES = 400  # per row of predictions.csv, and per class or pair: more than most need


def predictions(measurement: Measurement) -> Iterator[dict[str, Any]]:
    """The prediction for each picture, in the order of the split; unreadable pictures come last, with their error."""
    names, answers = measurement.classes, measurement.answers
    columns = (answers.predicted, measurement.targets, answers.confidence, np.exp(-answers.losses))
    more = _trust_cells(measurement)
    for key, predicted, truth, score, true_score, trusted in zip(measurement.keys, *columns, more, strict=True):
        right = bool(predicted == truth)
        cells = (key, names[truth], names[predicted], float(score), float(true_score), right, *trusted, "")
        yield dict(zip(COLUMNS, cells, strict=True))
    for key, why in measurement.broken.items():
        yield dict.fromkeys(COLUMNS, None) | {"picture": key, "error": why}


def _trust_cells(measurement: Measurement) -> Iterator[tuple[Any, ...]]:
    """For each picture: the size of its label set, whether that holds the truth, its familiarity, and whether it is."""
    sizes: list[Any] = [None] * len(measurement.targets)
    held, shares, familiar = (list(sizes) for _ in range(3))
    if (sets := measurement.label_sets) is not None:
        sizes, held = sets.sizes.tolist(), (measurement.answers.rank < sets.sizes).tolist()
    if measurement.familiar_shares is not None:
        shares, familiar = measurement.familiar_shares.tolist(), is_familiar(measurement.familiar_shares).tolist()
    return zip(sizes, held, shares, familiar, strict=True)


def write_predictions(measurement: Measurement, path: Path, *, raw: bool = False) -> None:
    """One row per picture, in the order of the split; unreadable pictures come last, with their error."""
    with atomic_path(path) as draft, open_csv(draft, COLUMNS, raw=raw) as write:
        for row in predictions(measurement):
            write(_cell(value) for value in row.values())


def _cell(value: Any) -> Cell:
    if isinstance(value, bool):
        return int(value)
    return f"{value:.6f}" if isinstance(value, float) else value


def write_classes(measurement: Measurement, path: Path, *, raw: bool = False) -> None:
    """Precision, recall and F1 of every class, in the data's order; undefined values are empty."""
    scores = measurement.metrics.classes
    with (
        atomic_path(path) as draft,
        open_csv(draft, CLASS_COLUMNS, raw=raw) as (write),
    ):
        for index, name in enumerate(measurement.classes):
            rates = (scores.precision[index], scores.recall[index], scores.f1[index], *class_sets(measurement, index))
            cells = ["" if math.isnan(value) else f"{value:.6f}" for value in rates]
            write((name, *cells[:3], int(scores.support[index]), *cells[3:]))


class ClassSets(NamedTuple):
    """How often the label sets of a class hold the truth, with its interval, and their mean size."""

    coverage: float = math.nan
    low: float = math.nan
    high: float = math.nan
    mean_size: float = math.nan


def class_sets(measurement: Measurement, index: int) -> ClassSets:
    """The label sets of a class; NaN where nobody knows."""
    sets = measurement.label_sets
    if sets is None or (held := sets.classes[index]) is None:
        return ClassSets()
    return ClassSets(held.value, held.low, held.high, float(sets.class_sizes[index]))


def write_confusion(measurement: Measurement, path: Path, *, raw: bool = False) -> None:
    """How often each class was taken for each other: the pairs that occurred, ordered by the true class."""
    confusion, names = measurement.metrics.confusion, measurement.classes
    with atomic_path(path) as draft, open_csv(draft, ("true", "predicted", "pictures"), raw=raw) as write:
        for truth, predicted, count in zip(confusion.targets, confusion.predicted, confusion.counts, strict=True):
            write((names[truth], names[predicted], int(count)))


def disk_bytes(num_pictures: int, num_classes: int) -> int:
    """About how many bytes these files and the facts will need: a row per picture, class and pair."""
    pairs = min(num_pictures, num_classes * num_classes)
    return ROW_BYTES * (num_pictures + pairs + num_classes + min(num_classes, MOST_CLASSES) + MOST_CELLS**2)


def write_facts(numbers: dict[str, Any], path: Path) -> None:
    """The numbers as JSON; an existing file is replaced only once the new one is complete."""
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(numbers, indent=2), encoding="utf-8")


def facts(measurement: Measurement) -> dict[str, Any]:
    """The numbers of an evaluation; undefined values are None. Of very many classes, only the worst, no matrix."""
    metrics = measurement.metrics
    scores = metrics.classes
    indices = range(len(measurement.classes))
    if len(indices) > MOST_CLASSES:
        indices = worst_first(scores.f1.tolist())[:MOST_CLASSES]
    per_class = [
        {
            "name": measurement.classes[index],
            "precision": number(scores.precision[index]),
            "recall": number(scores.recall[index]),
            "f1": number(scores.f1[index]),
            "support": int(scores.support[index]),
            **dict(zip(SET_COLUMNS, map(number, class_sets(measurement, index)), strict=True)),
        }
        for index in indices
    ]
    mistakes = confusions(measurement, MOST_MISTAKES)
    return {
        "data": measurement.data,
        "split": measurement.split,
        "split_chose_epoch": measurement.chose_epoch,
        "pictures": len(measurement.targets),
        "broken": measurement.broken,
        "top1": rate_facts(metrics.top1),
        "top5": None if metrics.top5 is None else rate_facts(metrics.top5),
        "balanced_accuracy": number(metrics.balanced_accuracy),
        "macro_f1": number(metrics.macro_f1),
        "nll": metrics.nll,
        "brier": metrics.brier,
        "calibration_error": metrics.calibration.error,
        "calibration_error_before": measurement.uncalibrated.calibration.error,
        "calibration": None if measurement.trust is None else measurement.trust.facts(),
        "label_sets": set_facts(measurement),
        "familiarity": familiarity_facts(measurement),
        "images_per_second": measurement.images_per_second,
        "num_classes": len(measurement.classes),
        "classes": per_class,
        "confusion": np.asarray(metrics.confusion).tolist() if len(measurement.classes) <= MOST_CELLS else None,
        "mistakes": [{"true": truth, "predicted": predicted, "count": count} for truth, predicted, count in mistakes],
    }


def set_facts(measurement: Measurement) -> dict[str, Any] | None:
    """Label sets as JSON: at the coverage that was requested, and a curve over others."""
    sets = measurement.label_sets
    if sets is None or measurement.trust is None or measurement.trust.sets is None:
        return None
    levels = [level for level in CURVE if level <= measurement.trust.sets.levels[-1]]
    curve = [each for level in levels if (each := measurement.label_sets_at(level)) is not None]
    return {
        "requested": sets.requested,
        "coverage": rate_facts(sets.coverage),
        "mean_size": sets.mean_size,
        "curve": [
            {"requested": each.requested, "coverage": rate_facts(each.coverage), "mean_size": each.mean_size}
            for each in curve
        ],
    }


def familiarity_facts(measurement: Measurement) -> dict[str, Any] | None:
    """Familiarity as JSON: how many pictures are marked, and how accurate the model is on these and on the others."""
    familiar = measurement.familiar
    if familiar is None:
        return None
    right = measurement.answers.predicted == measurement.targets
    parts = {"top1_of_familiar": right[familiar], "top1_of_unfamiliar": right[~familiar]}
    return {
        "unfamiliar": rate_facts(rate(int((~familiar).sum()), len(familiar))),
        **{name: rate_facts(rate(int(part.sum()), len(part))) if len(part) else None for name, part in parts.items()},
    }


def stranger_facts(strangers: Strangers) -> dict[str, Any]:
    """How well the split is told from other pictures, as JSON."""
    return asdict(strangers)


def rate_facts(share: Rate) -> dict[str, Any]:
    """A rate as JSON."""
    return asdict(share)


def robustness_facts(robustness: Robustness) -> dict[str, Any]:
    """Accuracy under corruptions as JSON."""
    return {
        "pictures": robustness.clean.total,
        "clean": rate_facts(robustness.clean),
        "mean": robustness.mean,
        "curves": {kind: [rate_facts(each) for each in curve] for kind, curve in robustness.curves.items()},
    }


def number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else float(value)


def confusions(measurement: Measurement, count: int) -> list[tuple[str, str, int]]:
    """The most frequent mistakes: (true class, what it was taken for, how often)."""
    names = measurement.classes
    mistakes = measurement.metrics.confusion.mistakes(count)
    return [(names[truth], names[predicted], often) for truth, predicted, often in mistakes]


def worst_first(values: Sequence[float]) -> list[int]:
    """The indices of the values from the lowest to the highest, undefined ones last."""
    return sorted(range(len(values)), key=lambda index: (math.isnan(values[index]), values[index]))

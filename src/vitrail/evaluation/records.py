"""What an evaluation writes to disk: predictions, classes and confusions as CSV files, and the numbers as JSON."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.metrics import Rate
from vitrail.evaluation.robustness import Robustness
from vitrail.files import atomic_path
from vitrail.tables import Cell, open_table

COLUMNS = ("picture", "true", "predicted", "score", "true_score", "correct", "error")
MOST_CLASSES = 1000  # in the facts, the worst ones; classes.csv has them all
MOST_CELLS = 100  # classes up to which the facts hold the confusion matrix; confusion.csv has every pair
MOST_MISTAKES = 100  # pairs of classes in the facts
ROW_BYTES = 400  # per row of predictions.csv, and per class or pair: more than most need


def predictions(measurement: Measurement) -> Iterator[dict[str, Any]]:
    """The prediction for each picture, in the order of the split; unreadable pictures come last, with their error."""
    names, answers = measurement.classes, measurement.answers
    columns = (answers.predicted, measurement.targets, answers.confidence, np.exp(-answers.losses))
    for key, predicted, truth, score, true_score in zip(measurement.keys, *columns, strict=True):
        right = bool(predicted == truth)
        cells = (key, names[truth], names[predicted], float(score), float(true_score), right, "")
        yield dict(zip(COLUMNS, cells, strict=True))
    for key, why in measurement.broken.items():
        yield dict.fromkeys(COLUMNS, None) | {"picture": key, "error": why}


def write_predictions(measurement: Measurement, path: Path, *, raw: bool = False) -> None:
    """One row per picture, in the order of the split; unreadable pictures come last, with their error."""
    with atomic_path(path) as draft, open_table(draft, COLUMNS, raw=raw) as write:
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
        open_table(draft, ("class", "precision", "recall", "f1", "pictures"), raw=raw) as (write),
    ):
        for index, name in enumerate(measurement.classes):
            rates = (scores.precision[index], scores.recall[index], scores.f1[index])
            write((name, *("" if math.isnan(value) else f"{value:.6f}" for value in rates), int(scores.support[index])))


def write_confusion(measurement: Measurement, path: Path, *, raw: bool = False) -> None:
    """How often each class was taken for each other: the pairs that occurred, ordered by the true class."""
    confusion, names = measurement.metrics.confusion, measurement.classes
    with atomic_path(path) as draft, open_table(draft, ("true", "predicted", "pictures"), raw=raw) as write:
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
        "images_per_second": measurement.images_per_second,
        "num_classes": len(measurement.classes),
        "classes": per_class,
        "confusion": np.asarray(metrics.confusion).tolist() if len(measurement.classes) <= MOST_CELLS else None,
        "mistakes": [{"true": truth, "predicted": predicted, "count": count} for truth, predicted, count in mistakes],
    }


def rate_facts(rate: Rate) -> dict[str, Any]:
    """A rate as JSON."""
    return asdict(rate)


def robustness_facts(robustness: Robustness) -> dict[str, Any]:
    """Accuracy under corruptions as JSON."""
    return {
        "pictures": robustness.clean.total,
        "clean": rate_facts(robustness.clean),
        "mean": robustness.mean,
        "curves": {kind: [rate_facts(rate) for rate in curve] for kind, curve in robustness.curves.items()},
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

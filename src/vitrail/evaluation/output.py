"""What an evaluation writes to disk: predictions, classes and confusions as CSV files, the numbers as JSON, figures."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.canvas import save_figure
from vitrail.data.source import Dataset
from vitrail.evaluation import plots
from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.robustness import Robustness
from vitrail.files import Cell, atomic_path, open_csv
from vitrail.tasks.one_metrics import SetScores
from vitrail.tasks.rates import rate

COLUMNS = (
    *("picture", "true", "predicted", "score", "true_score", "correct"),
    *("set_size", "in_set", "familiarity", "familiar"),  # empty for a model that was not calibrated
    "error",
)
SET_COLUMNS = ("coverage", "coverage_low", "coverage_high", "mean_set_size")
CLASS_COLUMNS = ("class", "precision", "recall", "f1", "pictures", *SET_COLUMNS)
MOST_CLASSES = 1000  # in the facts, the worst ones; classes.csv has them all
MOST_CELLS = 100  # classes up to which the facts hold the confusion matrix; confusion.csv has every pair
MOST_MISTAKES = 100  # pairs of classes in the facts
ROW_BYTES = 400  # per row of predictions.csv, and per class or pair: more than most need


def write_evaluation(folder: Path, measurement: Measurement, dataset: Dataset, *, raw: bool = False) -> list[Path]:
    """The predictions, classes and confusions as CSV files, and the figures as files of their own."""
    metrics = measurement.metrics
    chose = " (also chose the epoch)" if measurement.chose_epoch else ""
    title = f"{measurement.data}, {measurement.split}{chose}: top-1 {metrics.top1.value:.1%} of {metrics.top1.total:,}"
    tables = {"predictions.csv": write_predictions, "classes.csv": write_classes, "confusion.csv": write_confusion}
    for name, write in tables.items():
        write(measurement, folder / name, raw=raw)
    matrix, reliability, mistakes = (
        folder / name for name in ("confusion_matrix.png", "reliability.png", "top_losses.jpg")
    )
    save_figure(plots.confusion_figure(metrics.confusion, measurement.classes, title), matrix)
    save_figure(plots.reliability_figure(metrics.calibration, title), reliability)
    with atomic_path(mistakes) as draft:
        plots.mistakes_sheet(measurement, dataset).save(draft, quality=92)
    return [*(folder / name for name in tables), matrix, reliability, mistakes]


def disk_bytes(num_pictures: int, num_classes: int) -> int:
    """About how many bytes these files and the facts will need: a row per picture, class and pair."""
    pairs = min(num_pictures, num_classes * num_classes)
    return ROW_BYTES * (num_pictures + pairs + num_classes + min(num_classes, MOST_CLASSES) + MOST_CELLS**2)


def predictions(measurement: Measurement) -> Iterator[dict[str, Any]]:
    """The prediction for each picture, in the order of the split; unreadable pictures come last, with their error."""
    names, answers, sets = measurement.classes, measurement.answers, measurement.label_sets
    in_sets = (None, None) if sets is None else (sets.sizes, answers.rank < sets.sizes)
    numbers = (answers.confidence, np.exp(-answers.losses), answers.correct)
    optional = (*in_sets, measurement.familiar_shares, measurement.familiar)
    columns = (
        [names[truth] for truth in measurement.targets],
        [names[predicted] for predicted in answers.predicted],
        *([None] * len(answers.rank) if column is None else column.tolist() for column in (*numbers, *optional)),
    )
    for cells in zip(measurement.keys, *columns, strict=True):
        yield dict(zip(COLUMNS, (*cells, ""), strict=True))
    for key, why in measurement.broken.items():
        yield dict.fromkeys(COLUMNS, None) | {"picture": key, "error": why}


def write_predictions(measurement: Measurement, path: Path, *, raw: bool = False) -> None:
    """One row per picture, in the order of the split; unreadable pictures come last, with their error."""
    _write_table(path, COLUMNS, (row.values() for row in predictions(measurement)), raw=raw)


def write_classes(measurement: Measurement, path: Path, *, raw: bool = False) -> None:
    """Precision, recall and F1 of every class, in the data's order; undefined values are empty."""
    rows = (_class_facts(measurement, index).values() for index in range(len(measurement.classes)))
    _write_table(path, CLASS_COLUMNS, rows, raw=raw)


def write_confusion(measurement: Measurement, path: Path, *, raw: bool = False) -> None:
    """How often each class was taken for each other: the pairs that occurred, ordered by the true class."""
    confusion, names = measurement.metrics.confusion, measurement.classes
    pairs = zip(confusion.targets, confusion.predicted, confusion.counts.tolist(), strict=True)
    rows = ((names[truth], names[predicted], count) for truth, predicted, count in pairs)
    _write_table(path, ("true", "predicted", "pictures"), rows, raw=raw)


def _write_table(path: Path, head: Sequence[str], rows: Iterable[Iterable[Any]], *, raw: bool) -> None:
    with atomic_path(path) as draft, open_csv(draft, head, raw=raw) as write:
        for row in rows:
            write(map(_cell, row))


def _cell(value: Any) -> Cell:
    if isinstance(value, bool):
        return int(value)
    return f"{value:.6f}" if isinstance(value, float) else value


def write_facts(numbers: dict[str, Any], path: Path) -> None:
    """The numbers as JSON; an existing file is replaced only once the new one is complete."""
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(numbers, indent=2), encoding="utf-8")


def facts(measurement: Measurement) -> dict[str, Any]:
    """The numbers of an evaluation; undefined values are None. Of very many classes, only the worst, no matrix."""
    metrics, indices = measurement.metrics, range(len(measurement.classes))
    if len(indices) > MOST_CLASSES:
        indices = worst_first(metrics.classes.f1.tolist())[:MOST_CLASSES]
    mistakes = confusions(measurement, MOST_MISTAKES)
    return {
        "data": measurement.data,
        "split": measurement.split,
        "split_chose_epoch": measurement.chose_epoch,
        "pictures": len(measurement.targets),
        "broken": measurement.broken,
        "top1": asdict(metrics.top1),
        "top5": None if metrics.top5 is None else asdict(metrics.top5),
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
        "classes": [_class_facts(measurement, index) for index in indices],
        "confusion": np.asarray(metrics.confusion).tolist() if len(measurement.classes) <= MOST_CELLS else None,
        "mistakes": [dict(zip(("true", "predicted", "count"), mistake, strict=True)) for mistake in mistakes],
    }


def _class_facts(measurement: Measurement, index: int) -> dict[str, Any]:
    scores = measurement.metrics.classes
    return {
        "name": measurement.classes[index],
        "precision": number(scores.precision[index]),
        "recall": number(scores.recall[index]),
        "f1": number(scores.f1[index]),
        "support": int(scores.support[index]),
        **dict(zip(SET_COLUMNS, map(number, class_sets(measurement, index)), strict=True)),
    }


class ClassSets(NamedTuple):
    """How often the label sets of a class hold the truth, with its interval, and their mean size."""

    coverage: float = math.nan
    low: float = math.nan
    high: float = math.nan
    mean_size: float = math.nan


def class_sets(measurement: Measurement, index: int) -> ClassSets:
    """The label sets of a class; NaN without label sets, and for a class without pictures."""
    sets = measurement.label_sets
    if sets is None or (held := sets.classes[index]) is None:
        return ClassSets()
    return ClassSets(held.value, held.low, held.high, float(sets.class_sizes[index]))


def set_facts(measurement: Measurement) -> dict[str, Any] | None:
    """Label sets as JSON: at the coverage that was requested, and a curve over others."""

    def describe(sets: SetScores) -> dict[str, Any]:
        return {"requested": sets.requested, "coverage": asdict(sets.coverage), "mean_size": sets.mean_size}

    if measurement.label_sets is None:
        return None
    return {**describe(measurement.label_sets), "curve": [describe(sets) for sets in measurement.coverage_curve()]}


def familiarity_facts(measurement: Measurement) -> dict[str, Any] | None:
    """Familiarity as JSON: how many pictures are marked, and how accurate the model is on these and on the others."""
    familiar, correct = measurement.familiar, measurement.answers.correct
    if familiar is None:
        return None
    parts = {"top1_of_familiar": correct[familiar], "top1_of_unfamiliar": correct[~familiar]}
    return {
        "unfamiliar": asdict(rate(int((~familiar).sum()), len(familiar))),
        **{name: asdict(rate(int(part.sum()), len(part))) if len(part) else None for name, part in parts.items()},
    }


def robustness_facts(robustness: Robustness) -> dict[str, Any]:
    """Accuracy under corruptions as JSON."""
    return {
        "pictures": robustness.clean.total,
        "clean": asdict(robustness.clean),
        "mean": robustness.mean,
        "curves": {kind: [asdict(each) for each in curve] for kind, curve in robustness.curves.items()},
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

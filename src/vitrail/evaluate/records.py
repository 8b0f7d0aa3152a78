"""What an evaluation leaves on disk: every answer as a CSV, and the numbers as JSON-ready facts."""

import csv
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.evaluate.evaluation import Evaluation
from vitrail.evaluate.metrics import Rate, log_softmax
from vitrail.weights.files import atomic_path

COLUMNS = ("picture", "true", "predicted", "score", "true_score", "correct", "error")


def write_predictions(evaluation: Evaluation, path: Path) -> None:
    """One row per picture, in the order of the split; those that could not be read come last, with their error."""
    probabilities = np.exp(log_softmax(evaluation.logits.astype(np.float64)))
    with atomic_path(path) as draft, draft.open("w", encoding="utf-8", newline="", errors="surrogateescape") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for key, truth, row in zip(evaluation.keys, evaluation.targets, probabilities, strict=True):
            best = int(row.argmax())
            names = (evaluation.classes[truth], evaluation.classes[best])
            rows.writerow((key, *names, f"{row[best]:.6f}", f"{row[truth]:.6f}", int(best == truth), ""))
        for key, why in evaluation.broken.items():
            rows.writerow((key, "", "", "", "", "", why))


def write_facts(told: dict[str, Any], path: Path) -> None:
    """The numbers as JSON; a file that was there before stays whole until this one is."""
    with atomic_path(path) as draft:
        draft.write_text(json.dumps(told, indent=2), encoding="utf-8")


def facts(evaluation: Evaluation) -> dict[str, Any]:
    """The numbers of an evaluation; what is undefined is None."""
    metrics = evaluation.metrics
    scores = metrics.classes
    per_class = [
        {
            "name": name,
            "precision": number(scores.precision[place]),
            "recall": number(scores.recall[place]),
            "f1": number(scores.f1[place]),
            "support": int(scores.support[place]),
        }
        for place, name in enumerate(evaluation.classes)
    ]
    return {
        "data": evaluation.data,
        "split": evaluation.split,
        "pictures": len(evaluation.targets),
        "broken": evaluation.broken,
        "top1": rate_facts(metrics.top1),
        "top5": None if metrics.top5 is None else rate_facts(metrics.top5),
        "balanced_accuracy": number(metrics.balanced_accuracy),
        "macro_f1": number(metrics.macro_f1),
        "nll": metrics.nll,
        "brier": metrics.brier,
        "calibration_error": metrics.calibration.error,
        "images_per_second": evaluation.images_per_second,
        "classes": per_class,
        "confusion": metrics.confusion.tolist(),
    }


def rate_facts(rate: Rate) -> dict[str, Any]:
    """A rate as JSON."""
    return asdict(rate)


def number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else float(value)


def confusions(evaluation: Evaluation, count: int) -> list[tuple[str, str, int]]:
    """The most frequent mistakes: (true class, what it was taken for, how often)."""
    wrong = evaluation.metrics.confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    places = [divmod(int(cell), len(wrong)) for cell in order]
    names = evaluation.classes
    return [(names[row], names[column], int(wrong[row, column])) for row, column in places if wrong[row, column]]

"""What an evaluation writes to disk: predictions and the task's tables as CSV files, the numbers as JSON, figures."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitrail.canvas import LIGHT, save_figure
from vitrail.data.source import Dataset
from vitrail.evaluation import plots
from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.robustness import Robustness
from vitrail.files import Cell, atomic_path, open_csv
from vitrail.tasks.rates import rate

FAMILIARITY = ("familiarity", "familiar")  # empty for a model that was not calibrated
MOST_FACTS = 1000  # classes or labels in metrics.json
MOST_CELLS = 100  # classes whose confusion matrix is in metrics.json
ROW_BYTES = 400  # per row of predictions.csv, and per class or pair: more than most need


def write_evaluation(folder: Path, measurement: Measurement, dataset: Dataset, *, raw: bool = False) -> list[Path]:
    """The predictions and the task's tables as CSV files, and the figures as files of their own."""
    results = measurement.results
    chose = " (also chose the epoch)" if measurement.chose_epoch else ""
    title = f"{measurement.data}, {measurement.split}{chose}: {results.title()}"
    paths = [folder / "predictions.csv", *write_tables(measurement, folder, raw=raw)]
    write_predictions(measurement, paths[0], raw=raw)
    for name, drawing in results.drawings(title).items():
        paths.append(folder / name)
        save_figure(drawing.draw(LIGHT), paths[-1])
    paths.append(folder / "top_losses.jpg")
    with atomic_path(paths[-1]) as draft:
        plots.mistakes_sheet(measurement, dataset).save(draft, quality=92)
    return paths


def disk_bytes(num_pictures: int, num_classes: int) -> int:
    """About how many bytes these files and the facts will need: a row per picture, class and pair."""
    pairs = min(num_pictures, num_classes * num_classes)
    return ROW_BYTES * (num_pictures + pairs + num_classes + min(num_classes, MOST_FACTS) + MOST_CELLS**2)


def columns(measurement: Measurement) -> tuple[str, ...]:
    """The columns of predictions.csv."""
    fold = () if measurement.folds is None else ("fold",)
    return ("picture", *fold, *measurement.results.columns(), *FAMILIARITY, "error")


def predictions(measurement: Measurement) -> Iterator[dict[str, Any]]:
    """The prediction for each picture, in the order of the split; unreadable pictures come last, with their error."""
    names, count = columns(measurement), len(measurement.samples)
    known = (measurement.familiar_shares, measurement.familiar)
    shares, familiar = ([None] * count if column is None else column.tolist() for column in known)
    folds = [()] * count if measurement.folds is None else [(fold,) for fold in measurement.folds]
    every = zip(measurement.keys, folds, measurement.results.predictions(), shares, familiar, strict=True)
    for key, fold, cells, *rest in every:
        yield dict(zip(names, (key, *fold, *cells, *rest, ""), strict=True))
    for key, why in measurement.broken.items():
        yield dict.fromkeys(names, None) | {"picture": key, "error": why}


def write_predictions(measurement: Measurement, path: Path, *, raw: bool = False) -> None:
    """One row per picture, in the order of the split; unreadable pictures come last, with their error."""
    rows = (list(row.values()) for row in predictions(measurement))
    _write_table(path, columns(measurement), rows, raw=raw)


def write_tables(measurement: Measurement, folder: Path, *, raw: bool = False) -> list[Path]:
    """The task's other tables, such as classes.csv; undefined values are empty."""
    tables = measurement.results.tables()
    for name, (head, rows) in tables.items():
        _write_table(folder / name, head, rows, raw=raw)
    return [folder / name for name in tables]


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
    """The numbers of an evaluation; undefined values are None. Of other tasks than one, also their rows, as texts."""
    results, task, trust = measurement.results, {}, measurement.trust
    if measurement.task.kind != "one":
        task = {"task": measurement.task.kind, "summary": dict(results.rows())}
    numbers = results.facts()
    if trust is not None:
        numbers.setdefault("calibration", trust.facts())
    return {
        "data": measurement.data,
        "split": measurement.split,
        **task,
        "split_chose_epoch": measurement.chose_epoch,
        "pictures": len(measurement.targets),
        "broken": measurement.broken,
        **numbers,
        **({} if measurement.averaged is None else {"with_tta": measurement.averaged.results.facts()}),
        "familiarity": familiarity_facts(measurement),
        "images_per_second": measurement.images_per_second,
        **results.details(),
    }


def familiarity_facts(measurement: Measurement) -> dict[str, Any] | None:
    """Familiarity as JSON: how many pictures are marked, and how many of these and of the others are right."""
    familiar, right = measurement.familiar, measurement.results.right()
    if familiar is None:
        return None
    numbers: dict[str, Any] = {"unfamiliar": asdict(rate(int((~familiar).sum()), len(familiar)))}
    if right is None:
        return numbers
    for name, which in (("familiar", familiar), ("unfamiliar", ~familiar)):
        part = right.pictures[which]
        numbers[f"{right.key}_of_{name}"] = asdict(rate(int(part.sum()), len(part))) if len(part) else None
    return numbers


def robustness_facts(robustness: Robustness) -> dict[str, Any]:
    """The metric under corruptions as JSON."""
    return {
        "pictures": robustness.pictures,
        "clean": asdict(robustness.clean),
        "mean": robustness.mean,
        "curves": {kind: [asdict(each) for each in curve] for kind, curve in robustness.curves.items()},
    }

"""The report of an evaluation, and the files beside it."""

from pathlib import Path
from typing import Any

from vitrail.data.source import Dataset
from vitrail.environment import environment
from vitrail.evaluation import plots, records
from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.mistakes import mistakes_sheet
from vitrail.files import atomic_path
from vitrail.report.assembly import Story
from vitrail.report.commands import data_arguments, eval_commands
from vitrail.report.sections import check_blocks
from vitrail.training.history import data_check, trained_on

TABLES = {
    "predictions.csv": records.write_predictions,
    "classes.csv": records.write_classes,
    "confusion.csv": records.write_confusion,
}


def write_evaluation(folder: Path, measurement: Measurement, dataset: Dataset, *, raw: bool = False) -> list[Path]:
    """The predictions, classes and confusions as CSV files, and the figures as files of their own."""
    metrics = measurement.metrics
    chose = " (also chose the epoch)" if measurement.chose_epoch else ""
    title = f"{measurement.data}, {measurement.split}{chose}: top-1 {metrics.top1.value:.1%} of {metrics.top1.total:,}"
    for name, write in TABLES.items():
        write(measurement, folder / name, raw=raw)
    paths = [folder / name for name in ("confusion_matrix.png", "reliability.png", "top_losses.jpg")]
    plots.save_figure(plots.confusion_figure(metrics.confusion, measurement.classes, title), paths[0])
    plots.save_figure(plots.reliability_figure(metrics.calibration, title), paths[1])
    with atomic_path(paths[2]) as draft:
        mistakes_sheet(measurement, dataset).save(draft, quality=92)
    return [*(folder / name for name in TABLES), *paths]


def story_of_eval(
    source: str, data: str, run: Path, *, arguments: dict[str, Any], settings: dict[str, Any], split_from: str
) -> Story:
    """What the report of an evaluation shows besides the numbers; for a model from a run, also its curves.

    `arguments` are the settings that were passed, by name: what it takes to measure again.
    """
    machine = environment()
    del machine["command"]  # there is none in Python; `arguments` hold how to measure again
    where = data_arguments(data, arguments.get("data_dir"))
    return Story(
        model=source,
        commands=eval_commands(source, where, arguments, machine),
        settings=settings,
        environment=machine,
        run=run if (run / "results.csv").is_file() else None,
        split_from=split_from,
        check=check_blocks(data_check(run, data), data) if trained_on(run, data) else (),
    )

"""The report of a training run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.data.check.record import RECORD, read_record
from vitrail.data.source import Dataset
from vitrail.evaluation.measurement import Measurement, measure_split, pick_split
from vitrail.evaluation.records import facts, write_facts
from vitrail.prediction import Predictor, load
from vitrail.progress import Progress, silent
from vitrail.report.assembly import REPORT, Story, write_page
from vitrail.report.commands import data_arguments, run_commands
from vitrail.report.evaluations import write_evaluation
from vitrail.report.sections import check_blocks
from vitrail.schema import to_dict
from vitrail.training.history import chose_epoch
from vitrail.training.run import read_config


def report_on_run(
    folder: Path,
    dataset: Dataset,
    device: str = "auto",
    *,
    measurement: Measurement | None = None,
    progress: Progress = silent,
) -> list[Path]:
    """Write the report of a finished run, its figures and tables beside it, and the numbers into its metrics.json.

    The best weights are measured on test, or else val, unless that `measurement` exists already. A single process does
    this, after the ranks have disconnected.
    """
    config = read_config(folder)
    predictor = load(folder, device=device)
    measurement = measurement or _measure(predictor, dataset, progress)
    paths: list[Path] = []
    if measurement is not None:
        measurement = replace(measurement, chose_epoch=chose_epoch(folder, config.data, measurement.split))
        paths = write_evaluation(folder, measurement, dataset)
        numbers = _read_json(folder / "metrics.json") | {"evaluation": facts(measurement)}
        write_facts(numbers, folder / "metrics.json")
    environment = _read_json(folder / "env.json")
    story = Story(
        model=config.start.model or Path(config.start.weights or "").name,
        commands=run_commands(folder, data_arguments(config.data, config.source.data_dir), environment),
        settings=to_dict(config),
        environment=environment,
        run=folder,
        check=check_blocks(read_record(folder / RECORD), config.data),
    )
    return [write_page(folder / REPORT, story, predictor, dataset, measurement), *paths]


def run_of(source: str) -> Path:
    """The run folder of a checkpoint: itself, or for a file the one whose `weights` folder contains it."""
    weights = Path(source).absolute().parent
    return weights.parent if weights.name == "weights" and Path(source).is_file() else Path(source)


def _measure(predictor: Predictor, dataset: Dataset, progress: Progress) -> Measurement | None:
    """The model on the pictures that were held out, if any were."""
    split = next((name for name in ("test", "val") if name in dataset.splits), None)
    if split is None:
        return None
    with progress("evaluating", len(pick_split(dataset, split))) as advance:
        return measure_split(predictor, dataset, split, progress=advance)


def _read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}

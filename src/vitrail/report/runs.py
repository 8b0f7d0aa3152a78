"""The report of a training run."""

# pyright: reportPrivateUsage=false

from dataclasses import replace
from pathlib import Path

from vitrail.cli import report  # until the report is a room of its own
from vitrail.data.check.record import RECORD, read_record
from vitrail.data.source import Dataset
from vitrail.evaluation.evaluation import Evaluation as Measurement
from vitrail.evaluation.evaluation import evaluate, pick_split
from vitrail.evaluation.records import facts, write_facts
from vitrail.evaluation.sections import check_blocks
from vitrail.prediction import load
from vitrail.progress import Progress, silent
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
    """Write the report of a finished run and the figures beside it; the weights are measured on test, or else val."""
    config = read_config(folder)
    predictor = load(folder, device=device)
    split = next((name for name in ("test", "val") if name in dataset.splits), None)
    if measurement is None and split is not None:
        with progress("evaluating", len(pick_split(dataset, split))) as advance:
            measurement = evaluate(predictor, dataset, split, progress=advance)
    paths: list[Path] = []
    if measurement is not None:
        measurement = replace(measurement, chose_epoch=chose_epoch(folder, config.data, measurement.split))
        paths = report.write_evaluation(folder, measurement, dataset)
        numbers = report._read_json(folder / "metrics.json") | {"evaluation": facts(measurement)}
        write_facts(numbers, folder / "metrics.json")
    story = report.Story(
        model=config.start.model or Path(config.start.weights or "").name,
        commands=report._run_commands(folder, config.data, config.source.data_dir),
        settings=to_dict(config),
        environment=report._read_json(folder / "env.json"),
        run=folder,
        check=check_blocks(read_record(folder / RECORD), config.data),
    )
    return [report.write_page(folder, story, predictor, dataset, measurement), *paths]

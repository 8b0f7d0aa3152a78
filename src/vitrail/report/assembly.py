"""A whole report page, with everything that is known about a model: of a training run, or of an evaluation."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from vitrail.blocks import Block, Drawings, Fact, Listing, Paragraph, Report, Section, Table, encode_figure
from vitrail.data.check.findings import RECORD, read_record
from vitrail.data.source import Dataset
from vitrail.evaluation.measurement import Measurement, measure_split, pick_split
from vitrail.evaluation.ood import OodScores
from vitrail.evaluation.output import facts, write_evaluation, write_facts
from vitrail.evaluation.robustness import Robustness
from vitrail.machine import environment
from vitrail.prediction import Predictor, load
from vitrail.progress import Progress, silent
from vitrail.report.command_lines import data_arguments, eval_commands, pretraining_commands, run_commands
from vitrail.report.comparison_sections import folds_fact, folds_section, search_section, teacher_section
from vitrail.report.insights import attention_section, picture_sections, trust_sections
from vitrail.report.render import render_template, write_report
from vitrail.report.sections import (
    check_blocks,
    data_section,
    headline,
    reconstruction_section,
    result_section,
    training_section,
    verdict,
)
from vitrail.schema import to_dict
from vitrail.tasks.task import Task
from vitrail.training.config import Selection, TrainConfig
from vitrail.training.curves import Choice, EpochRow, choice_of, learning_rates, read_rows
from vitrail.training.masked import KNN, masked_choice
from vitrail.training.result import Run, read_run
from vitrail.training.run_folder import chose_epoch, data_check, read_config, trained_on
from vitrail.wording import counted, duration, word_arguments

REPORT = "report.html"


@dataclass(frozen=True, kw_only=True)
class ReportContext:
    """What a report is about, besides the numbers."""

    model: str
    commands: dict[str, str]  # purpose → the command
    settings: dict[str, Any]
    environment: dict[str, Any]
    run: Path | None = None  # the training run, whose curves are shown
    check: Sequence[Block] = ()  # the findings of the data check before training
    split_from: str = ""  # where the splits are from, if the data have none of their own
    compared: Run | None = None  # the run, if it has folds, is a search, or has a teacher
    held_out: Measurement | None = None  # what its folds have measured
    pretrained: Sequence[Section] = ()  # of a run without labels: what it has to show


def write_page(
    path: Path,
    context: ReportContext,
    predictor: Predictor,
    dataset: Dataset,
    measurement: Measurement | None,
    robustness: Robustness | None = None,
    unfamiliar: OodScores | None = None,
) -> Path:
    """Write the page with everything that is known, section by section."""
    facts = [*(headline(measurement) if measurement is not None else ()), _model_fact(predictor)]
    sections = [data_section(dataset, context.split_from, context.check)]
    rows = read_rows(context.run / "results.csv") if context.run is not None else []
    if context.run is not None and rows:
        config = read_config(context.run)
        epochs, took = counted(rows[-1].epoch, "epoch"), duration(rows[-1].seconds)
        summary = f"{epochs} in {took}" + (f". Chosen: {word_arguments(config.chosen)}" if config.chosen else "")
        rates = learning_rates(predictor.model, config, predictor.model.config.depth)
        sections.append(training_section(rows, rates, summary, _choice_of(config, predictor.task, rows)))
        facts.append(Fact("training", took, epochs))
    sections += context.pretrained
    if context.compared is not None:
        facts += [folds_fact(context.compared)] if context.compared.folds else []
        sections += _comparisons(context.compared, context.held_out)
    with _in_main_memory(predictor):
        if measurement is not None:
            sections.append(result_section(measurement, robustness))
            sections += trust_sections(predictor, dataset, measurement, unfamiliar)
            sections += picture_sections(predictor, dataset, measurement)
        if predictor.in_torch:
            sections.append(attention_section(predictor, dataset, measurement))
    result = f"No pictures of {dataset.name} were held out, so the accuracy of this model is unknown."
    if measurement is not None:
        result = verdict(context.model, measurement)
    elif context.pretrained:
        result = f"{context.model} has learned from the pictures of {dataset.name} only, without their labels."
    sections += _last_sections(context)
    write_report(Report(f"{context.model} on {dataset.name}", result, sections, facts), path)
    return path


def _choice_of(config: TrainConfig, task: Task, rows: Sequence[EpochRow]) -> Choice:
    if config.pretrains:
        return masked_choice(config, probes=any(KNN in row.metrics for row in rows))
    return choice_of(config, task)


def _comparisons(run: Run, held_out: Measurement | None) -> list[Section]:
    """The sections of runs that consist of several, or learned from another model."""
    sections = [search_section(run.trials, with_folds=bool(run.folds))] if run.trials else []
    sections += [folds_section(run, held_out)] if run.folds else []
    return sections + ([teacher_section(run.teacher)] if run.teacher is not None else [])


@contextmanager
def _in_main_memory(predictor: Predictor) -> Generator[None]:
    """The page runs the model on a few pictures, in main memory; then the model returns to its device."""
    if not predictor.in_torch:
        yield
        return
    device = next(predictor.model.parameters()).device
    predictor.model.cpu()
    try:
        yield
    finally:
        predictor.model.to(device)


def _model_fact(predictor: Predictor) -> Fact:
    height, width = predictor.preprocess.size
    if not predictor.in_torch:
        return Fact("model", predictor.runtime.name, f"an export, pictures of {width}×{height}")
    count = sum(parameter.numel() for parameter in predictor.model.parameters())
    short = f"{count:,}" if count < 1_000_000 else f"{count / 1e6:.1f} M"
    return Fact("model", short, f"parameters, pictures of {width}×{height}")


def _last_sections(context: ReportContext) -> list[Section]:
    commands: list[Block] = []
    for what, command in context.commands.items():
        commands += [Paragraph(what[0].upper() + what[1:] + ":"), Listing(command)]
    settings, environment = (
        yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        for values in (context.settings, context.environment)
    )
    packages: dict[str, str] = context.environment.get("packages", {})
    versions = f"vitrail {context.environment.get('vitrail', '?')}, Python {context.environment.get('python', '?')}, "
    versions += ", ".join(f"{name} {number}" for name, number in packages.items()) + "."
    listings = [Listing(settings, "The whole config"), Listing(environment, "The environment")]
    return [Section("Commands", commands), Section("Config and environment", [Paragraph(versions), *listings])]


def evaluation_context(
    source: str,
    data: str,
    run: Path,
    *,
    task: Task,
    arguments: dict[str, Any],
    settings: dict[str, Any],
    split_from: str,
) -> ReportContext:
    """What the report of an evaluation shows besides the numbers; for a model from a run, also its curves.

    `arguments` are the settings that were passed, by name: what it takes to measure again.
    """
    machine = environment()
    del machine["command"]  # there is none in Python; `arguments` hold how to measure again
    where = data_arguments(data, arguments.get("data_dir"))
    return ReportContext(
        model=source,
        commands=eval_commands(source, where, arguments, machine, task),
        settings=settings,
        environment=machine,
        run=run if (run / "results.csv").is_file() else None,
        split_from=split_from,
        check=check_blocks(data_check(run, data), data) if trained_on(run, data) else (),
    )


def report_on_run(
    folder: Path,
    dataset: Dataset,
    predictor: Predictor | None = None,
    *,
    measurement: Measurement | None = None,
    held_out: Measurement | None = None,
    progress: Progress = silent,
) -> list[Path]:
    """Write the report of a finished run, its figures and tables beside it, and the numbers into its metrics.json.

    The best weights, if they are not loaded yet as `predictor`, are read; and they are measured on test, or else val,
    unless that `measurement` exists already. `held_out` is what the folds have measured: the tables in the run folder
    are about it, and those about the test split in `test/`. A single process does this, after the ranks have
    disconnected.
    """
    config = read_config(folder)
    predictor = predictor or load(folder)
    if not config.pretrains:
        measurement = measurement or _measure(predictor, dataset, progress)
    paths: list[Path] = []
    if measurement is not None:
        measurement = replace(measurement, chose_epoch=chose_epoch(folder, config.data, measurement.split))
        if held_out is not None and measurement.split != held_out.split:
            (folder / "test").mkdir(exist_ok=True)
            paths = [
                *write_evaluation(folder, held_out, dataset),
                *write_evaluation(folder / "test", measurement, dataset),
            ]
        else:
            paths = write_evaluation(folder, measurement, dataset)
        numbers = _read_json(folder / "metrics.json") | {"evaluation": facts(measurement)}
        if held_out is not None:
            numbers["folds"]["held_out"] = facts(held_out)
        write_facts(numbers, folder / "metrics.json")
    environment = _read_json(folder / "env.json")
    data = data_arguments(config.data, config.source.data_dir)
    make = pretraining_commands if config.pretrains else run_commands
    context = ReportContext(
        model=config.start.model or Path(config.start.weights or "").name,
        commands=make(folder, data, environment, predictor.task),
        settings=to_dict(config),
        environment=environment,
        run=folder,
        check=check_blocks(read_record(folder / RECORD), config.data),
        compared=read_run(folder) if config.selection != Selection() or config.distill.teacher is not None else None,
        held_out=held_out,
        pretrained=[reconstruction_section(folder)] if config.pretrains else (),
    )
    return [write_page(folder / REPORT, context, predictor, dataset, measurement), *paths]


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


def show_evaluation(title: str, measurement: Measurement | None, facts: dict[str, Any]) -> str:
    """An evaluation in a notebook: its numbers and the first figure; only probes if there are no predictions."""
    rows: list[tuple[str, str]] = []
    drawn = Drawings([])
    if measurement is not None:
        first, *_ = measurement.results.drawings("").values()
        drawn = Drawings([encode_figure(first.draw, first.alt.partition(";")[0])])  # its numbers are in the rows
        rows += [("pictures", f"{len(measurement.targets):,}"), *measurement.results.summary()]
        if measurement.averaged is not None:
            name, text = measurement.averaged.results.summary()[0]
            rows.append((f"{name} with tta", text))
    probes: dict[str, Any] = facts.get("probes", {})
    rows += [(f"{name} probe", f"{probes[name]['top1']['value']:.2%}") for name in ("knn", "linear") if name in probes]
    if few := probes.get("shots"):
        rows.append((f"{few['shots']}-shot probe", f"{few['mean']:.2%} ± {few['std']:.2%}"))
    if "robustness" in facts:
        rows.append(("under corruptions", f"{facts['robustness']['mean']:.2%}"))
    table = Table(("measure", "value"), rows, texts=(1,))
    return render_template("evaluation.html.j2", title=title, table=table, drawn=drawn)

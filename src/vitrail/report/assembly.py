"""A whole report page, with everything that is known about a model."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vitrail.data.source import Dataset
from vitrail.evaluation.familiarity import Strangers
from vitrail.evaluation.measurement import Measurement
from vitrail.evaluation.robustness import Robustness
from vitrail.prediction import Predictor
from vitrail.report.insights import attention_section, picture_sections
from vitrail.report.learning import training_section
from vitrail.report.page import Block, Fact, Listing, Paragraph, Report, Section
from vitrail.report.render import write_report
from vitrail.report.sections import data_section, headline, result_section, verdict
from vitrail.report.trust import trust_sections
from vitrail.training.curves import learning_rates, read_rows
from vitrail.training.run import read_config
from vitrail.wording import counted

REPORT = "report.html"


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a report is about, besides the numbers."""

    model: str
    commands: dict[str, str]  # purpose → the command
    settings: dict[str, Any]
    environment: dict[str, Any]
    run: Path | None = None  # the training run, whose curves are shown
    check: Sequence[Block] = ()  # the findings of the data check before training
    split_from: str = ""  # where the splits are from, if the data have none of their own


def write_page(
    path: Path,
    story: Story,
    predictor: Predictor,
    dataset: Dataset,
    measurement: Measurement | None,
    robustness: Robustness | None = None,
    strangers: Strangers | None = None,
) -> Path:
    """Write the page with everything that is known."""
    with _in_main_memory(predictor):
        write_report(assemble(story, predictor, dataset, measurement, robustness, strangers), path)
    return path


def assemble(
    story: Story,
    predictor: Predictor,
    dataset: Dataset,
    measurement: Measurement | None,
    robustness: Robustness | None = None,
    strangers: Strangers | None = None,
) -> Report:
    """The page, section by section."""
    facts = [*(headline(measurement) if measurement is not None else ()), _model_fact(predictor)]
    sections = [data_section(dataset, story.split_from, story.check)]
    rows = read_rows(story.run / "results.csv") if story.run is not None else []
    if story.run is not None and rows:
        epochs, took = counted(rows[-1].epoch, "epoch"), _duration(rows[-1].seconds)
        chosen = read_config(story.run).chosen
        summary = f"{epochs} in {took}{f'. Chosen: {chosen}' if chosen else ''}"
        sections.append(training_section(rows, _rates(predictor, story.run), summary))
        facts.append(Fact(name="training", value=took, note=epochs))
    if measurement is not None:
        sections.append(result_section(measurement, robustness))
        sections += trust_sections(predictor, dataset, measurement, strangers)
        sections += picture_sections(predictor, dataset, measurement)
    if predictor.in_torch:
        sections.append(attention_section(predictor, dataset, measurement))
    sections += _last_sections(story)
    unknown = f"No pictures of {dataset.name} were held out, so the accuracy of this model is unknown."
    return Report(
        title=f"{story.model} on {dataset.name}",
        verdict=verdict(story.model, measurement) if measurement is not None else unknown,
        facts=facts,
        sections=sections,
    )


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
        return Fact(name="model", value=predictor.runtime.name, note=f"an export, pictures of {width}×{height}")
    parameters = sum(parameter.numel() for parameter in predictor.model.parameters())
    return Fact(name="model", value=_short_count(parameters), note=f"parameters, pictures of {width}×{height}")


def _rates(predictor: Predictor, run: Path) -> dict[str, float]:
    return learning_rates(predictor.model, read_config(run), predictor.model.config.depth)


def _last_sections(story: Story) -> list[Section]:
    commands: list[Block] = []
    for what, command in story.commands.items():
        commands += [Paragraph(text=what[0].upper() + what[1:] + ":"), Listing(text=command)]
    settings = yaml.safe_dump(story.settings, sort_keys=False, allow_unicode=True)
    environment = yaml.safe_dump(story.environment, sort_keys=False, allow_unicode=True)
    packages: dict[str, str] = story.environment.get("packages", {})
    versions = f"vitrail {story.environment.get('vitrail', '?')}, Python {story.environment.get('python', '?')}, "
    versions += ", ".join(f"{name} {number}" for name, number in packages.items())
    return [
        Section(title="Commands", blocks=commands),
        Section(
            title="Config and environment",
            blocks=[
                Paragraph(text=versions + "."),
                Listing(text=settings, summary="The whole config"),
                Listing(text=environment, summary="The environment"),
            ],
        ),
    ]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _short_count(count: int) -> str:
    return f"{count:,}" if count < 1_000_000 else f"{count / 1e6:.1f} M"

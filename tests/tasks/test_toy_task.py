"""A task of one file goes through evaluation, calibration and the report, which know nothing about it."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from tests.prediction.conftest import CLASSES, make_predictor
from tests.report.test_render import Page, check_page
from tests.tasks.toy_task import KIND, Grade, GradeTrust

import vitrail
from vitrail.data import ArraySource, Dataset
from vitrail.errors import ConfigError, DataError, InputError
from vitrail.evaluation.measurement import measure_split
from vitrail.prediction import Predictor
from vitrail.registry import TASKS, register_task
from vitrail.tasks.several import Several, SeveralTrust
from vitrail.weights.native import read_native, save_checkpoint


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    register_task(KIND)
    yield
    del TASKS[KIND.name]


@pytest.fixture
def predictor() -> Predictor:
    return replace(make_predictor(), task=Grade())


def make_data(labels: np.ndarray, **facts: object) -> Dataset:
    images = torch.randint(0, 256, (180, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    source = ArraySource(images, labels, "arrays")
    parts = {"train": range(60), "val": range(60, 120), "test": range(120, 180)}
    splits = {name: source.select(part) for name, part in parts.items()}
    return Dataset(name="arrays", classes=tuple(reversed(CLASSES)), splits=splits, **facts)


@pytest.fixture
def graded() -> Dataset:
    return make_data(np.arange(180) % 7, task="grade")


def expected_grades(predictor: Predictor, data: Dataset, split: str) -> np.ndarray:
    """The mean grade of each picture, in the data's order of the grades."""
    logits = measure_split(replace(predictor, task=make_predictor().task), data, split).logits.astype(np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return shares @ np.arange(7)


def test_it_is_measured_written_and_reported(predictor: Predictor, graded: Dataset) -> None:
    found = vitrail.evaluate(predictor, graded, out="e")
    distance = np.abs(expected_grades(predictor, graded, "test") - graded.split("test").labels).mean()
    assert not found.report_error
    assert found.metrics["mean_distance"] == pytest.approx(distance)
    stored = json.loads(Path("e/metrics.json").read_text())
    assert stored["task"] == "grade"
    assert stored["mean_distance"] == pytest.approx(distance)
    names = {path.name for path in Path("e").iterdir()}
    assert names == {
        *("report.html", "metrics.json", "predictions.csv", "grades.csv", "distances.png", "top_losses.jpg")
    }
    with Path("e/predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["picture", "true", "grade", "familiarity", "familiar", "error"]
    assert [row["true"] for row in rows[:3]] == [graded.classes[label] for label in graded.split("test").labels[:3]]
    text = " ".join(check_page(Path("e/report.html").read_text(encoding="utf-8")).text)
    for part in (
        f"is off by {distance:.2f} grades for 60 test pictures of arrays.",
        "arrays: 180 pictures, 7 classes.",
        "Grades have an order.",
        "largest distance",
        "How far grades are off.",
        "These have the largest errors.",
        "which parts the prediction rests on",
    ):
        assert part in text, part
    assert f"{distance:.2f}" in " ".join(Page(found._repr_html_()).text)
    console = Console(file=io.StringIO(), width=100)
    console.print(*found.lines(), sep="\n")
    assert f"mean distance  {distance:.2f}" in console.file.getvalue()  # type: ignore[attr-defined]


def test_it_is_calibrated_and_its_trust_is_stored(predictor: Predictor, graded: Dataset) -> None:
    save_checkpoint(predictor.checkpoint(), Path("grades.safetensors"))
    found = vitrail.calibrate("grades.safetensors", graded, out="c.safetensors")
    offset = (graded.split("val").labels - expected_grades(predictor, graded, "val")).mean()
    assert isinstance(found.trust, GradeTrust)
    assert found.trust.offset == pytest.approx(offset, abs=1e-4)
    assert read_native(Path("c.safetensors")).trust == found.trust
    numbers = found.facts()
    assert set(numbers["before"]) == set(numbers["after"]) == {"mean_distance"}
    assert numbers["before"] != numbers["after"]
    evaluation = vitrail.evaluate("c.safetensors", graded, out="e")
    assert evaluation.facts["calibration"] == found.trust.facts()
    assert "How far to trust it" in Path("e/report.html").read_text(encoding="utf-8")


def test_views_are_averaged_as_the_task_says(predictor: Predictor, graded: Dataset) -> None:
    plain, mirror = (
        measure_split(predictor, graded, change=change).logits for change in (None, lambda images, _: images.flip(-1))
    )
    averaged = measure_split(predictor, graded, tta="flip").logits
    np.testing.assert_allclose(averaged, (plain + mirror) / 2, atol=1e-5)


def test_what_it_cannot_do_is_refused_by_name(predictor: Predictor, graded: Dataset) -> None:
    with pytest.raises(ConfigError, match="the task grade is measured by mean_distance"):
        vitrail.evaluate(predictor, graded, robustness=True)
    with pytest.raises(InputError, match="`answers` is of one class per picture; this model has the task grade"):
        _ = measure_split(predictor, graded).answers


def test_labels_of_another_kind_are_refused_and_label_columns_follow_the_model(graded: Dataset) -> None:
    several = replace(make_predictor(), task=Several())
    with pytest.raises(DataError, match="the model learned several labels per picture .task several.; these data have"):
        vitrail.evaluate(several, graded)
    generator = np.random.default_rng(0)
    labels = (generator.random((180, 7)) < 0.4).astype(np.uint8)
    data = make_data(labels, task="several")
    found = measure_split(several, data)
    assert found.classes == CLASSES  # the model's order, in which its calibration is
    np.testing.assert_array_equal(found.targets, labels[120:, ::-1])
    with pytest.raises(DataError, match="a probe needs one class per picture"):
        vitrail.evaluate(several, data, probe="knn")
    trust = SeveralTrust(data="d", pictures=60, slopes=(1.0,) * 7, offsets=tuple(range(7)), thresholds=(0.5,) * 7)
    moved = measure_split(replace(several, trust=trust), data)
    np.testing.assert_allclose(moved.results.metrics.odds, found.logits + np.arange(7), atol=1e-6)

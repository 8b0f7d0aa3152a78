"""What predictors, rows and files answer for several labels and for values, against formulas written out."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from scipy.special import expit
from tests.data.conftest import picture
from tests.task_models import (
    HALF_WIDTHS,
    LABELS,
    MEAN,
    OFFSETS,
    SLOPES,
    STD,
    THRESHOLDS,
    VALUES,
    make_checkpoint_of,
    write_model_of,
)

import vitrail
from vitrail.cli.main import main
from vitrail.errors import ConfigError, VitrailError, WeightsError
from vitrail.prediction import Prediction, Predictor
from vitrail.tasks.number import Number
from vitrail.tasks.one import ONE
from vitrail.tasks.several import Several, SeveralTrust
from vitrail.verbs.rows import TerminalTable
from vitrail.weights.adapt import adapt
from vitrail.weights.native import read_native


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both models, and three pictures."""
    root = tmp_path_factory.mktemp("tasks")
    for kind in ("several", "number"):
        write_model_of(kind, root)
    (root / "photos").mkdir()
    for number in range(3):
        picture(number, (40 + number, 30)).save(root / "photos" / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def several(folder: Path) -> Predictor:
    return vitrail.load(folder / "several.safetensors")


@pytest.fixture(scope="module")
def number(folder: Path) -> Predictor:
    return vitrail.load(folder / "number.safetensors")


def outputs_of(predictor: Predictor, path: Path) -> np.ndarray:
    ((_, row),) = predictor.logits([("p", path)])
    assert not isinstance(row, str)
    return row.astype(np.float64)


def test_several_labels_are_those_above_their_thresholds(several: Predictor, folder: Path) -> None:
    counts = set[int]()
    for path in sorted((folder / "photos").iterdir()):
        shares = expit(outputs_of(several, path) * SLOPES + OFFSETS)
        expected = sorted(np.flatnonzero(shares > THRESHOLDS), key=lambda index: -shares[index])
        found = several.predict(path, coverage=0.9)
        assert found.labels == tuple(LABELS[index] for index in expected)
        assert found.scores == pytest.approx([shares[index] for index in expected])
        assert set(found.label_set or ()) == {LABELS[index] for index in np.flatnonzero(shares >= 0.1)}
        assert found.familiarity is not None
        assert (found.values, found.value, found.interval) == ((), None, None)
        assert several.predict(path, top_k=1).labels == found.labels[:1]
        counts.add(len(expected))
    assert max(counts) > 1


def test_values_are_in_the_users_units(number: Predictor, folder: Path) -> None:
    path = folder / "photos" / "0.png"
    values = outputs_of(number, path) * STD + MEAN
    found = number.predict(path, coverage=0.85)
    assert found.values == pytest.approx(values)
    assert found.value == pytest.approx(values[0])
    assert found.intervals is not None
    np.testing.assert_allclose(found.intervals, np.stack([values - HALF_WIDTHS[1], values + HALF_WIDTHS[1]], axis=1))
    assert found.interval == found.intervals[0]
    assert found.labels == ()
    assert found._repr_png_() is None
    assert f"{values[0]:.4g} ({values[0] - 6:.4g} to" in found.describe()
    rows = number.predict([path])
    assert f"| {values[0]:.4g}, {values[1]:.4g} |" in rows._repr_markdown_()
    assert "2 values" in repr(number)


def test_what_a_model_cannot_answer_is_refused_first(several: Predictor, number: Predictor) -> None:
    with pytest.raises(ConfigError, match="top_k= is about labels, and this model measures values"):
        number.predict(b"never read", top_k=1)
    for model in (several, number):
        with pytest.raises(ConfigError, match="at most 0.9"):
            model.predict(b"never read", coverage=0.95)
        with pytest.raises(ConfigError, match="needs a calibrated model"):
            replace(model, trust=None).predict(b"never read", coverage=0.9)
    calibrated = several.trust
    with pytest.raises(ConfigError, match="needs more validation pictures"):
        replace(several, trust=replace(calibrated, sets=None)).predict(b"never read", coverage=0.9)


def test_a_picture_unlike_training_gets_no_values(number: Predictor) -> None:
    strange = np.zeros((32, 32, 3), dtype=np.uint8)
    strange[::2] = 255
    found = number.predict(strange, abstain=True)
    assert (found.familiar, found.values) == (False, ())


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_rows_of_several_labels(folder: Path, several: Predictor, tmp_path: Path) -> None:
    rows: Any = vitrail.predict(several, folder / "photos")
    expected = list(rows)
    rows.save(tmp_path / "rows.csv")
    for row, cells in zip(expected, rows_of(tmp_path / "rows.csv"), strict=True):
        assert list(cells) == ["picture", "labels", "scores", "familiarity", "familiar", "error"]
        assert tuple(filter(None, cells["labels"].split(" | "))) == row.labels
        assert [float(score) for score in filter(None, cells["scores"].split(" | "))] == pytest.approx(
            row.scores, abs=1e-6
        )
    rows.save(tmp_path / "rows.jsonl")
    first = json.loads((tmp_path / "rows.jsonl").read_text().splitlines()[0])
    assert (tuple(first["labels"]), tuple(first["scores"])) == (expected[0].labels, expected[0].scores)


def test_rows_of_values(folder: Path, number: Predictor, tmp_path: Path) -> None:
    rows: Any = vitrail.predict(number, folder / "photos", coverage=0.9)
    expected = list(rows)
    measured = ["age", "age_low", "age_high", "height", "height_low", "height_high"]
    flat = [
        [cell for pair in zip(row.values, row.intervals, strict=True) for cell in (pair[0], *pair[1])]
        for row in expected
    ]
    rows.save(tmp_path / "rows.csv")
    found = rows_of(tmp_path / "rows.csv")
    assert list(found[0]) == ["picture", *measured, "familiarity", "familiar", "error"]
    for cells, numbers in zip(found, flat, strict=True):
        assert [float(cells[name]) for name in measured] == pytest.approx(numbers, rel=1e-5)
    rows.save(tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.column_names == ["picture", *measured, "familiarity", "familiar", "error"]
    np.testing.assert_allclose(np.stack([table[name].to_numpy() for name in measured], axis=1), flat)
    rows.save(tmp_path / "again.jsonl", resume=True)
    assert [json.loads(line)["age"] for line in (tmp_path / "again.jsonl").read_text().splitlines()] == [
        row.value for row in expected
    ]
    odd: Any = vitrail.predict(replace(number, classes=("error", "height")), [folder / "photos" / "0.png"])
    assert odd.columns.measured == ["error_value", "height"]


def test_a_job_writes_the_same_columns(folder: Path, number: Predictor, tmp_path: Path) -> None:
    vitrail.run_job(
        str(folder / "number.safetensors"), str(folder / "photos"), out=str(tmp_path / "job"), runtime="torch"
    )
    table = pq.read_table(tmp_path / "job" / "parts")
    assert table.column_names == ["picture", "age", "height", "familiarity", "familiar", "error"]
    rows = list(vitrail.predict(number, folder / "photos"))
    assert sorted(table["age"].to_pylist()) == pytest.approx(sorted(row.value for row in rows), rel=1e-5)


def test_the_terminals_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(folder / "number.safetensors"), str(folder / "photos"), "--coverage", "0.9"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line.index("age ") < line.index(" to ") < line.index("height ")
    rows: Any = vitrail.predict(vitrail.load(folder / "several.safetensors"), [folder / "photos" / "0.png"])
    TerminalTable(rows.columns).write(Prediction(picture="p"))
    assert "no label applies" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["several", "number"])
def test_the_task_goes_with_the_file(kind: str, folder: Path) -> None:
    path, expected = folder / f"{kind}.safetensors", make_checkpoint_of(kind)
    found = read_native(path)
    assert (found.task, found.trust) == (expected.task, expected.trust)
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["vitrail"])["version"] == 2  # which readers of one class per picture refuse


@pytest.mark.parametrize("form", ["timm", "hf"])
def test_formats_of_one_class_per_picture_refuse_others(form: Any, number: Predictor, tmp_path: Path) -> None:
    target = tmp_path / ("model.safetensors" if form == "timm" else "model")
    with pytest.raises(WeightsError, match=f"{form} cannot hold this model.*gives values.*keep our format"):
        number.save(target, form)
    assert not target.exists()


def test_facts_that_do_not_fit_the_head_are_refused() -> None:
    whole = make_checkpoint_of("several")
    trust = whole.trust
    assert isinstance(trust, SeveralTrust)
    short = replace(trust, slopes=SLOPES[:2], offsets=OFFSETS[:2], thresholds=THRESHOLDS[:2])
    for changes, message in (
        ({"task": Number()}, "for the task 'several' says nothing about 'number'"),
        ({"task": Number(mean=MEAN, std=STD), "trust": None}, "has 4 outputs; its mean, or its calibration, 2"),
        ({"trust": short}, "calibration is of 2 labels; the model has 4"),
    ):
        with pytest.raises(VitrailError, match=message):
            replace(whole, **changes)


def test_a_head_in_another_order_keeps_its_facts(number: Predictor, several: Predictor, folder: Path) -> None:
    path = folder / "photos" / "1.png"
    for model, names, field in ((number, VALUES[::-1], "values"), (several, LABELS[2:] + LABELS[:2], "label_set")):
        turned = vitrail.load(folder / f"{model.task.kind}.safetensors", classes=names)
        before, after = (getattr(each.predict(path, coverage=0.9), field) for each in (model, turned))
        assert after == (pytest.approx(before[::-1], rel=1e-5) if field == "values" else before)
    assert turned.classes == names


def test_a_new_head_drops_what_belonged_to_the_old() -> None:
    values, labels = make_checkpoint_of("number"), make_checkpoint_of("several")
    other = adapt(values, classes=("width", "weight"))
    assert (other.task, other.trust) == (Number(), None)
    kept = adapt(labels, task=Several())
    assert kept.trust == labels.trust
    assert (kept.tensors["head.weight"] == labels.tensors["head.weight"]).all()
    changed = adapt(labels, classes=LABELS, task=ONE)
    assert (changed.task, changed.trust) == (ONE, None)
    assert not changed.tensors["head.weight"].any()
    assert adapt(values, num_classes=0).task == Number()

"""A file that is written anew stays what it was until the new one is whole, and many classes do not swell it."""

import csv
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics as sk

from vitrail.blocks import Report
from vitrail.data import Dataset
from vitrail.evaluation.measurement import Measurement, measure_split
from vitrail.evaluation.output import columns, disk_bytes, facts, write_facts, write_predictions, write_tables
from vitrail.prediction import Predictor
from vitrail.report.render import write_report
from vitrail.tasks.one_results import OneResults


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_facts({"top1": 0.9}, path),
        lambda path: write_report(Report(title="a", verdict="b", sections=()), path),
    ],
    ids=["metrics", "report"],
)
def test_a_full_disk_leaves_the_old_text(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    real = Path.write_text

    def fill(self: Path, text: str, **options: str) -> int:
        real(self, text[:5], **options)
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(Path, "write_text", fill)
    with pytest.raises(OSError, match="no space left"):
        write(path)
    assert path.read_text() == "old"
    monkeypatch.undo()
    write(path)
    assert len(path.read_text()) > 5
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


def test_predictions_are_written_whole_or_not_at_all(predictor: Predictor, arrays: Dataset, tmp_path: Path) -> None:
    found = measure_split(predictor, arrays, limit=3)
    path = tmp_path / "predictions.csv"
    write_predictions(found, path)
    before = path.read_text()
    assert len(before.splitlines()) == 4
    with pytest.raises(ValueError, match="longer"):
        write_predictions(replace(found, keys=found.keys[:2]), path)
    assert path.read_text() == before


def make_evaluation(num_classes: int, num_pictures: int) -> Measurement:
    generator = np.random.default_rng(0)
    targets = generator.integers(0, num_classes, num_pictures)
    logits = generator.standard_normal((num_pictures, num_classes), dtype=np.float32)
    logits[np.arange(num_pictures), targets] += 3
    return Measurement(
        data="many",
        split="test",
        classes=tuple(f"class {place}" for place in range(num_classes)),
        samples=np.arange(num_pictures),
        keys=tuple(f"{place}.png" for place in range(num_pictures)),
        logits=logits,
        targets=targets,
        seconds=1.0,
    )


def write_all(found: Measurement, folder: Path) -> int:
    """Every file of an evaluation, and its bytes."""
    write_facts(facts(found), folder / "metrics.json")
    write_predictions(found, folder / "predictions.csv")
    write_tables(found, folder)
    return sum(path.stat().st_size for path in folder.iterdir())


def confusions(found: Measurement, count: int) -> list[tuple[str, str, int]]:
    assert isinstance(found.results, OneResults)
    return found.results.confusions(count)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_many_classes_take_little_memory_and_disk(tmp_path: Path) -> None:
    """A matrix of 4,000 classes is 128 MB as numbers and 140 MB as JSON; here are 300 pictures."""
    found = make_evaluation(4000, 300)
    tracemalloc.start()
    size = write_all(found, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 80_000_000  # a block of rows in double precision, a few times; the logits themselves are 5 MB
    assert size < 1_000_000
    assert size < disk_bytes(300, 4000)
    stored = json.loads((tmp_path / "metrics.json").read_text())
    assert stored["num_classes"] == 4000
    assert stored["confusion"] is None
    assert len(stored["classes"]) == 1000
    f1 = [row["f1"] for row in stored["classes"]]
    assert f1[0] == 0
    assert len(read(tmp_path / "classes.csv")) == 4000
    assert stored["mistakes"][0] == dict(zip(("true", "predicted", "count"), confusions(found, 1)[0], strict=True))


def test_the_tables_are_scikit_learns(tmp_path: Path) -> None:
    found = make_evaluation(12, 200)
    write_all(found, tmp_path)
    predicted = found.logits.argmax(axis=1)
    matrix = sk.confusion_matrix(found.targets, predicted, labels=range(12))
    pairs = {(row["true"], row["predicted"]): int(row["pictures"]) for row in read(tmp_path / "confusion.csv")}
    names = found.classes
    assert pairs == {
        (names[a], names[b]): matrix[a, b] for a, b in zip(*(part.tolist() for part in np.nonzero(matrix)), strict=True)
    }
    assert json.loads((tmp_path / "metrics.json").read_text())["confusion"] == matrix.tolist()
    scores = sk.precision_recall_fscore_support(found.targets, predicted, labels=range(12))
    for row, *expected in zip(read(tmp_path / "classes.csv"), *scores, strict=True):
        assert [float(row[name]) for name in ("precision", "recall", "f1", "pictures")] == pytest.approx(
            expected, abs=1e-6
        )
    wrong = matrix - np.diag(np.diag(matrix))
    assert [count for *_, count in confusions(found, 144)] == sorted(wrong[wrong > 0].tolist(), reverse=True)


def test_cells_cannot_start_a_formula_unless_raw(tmp_path: Path) -> None:
    found = make_evaluation(3, 20)
    hostile = replace(found, classes=("=cmd()", "-1", "\x1b[31mred"), broken={"+a.png": "@b"})
    for raw, texts in ((False, {"'=cmd()", "-1", "\\x1b[31mred"}), (True, {"=cmd()", "-1", "\x1b[31mred"})):
        write_predictions(hostile, tmp_path / "predictions.csv", raw=raw)
        for path in (tmp_path / "predictions.csv", *write_tables(hostile, tmp_path, raw=raw)):
            assert texts <= {cell for row in read(path) for cell in row.values()}, path
    write_predictions(hostile, tmp_path / "a.csv")
    assert tuple(read(tmp_path / "a.csv")[-1].values()) == ("'+a.png", *[""] * (len(columns(hostile)) - 2), "'@b")

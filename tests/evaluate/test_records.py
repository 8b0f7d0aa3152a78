"""A file that is written anew stays what it was until the new one is whole."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vitrail.data import Dataset
from vitrail.evaluate.evaluation import evaluate
from vitrail.evaluate.records import write_facts, write_predictions
from vitrail.evaluate.report import Report, write_report
from vitrail.predict import Predictor


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
    found = evaluate(predictor, arrays, limit=3)
    path = tmp_path / "predictions.csv"
    write_predictions(found, path)
    before = path.read_text()
    assert len(before.splitlines()) == 4
    with pytest.raises(ValueError, match="longer"):
        write_predictions(replace(found, keys=found.keys[:2]), path)
    assert path.read_text() == before

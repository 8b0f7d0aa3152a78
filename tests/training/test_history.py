"""What a run's folder tells about figures that are measured later."""

from pathlib import Path

import pytest
import yaml
from tests.training.test_curves import row

from vitrail.data.check.findings import RECORD, CheckRecord, write_record
from vitrail.schema import to_dict
from vitrail.training.config import TrainConfig
from vitrail.training.curves import append_row
from vitrail.training.run import chose_epoch, data_check, trained_on


@pytest.fixture
def run(tmp_path: Path) -> Path:
    settings = to_dict(TrainConfig(data="pictures"))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for epoch in (1, 2):
        append_row(tmp_path / "results.csv", row(epoch))
    return tmp_path


def test_val_of_its_own_data_chose_the_epoch(run: Path) -> None:
    assert chose_epoch(run, "pictures", "val")
    assert chose_epoch(run, "pictures", "all")
    assert not chose_epoch(run, "pictures", "test")
    assert not chose_epoch(run, "others", "val")
    assert not chose_epoch(run / "nowhere", "pictures", "val")


def test_the_same_folder_by_another_path(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    (run / "pictures").mkdir()
    assert trained_on(run, "./pictures")
    assert trained_on(run, str(run / "pictures"))


def test_without_a_choice_nothing_was_chosen(run: Path) -> None:
    (run / "results.csv").unlink()
    append_row(run / "results.csv", row(1))
    assert not chose_epoch(run, "pictures", "val")
    append_row(run / "results.csv", row(2, judged=False))
    assert not chose_epoch(run, "pictures", "val")


def test_the_check_belongs_to_its_data(run: Path) -> None:
    assert data_check(run, "pictures") is None
    write_record(CheckRecord(data="pictures", pictures=9), run / RECORD)
    assert data_check(run, "pictures") == CheckRecord(data="pictures", pictures=9)
    assert data_check(run, "others") is None

"""What stays of a check: small, and read back as it was written or refused."""

from pathlib import Path

import pytest

from vitrail.data import open_data
from vitrail.data.check.record import CheckRecord, Trouble, read_record, sum_up, write_record
from vitrail.data.check.report import check_data
from vitrail.errors import DataError


def test_a_check_is_summed_up_and_read_back(make_folder, tmp_path: Path) -> None:
    root = make_folder("train/cat", "train/dog", "val/cat", "val/dog", count=12)
    (root / "val/cat/000.jpg").write_bytes((root / "train/cat/000.jpg").read_bytes())
    report = check_data(open_data(root), workers=1)
    record = sum_up(report)
    assert record.pictures == 48
    assert record.serious[0] == Trouble(
        severity="error",
        finding="the same picture in two splits",
        count=1,
        example="val/cat/000.jpg",
        detail="same as train/cat/000.jpg",
    )
    write_record(record, tmp_path / "a.json")
    assert read_record(tmp_path / "a.json") == record
    assert read_record(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"data": 3, "pictures": 1}', '{"data": "a", "pictures": 1, "more": 2}', "[" * 100_000, "\x00"],
)
def test_a_damaged_record_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match="must be the record of a data check"):
        read_record(tmp_path / "a.json")


def test_long_names_are_cut_and_long_files_refused(tmp_path: Path) -> None:
    record = CheckRecord(data="a", pictures=1, findings=(Trouble(severity="note", finding="x", count=1, example="y"),))
    assert record.serious == ()
    (tmp_path / "a.json").write_text(" " * 1_000_001)
    with pytest.raises(DataError, match="1,000,001 bytes"):
        read_record(tmp_path / "a.json")

"""CSV files for people: what a spreadsheet or a terminal would act on is only text, and everything else is kept."""

import csv
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.tables import harmless_cell, open_table


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("cat", "cat"),
        ("日本 🐈", "日本 🐈"),
        ('a, "quoted" name', 'a, "quoted" name'),
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@SUM(1)", "'@SUM(1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("--help", "'--help"),
        ("  =1", "'  =1"),
        ("\t=1", "'\\t=1"),
        ("\r=1", "'\\r=1"),
        ("＝1", "'＝1"),
        ("-0.5", "-0.5"),
        ("+1e-5", "+1e-5"),
        ("-.5", "-.5"),
        ("-", "'-"),
        ("-inf", "'-inf"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("two\nlines", "two\\nlines"),
        ("\u202ecod.exe", "\\u202ecod.exe"),
        ("\udc9b31m", "\\x9b31m"),
        ("caf\udce9", "caf\udce9"),
        (-0.5, -0.5),
        (3, 3),
        (None, None),
        ("", ""),
    ],
)
def test_what_becomes_of_a_cell(cell: object, written: object) -> None:
    assert harmless_cell(cell) == written


@given(st.text())
def test_no_text_does_anything(text: str) -> None:
    written = str(harmless_cell(text))
    assert not re.search("[\x00-\x1f\x7f-\x9f]", written)
    assert written[:1] not in set("=+-@") or re.fullmatch(r"[+-][0-9.eE+-]+", written)
    assert harmless_cell(written) == written


def test_a_file_for_people_and_one_for_programs(tmp_path: Path) -> None:
    for raw in (False, True):
        with open_table(tmp_path / "a.csv", ("name", "score"), raw=raw) as write:
            write(("=1\x1b", -0.5))
            write(("caf\udce9", 2))
        with (tmp_path / "a.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.reader(file))
        assert rows == [["name", "score"], ["=1\x1b" if raw else "'=1\\x1b", "-0.5"], ["caf\udce9", "2"]]

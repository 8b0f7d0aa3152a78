"""Damaged files of each kind: read, or refused with a clear error; no crash, no hang, no full memory."""

from pathlib import Path

import pytest
from tests.data.mutation import FORMATS, write_result

from fuzzing import SEED, cases
from processes import run

pytestmark = pytest.mark.fuzz

CASES = cases(50)


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    code = run(write_result, name, CASES, SEED, tmp_path / "result")
    printed = (tmp_path / "result").read_text()
    assert code == 0, (code, printed)
    assert f"{CASES} cases" in printed

"""Two thousand damaged files of each kind: read, or refused with a clear error; no crash, no hang, no full memory."""

import subprocess
import sys

import pytest
from tests.data.mutation import FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(name: str) -> None:
    command = [sys.executable, "-m", "tests.data.mutation", name, "2000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2000 cases" in done.stdout

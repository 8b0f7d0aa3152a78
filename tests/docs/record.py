"""`PYTHONPATH=tests python -m tests.docs.record PAGE…`: write what the blocks of pages print now into the pages."""

import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from tests.docs.desk import lay_out, sit_down
from tests.docs.pages import ROOT
from tests.docs.running import run_page


def record(page: Path, desk: Path) -> None:
    """Replace every `text` block after a block that is run, except those of real pictures."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    changes: list[tuple[int, int, list[str]]] = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        sit_down(page, desk, Path(folder) / "desk", patch)
        for ran in run_page(page, {"__name__": page.stem}):
            if ran.shown is not None and "of real pictures" not in ran.shown.marks:
                first, count = ran.shown.line - 1, len(ran.shown.text.splitlines())
                printed = ran.everything if ran.shown.text.startswith("error: ") else ran.output
                changes.append((first, first + count, [line.rstrip() for line in printed.rstrip().splitlines()]))
    for first, last, printed in reversed(changes):
        lines[first:last] = printed
    (ROOT / page).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as home:
        lay_out(Path(home))
        for name in sys.argv[1:]:
            record(Path(name).resolve().relative_to(ROOT), Path(home))

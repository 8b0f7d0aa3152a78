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
    """Replace every `text` block after a block that is run."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    changes: list[tuple[int, int, list[str]]] = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        sit_down(desk, Path(folder) / "desk", patch)
        for _, printed, shown in run_page(page, {"__name__": page.stem}):
            if shown is not None:
                first = shown.line - 1
                changes.append(
                    (
                        first,
                        first + len(shown.text.splitlines()),
                        [line.rstrip() for line in printed.rstrip().splitlines()],
                    )
                )
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

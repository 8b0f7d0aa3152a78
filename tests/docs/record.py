"""`python -m tests.docs.record PAGE…`: write into pages what their blocks print now. Read the difference before you commit it."""

import sys
import tempfile
import warnings
from contextlib import chdir
from pathlib import Path

import torch
from tests.docs.pages import ROOT
from tests.docs.running import run_page


def record(page: Path) -> None:
    """Replace every `text` block after a block that is run."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    changes: list[tuple[int, int, list[str]]] = []
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("docs").symlink_to(ROOT / "docs")
        torch.manual_seed(0)
        for _, printed, shown in run_page(page, {"__name__": page.stem}):
            if shown is not None:
                first = shown.line - 1
                changes.append((first, first + len(shown.text.splitlines()), printed.rstrip().splitlines()))
    for first, last, printed in reversed(changes):
        lines[first:last] = printed
    (ROOT / page).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in sys.argv[1:]:
        record(Path(name).resolve().relative_to(ROOT))

"""A report that fails must never cost the work that it is about."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.printing import SteadyConsole, plain, progress_bar

if TYPE_CHECKING:
    from vitrail.data.source import Dataset


def attempt(make: Callable[[], list[Path]], safe: str) -> list[Path]:
    """The files that `make` writes; if it fails in any way, none, and a line that says why and what is `safe`."""
    try:
        return make()
    except Exception as error:
        print_no_report(" ".join(str(error).split()) or type(error).__name__, safe)
        return []


def print_no_report(why: str, safe: str) -> None:
    """Why there is no report, and what is `safe` all the same."""
    console = SteadyConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"no report: {plain(why)} ({safe})")


def report_on_run(folder: Path, dataset: "Dataset", device: str = "auto") -> list[Path]:
    """The report of a finished run, with a bar while its model is measured."""
    from vitrail.report import runs

    return runs.report_on_run(folder, dataset, device, progress=progress_bar)

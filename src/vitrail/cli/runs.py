"""The folder that a command writes into: `runs/NAME-N` under the current one."""

from pathlib import Path

from vitrail.verbs.folders import check_folder, make_folder, next_run_folder


def check_run_folder(out: Path | None = None) -> None:
    """Refuse a folder that `new_run_folder` could not make, before there is work to lose; nothing is made yet."""
    check_folder(out or "runs")


def new_run_folder(name: str, out: Path | None = None) -> Path:
    """The folder asked for, or the next free `runs/NAME-N`."""
    return next_run_folder(name) if out is None else make_folder(out)

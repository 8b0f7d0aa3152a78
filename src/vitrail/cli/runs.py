"""The folder that a command writes into: `runs/NAME-N` under the current one."""

import os
from pathlib import Path

from vitrail.errors import ConfigError


def check_run_folder(out: Path | None = None) -> None:
    """Refuse a folder that `new_run_folder` could not make, before there is work to lose; nothing is made yet."""
    folder = out or Path("runs")
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"{folder} must be a folder; {'it' if there == folder.absolute() else there} is a file.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"nothing may be written into {there}; choose another folder with --out.")


def run_of(source: str) -> Path:
    """The run folder that a checkpoint is of: itself, or for a file the one in whose `weights` it lies."""
    weights = Path(source).absolute().parent
    return weights.parent if weights.name == "weights" and Path(source).is_file() else Path(source)


def new_run_folder(name: str, out: Path | None = None) -> Path:
    """The folder asked for, or the next free `runs/NAME-N`."""
    if out is not None:
        if out.is_file():
            raise ConfigError(f"{out} must be a folder; it is a file.")
        return _make(out)
    number = 1
    while True:
        folder = Path("runs") / f"{name}-{number}"
        try:
            return _make(folder, exist_ok=False)
        except FileExistsError:
            number += 1


def _make(folder: Path, *, exist_ok: bool = True) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} cannot be made ({error.strerror}); choose another with --out."
        ) from None
    return folder

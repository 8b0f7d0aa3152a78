"""The folder that a verb writes into: the requested one, or `runs/NAME-N` under the current one."""

import os
from pathlib import Path

from vitrail.errors import ConfigError


def check_run_folder(out: Path | None = None) -> None:
    """Refuse a folder that `new_run_folder` could not make, before there is work to lose; nothing is created yet."""
    folder = out or Path("runs")
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(
            f"{folder} must be a folder; {'it' if existing == folder.absolute() else existing} is a file."
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{existing} is not writable; choose another folder with out=.")


def new_run_folder(name: str, out: Path | None = None) -> Path:
    """The requested folder, or the next free `runs/NAME-N`."""
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
        raise ConfigError(f"the folder {folder} cannot be made ({error.strerror}); choose another with out=.") from None
    return folder

"""The folder that a verb writes into: the one that was asked for, or the next free `runs/NAME-N`."""

import os
from collections.abc import Callable
from pathlib import Path

from vitrail.errors import ConfigError

Out = str | Path | Callable[[], Path] | None  # a folder, or what makes one when there is something to write


def check_folder(out: Path | str) -> None:
    """Refuse a folder that cannot be made or written, before there is work to lose; nothing is made yet."""
    folder = Path(out)
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        is_it = existing == folder.absolute()
        raise ConfigError(f"{folder} must be a folder; {'it' if is_it else existing} is a file.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"nothing may be written into {existing}; choose another folder with out=.")


def make_folder(out: str | Path | Callable[[], Path]) -> Path:
    """The folder, made if it is not there yet."""
    if callable(out):
        return out()
    return _make(Path(out))


def next_run_folder(name: str) -> Path:
    """A new folder: the first free `runs/NAME-N` under the current one."""
    number = 1
    while True:
        try:
            return _make(Path("runs") / f"{name}-{number}", exist_ok=False)
        except FileExistsError:
            number += 1


def _make(folder: Path, *, exist_ok: bool = True) -> Path:
    if folder.is_file():
        raise ConfigError(f"{folder} must be a folder; it is a file.")
    try:
        folder.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made ({error.strerror}); choose another with out=.") from None
    return folder

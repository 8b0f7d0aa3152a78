"""The folder that a command writes into: `runs/NAME-N` under the current one."""

from pathlib import Path

from vitrail.errors import ConfigError


def new_run_folder(name: str, out: Path | None = None) -> Path:
    """The folder asked for, or the next free `runs/NAME-N`."""
    if out is not None:
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out} must be a folder; it is a file.")
        out.mkdir(parents=True, exist_ok=True)
        return out
    number = 1
    while True:
        folder = Path("runs") / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder

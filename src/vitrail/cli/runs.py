"""The folder that a command writes into: `runs/NAME-N` under the current one."""

from pathlib import Path

from vitrail.errors import ConfigError


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

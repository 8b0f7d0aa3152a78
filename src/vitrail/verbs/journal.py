"""A job that may be interrupted: its rows are kept beside its file, as lines of JSON, until that file is whole.

The first line says what the job is; each row is one more line, written as soon as it is known. Whatever ends the
process, at most the last line is damaged, and it is dropped when the job is resumed: no row is lost or written twice.
"""

import json
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import IO, Any

from vitrail.errors import ConfigError, shorten
from vitrail.prediction import Prediction
from vitrail.prediction.predictor import Named
from vitrail.training.lock import lock_file

Compute = Callable[[Iterable[Named]], Iterator[Prediction]]


@contextmanager
def resumed(
    out: Path, job: Mapping[str, Any], pictures: Iterator[Named], compute: Compute
) -> Generator[Iterator[Prediction]]:
    """The rows of a job: those that an interrupted one has kept, then the others, computed and kept.

    The journal is removed when all goes well: leave this after the file of rows has been written.
    """
    path = out.with_name(f".{out.name}.partial")
    if out.exists() and not path.exists():
        raise ConfigError(f"{out} is complete, so there is nothing to resume; omit resume= to write it again.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if not lock_file(file):
            raise ConfigError(f"{out} is being written by another process; wait until it has ended.")
        _remove_drafts(out)
        _begin(file, path, json.loads(json.dumps(job)))
        yield _rows(file, path, pictures, compute)
    path.unlink()


def _remove_drafts(out: Path) -> None:
    """Remove what `atomic_path` left behind where a process of this job was killed."""
    for folder in out.parent.glob(f".{escape(out.name)}.????????"):
        if folder.is_dir() and [file.name for file in folder.iterdir()] in ([], [out.name]):
            shutil.rmtree(folder, ignore_errors=True)


def _begin(file: IO[bytes], path: Path, job: Mapping[str, Any]) -> None:
    """Write what the job is, or refuse to continue another one."""
    file.seek(0)
    theirs = _parse(file.readline())
    if theirs is None:
        file.truncate(0)
        _write(file, job)
        return
    for name, value in job.items():
        if theirs.get(name) != value:
            raise ConfigError(
                f"{name}={shorten(value)} conflicts with the interrupted job, which has {shorten(theirs.get(name))}; "
                f"repeat its settings to resume it, or delete {path} to begin again."
            )


def _rows(file: IO[bytes], path: Path, pictures: Iterator[Named], compute: Compute) -> Iterator[Prediction]:
    end = file.tell()
    while (row := _read(file.readline())) is not None:
        end = file.tell()
        name = next(pictures, ("nothing", b""))[0]
        if name != row.picture:
            raise ConfigError(
                f"the pictures must be those of the interrupted job, in its order: there is {name} where {row.picture} "
                f"was; put them back to resume, or delete {path} to begin again."
            )
        yield row
    file.truncate(end)  # of a line that was cut off
    for row in compute(pictures):
        _write(file, {name: value for name, value in vars(row).items() if name != "source"})
        yield row


def _write(file: IO[bytes], facts: Mapping[str, Any]) -> None:
    file.write(json.dumps(facts).encode() + b"\n")
    file.flush()


def _parse(line: bytes) -> dict[str, Any] | None:
    """What a line holds, if it is whole."""
    try:
        facts: Any = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def _read(line: bytes) -> Prediction | None:
    facts = _parse(line)
    if facts is None:
        return None
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    return Prediction(**values)

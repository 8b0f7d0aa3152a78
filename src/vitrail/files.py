"""Files that are written: whole or not at all, in which folder, and as tables that no spreadsheet misreads.

A file or folder is written in a hidden workshop folder beside its place and moved there at the end. Whoever works in a
workshop holds a lock on it, which the system releases when the process ends, however it ends; the next one to write
beside it removes what dead processes of this machine have left.

The names in a data set may end up in a CSV file that someone opens: a class called `=HYPERLINK(…)` would be computed,
one with an escape code would move the cursor. Such cells get a leading apostrophe, and control characters are spelled
out (`\\x1b`). Numbers, -0.5 included, stay numbers. `raw` leaves every cell unchanged, for programs. Files that vitrail
reads again (split.csv, results.csv) are written without that: they must hold exactly what they were given.
"""

import csv
import ctypes
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from errno import EINVAL, EISDIR, ENOSYS, ENOTSUP
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

from vitrail.errors import ConfigError, MissingExtraError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# The machine is part of the name: some network file systems lock for one machine only.
MARKS = ".vitrail-"
MARK = f"{MARKS}{zlib.crc32(platform.node().encode()):08x}-"
OLD = ".vitrail-old"  # the part of a workshop that holds a folder while its replacement takes its place
_CURRENT_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)


def sha256_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lock_file(file: IO[Any]) -> bool:
    """Lock an open file until it is closed, or its process ends, however it ends; False if another process has it.

    A file system without locks prevents nothing.
    """
    from filelock import lock_descriptor

    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError:
        return True


@contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """A temporary path beside `path` for a new file or folder, which replaces `path` in one step if all goes well.

    A file never replaces a folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with workshop_in(path.parent) as workshop:
            draft = workshop / path.name
            yield draft
            if path.is_dir():
                if not draft.is_dir():
                    raise IsADirectoryError(EISDIR, "a file would replace a folder", str(path))
                if _exchange(draft, path):
                    return
                (workshop / OLD).mkdir()
                path.replace(workshop / OLD / path.name)
            draft.replace(path)
    except OSError as error:
        if str(error.filename).startswith(str(path.parent / MARK)):  # which says nothing to a user
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def workshop_in(folder: Path) -> Generator[Path]:
    """A new, hidden folder to work in, removed at the end; those of processes that have died are removed first."""
    _sweep_once(folder.absolute())
    while True:
        workshop = Path(tempfile.mkdtemp(prefix=MARK, dir=folder))
        lock = _lock(workshop, wait=True)
        if workshop.exists():  # another process may have removed it before it was locked
            break
        _unlock(lock)
    try:
        yield workshop
    finally:
        _clear(workshop)
        _unlock(lock)


@cache
def _sweep_once(folder: Path) -> None:
    """Once per process: a folder may get tens of thousands of files, one after the other."""
    sweep_drafts(folder)


def sweep_drafts(folder: Path, mark: str = MARK) -> None:
    """Remove what dead processes left unfinished in a folder, and restore what they were about to replace.

    With `MARKS`, those of other machines too, which must not be writing there.
    """
    try:
        left = [path for path in folder.iterdir() if path.name.startswith(mark)]
    except OSError:
        return
    for workshop in left:
        lock = _lock(workshop, wait=False)
        if lock is not None:
            _clear(workshop)
            _unlock(lock)


def _clear(workshop: Path) -> None:
    """Remove a workshop; a folder whose replacement did not arrive goes back first, or the workshop stays."""
    with suppress(OSError):
        for old in (workshop / OLD).glob("*"):
            if not os.path.lexists(workshop.parent / old.name):
                old.replace(workshop.parent / old.name)
        shutil.rmtree(workshop, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step, if this system and file system can."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    if rename(_CURRENT_FOLDER, os.fsencode(one), _CURRENT_FOLDER, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (EINVAL, ENOSYS, ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def _lock(workshop: Path, *, wait: bool) -> int | None:
    """Lock a workshop; None if another process holds it, or if this file system has no locks."""
    if fcntl is None:
        return None
    handle = None
    try:
        handle = os.open(workshop, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        _unlock(handle)
        return None
    return handle


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


RUNS = Path("runs")  # where folders of runs are numbered


def check_run_folder(out: Path | None = None) -> None:
    """Refuse a folder that `new_run_folder` could not make, before there is work to lose; nothing is created yet."""
    folder = out or RUNS
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(
            f"{folder} must be a folder; {'it' if existing == folder.absolute() else existing} is a file."
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{existing} is not writable; choose another folder with `out=`.")


def new_run_folder(name: str, out: Path | None = None) -> Path:
    """The requested folder, or the next free `runs/NAME-N`."""
    number = 1
    while True:
        folder = out or RUNS / f"{name}-{number}"
        try:
            folder.mkdir(parents=True, exist_ok=out is not None)
        except FileExistsError:
            if out is not None:
                raise ConfigError(f"{out} must be a folder; it is a file.") from None
            number += 1
        except OSError as error:
            why = f"the folder {folder} cannot be made ({error.strerror}); choose another with `out=`."
            raise ConfigError(why) from None
        else:
            return folder


Cell = str | int | float | None
WriteRow = Callable[[Iterable[Cell]], None]

# What a spreadsheet may take for the start of a formula, including the wide forms of East Asian keyboards.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
# Control characters, marks that change the direction of text, and control bytes in names that are not UTF-8.
_CODES = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\udc80-\udc9f]")


def harmless_cell(cell: Cell) -> Cell:
    """The cell as a number, or as text that stays text."""
    if not isinstance(cell, str) or _NUMBER.fullmatch(cell):
        return cell
    text = _CODES.sub(_spell_out, cell)
    return f"'{text}" if cell.lstrip(" ").startswith(_FORMULA) else text


def _spell_out(match: re.Match[str]) -> str:
    code = match[0]
    return f"\\x{ord(code) - 0xDC00:02x}" if code >= "\udc80" else code.encode("unicode_escape").decode()


def row_writer(file: IO[str], *, raw: bool = False) -> WriteRow:
    """A function that writes one row of a CSV file, which must be open with `newline=""`."""
    rows = csv.writer(file, lineterminator="\n")
    if not raw:
        return lambda cells: rows.writerow([harmless_cell(cell) for cell in cells])
    quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)

    def write(cells: Iterable[Cell]) -> None:
        row = list(cells)
        ends = any(isinstance(cell, str) and "\r" in cell for cell in row)  # a reader's row, unless it is in quotes
        (quoted if ends else rows).writerow(row)

    return write


@contextmanager
def open_csv(path: Path, head: Sequence[str], *, raw: bool = False) -> Generator[WriteRow]:
    """A new CSV file with its first row; names that are not UTF-8 keep their bytes."""
    with path.open("w", encoding="utf-8", newline="", errors="surrogateescape") as file:
        write = row_writer(file, raw=raw)
        write(head)
        yield write


def as_utf8(name: str) -> str:
    """A file name as Parquet can hold it: bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def load_pyarrow(what: str) -> tuple[Any, Any]:
    """pyarrow and its Parquet module, or an error that names what to install."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(what, "tables") from None
    return cast("Any", pa), cast("Any", pq)

"""Files and folders written whole or not at all.

They are written in a hidden workshop folder beside their place and moved there at the end. Whoever works in a workshop
holds a lock on it, which the system releases when the process ends, however it ends; the next one to write beside it
removes what dead processes of this machine have left.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import sys
import tempfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from errno import EINVAL, EISDIR, ENOSYS, ENOTSUP
from functools import cache
from pathlib import Path

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
    """Lock a workshop; None if somebody else works there, or if this file system has no locks."""
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

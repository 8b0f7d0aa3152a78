"""One process per run folder: a lock that the system releases when its holder ends, however it ends."""

import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from vitrail.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
try:
    import msvcrt
except ImportError:  # everywhere else
    msvcrt = None

LOCK = ".lock"
FAR = 2**30  # the byte that Windows locks: far behind the text, which others may then read


class RunLock:
    """The right to write into a run folder; the file says who has it."""

    def __init__(self) -> None:
        self._file: IO[str] | None = None
        self._path = Path()

    def take(self, folder: Path) -> None:
        """Take the lock, or raise an error that names its holder."""
        path = folder / LOCK
        while self._file is None:
            file = path.open("a+", encoding="utf-8")
            if not lock_file(file):
                holder = _read_holder(file)
                file.close()
                raise ConfigError(
                    f"{folder} is in use by another process{holder}; wait until it has ended, "
                    "stop it, or choose another folder."
                )
            if _is_still(path, file):
                self._file, self._path = file, path
            else:  # its last holder has removed it in the meantime
                file.close()
        self._file.truncate(0)
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        self._file.write(json.dumps(facts))
        self._file.flush()

    def release(self) -> None:
        """Release the lock; the end of the process does so too."""
        if self._file is not None:
            with suppress(OSError):  # Windows cannot remove open files
                self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


def refuse_locked(folder: Path) -> None:
    """Refuse a folder that another process writes into, before there is work to lose."""
    if (folder / LOCK).is_file():
        lock = RunLock()
        lock.take(folder)
        lock.release()


def lock_file(file: IO[Any]) -> bool:
    """Whether the lock was acquired; a file system without locks does not prevent training."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            file.seek(FAR)
            cast("Any", msvcrt).locking(file.fileno(), cast("Any", msvcrt).LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _is_still(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except OSError:
        return False


def _read_holder(file: IO[str]) -> str:
    """(pid 123 on host, since …), if the file says so."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        file.seek(0)
        facts: Any = json.loads(file.read(1000))
        return f" (pid {int(facts['pid'])} on {str(facts['host'])[:80]}, since {str(facts['since'])[:40]})"
    return ""

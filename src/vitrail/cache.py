"""The user's cache: what can be made again, kept to save time. A cache that cannot be written is no error."""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError
from vitrail.files import atomic_path

DRAFT_SECONDS = 3600.0  # after which a hidden file is what a process that died has left behind


def cache_folder() -> Path:
    """$VITRAIL_CACHE, or `vitrail` in the user's cache, which is $XDG_CACHE_HOME or ~/.cache."""
    if given := os.environ.get("VITRAIL_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitrail"


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """One kind of thing in the cache, in a folder of its own: the least recently used makes room for what is new."""

    name: str
    most_items: int
    most_bytes: int  # of all of them together

    @property
    def folder(self) -> Path:
        return cache_folder() / self.name

    @property
    def is_empty(self) -> bool:
        try:
            return not any(self.folder.iterdir())
        except OSError:
            return True

    def make_room(self, size: int) -> None:
        """For one more item of `size` bytes."""
        make_room(self.folder, self.most_bytes - size, self.most_items - 1)

    def read(self, key: str) -> Any:
        """What was written for a key, as JSON holds it; None for nothing, or for a file that is not whole."""
        from vitrail.untrusted import parse_json, read_bytes  # and with it a parser of YAML

        try:
            return parse_json(read_bytes(self._file(key), self._most_bytes_each))
        except (VitrailError, OSError, ValueError):
            return None

    def write(self, key: str, value: Any) -> None:
        """Keep a small value for a key; a cache that cannot be written keeps nothing."""
        with contextlib.suppress(OSError):
            self.make_room(self._most_bytes_each)
            with atomic_path(self._file(key)) as draft:
                draft.write_text(json.dumps(value, indent=1, allow_nan=False), encoding="utf-8")

    @property
    def _most_bytes_each(self) -> int:
        return self.most_bytes // self.most_items

    def _file(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def size_on_disk(path: Path) -> int:
    """The bytes of a file, or of all files below a folder; 0 for what is not there or cannot be read."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        return sum(size_on_disk(item) for item in path.iterdir())
    except OSError:
        return 0


def make_room(folder: Path, most_bytes: int, most_items: int) -> None:
    """Remove the least recently used items beyond these limits, and drafts that dead processes have left."""
    now, total, items = time.time(), 0, 0
    for used_at, path in sorted(_items(folder), key=lambda pair: pair[0], reverse=True):
        if path.name.startswith("."):
            if now - used_at > DRAFT_SECONDS:
                _remove(path)
            continue
        total, items = total + size_on_disk(path), items + 1
        if total > most_bytes or items > most_items:
            _remove(path)


def mark_used(path: Path) -> None:
    """So that it is not among the first to be removed."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _items(folder: Path) -> Iterable[tuple[float, Path]]:
    try:
        return [(path.stat().st_mtime, path) for path in folder.iterdir()]
    except OSError:  # another process may be removing at this moment
        return []


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()

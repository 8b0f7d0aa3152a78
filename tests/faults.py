"""A disk on which the n-th call that writes fails, once or from then on; and what must hold afterwards."""

import builtins
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EIO, ENOSPC
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from PIL import ImageFile

import vitrail.files
from vitrail.errors import VitrailError

ERRORS = (ENOSPC, EIO, EACCES)
MOST = 500  # failing calls, after which an action is taken never to succeed


class Disk:
    """Counts the calls that write below a folder, and lets one of them fail, or all from that one on."""

    def __init__(self, folder: Path, number: int, *, lasting: bool = False) -> None:
        self.folder, self.number, self.lasting = os.path.realpath(folder), number, lasting
        self.calls = 0
        self.failed = ""  # the calls that failed

    def call(self, name: str, path: object) -> None:
        if not str(Path(os.fsdecode(path)).absolute()).startswith(self.folder):  # type: ignore[arg-type]
            return
        self.calls += 1
        if self.calls == self.number or (self.lasting and self.calls > self.number):
            self.failed += f"{name} {path}\n"
            error = ERRORS[self.number % len(ERRORS)]
            raise OSError(error, os.strerror(error), str(path))

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **keywords: Any) -> Any:
            self.call(name, path)
            return function(path, *arguments, **keywords)

        return call

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *text: Any, **keywords: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return OPEN(file, mode, buffering, *text, **keywords)
        self.call("open", file)
        raw = _File(self, file, mode.translate({ord("t"): None, ord("b"): None}))
        if buffering == 0:
            return raw
        stream = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw, 1 << 20)
        return stream if "b" in mode else io.TextIOWrapper(stream, *text, **keywords)


class _File(io.FileIO):
    def __init__(self, disk: Disk, path: Any, mode: str) -> None:
        super().__init__(path, mode)
        self.disk = disk

    def write(self, data: Any) -> int:
        self.disk.call("write", self.name)
        return super().write(data)


OPEN = open


@contextmanager
def failing(disk: Disk) -> Iterator[Disk]:
    """While this lasts, every call that writes asks the disk."""
    calls = {name: disk.counted(name, getattr(os, name)) for name in ("rename", "replace", "mkdir")}
    calls["fsync"] = lambda _: disk.call("fsync", disk.folder)
    encode = ImageFile._encode_tile
    exchange = disk.counted("exchange", vitrail.files._exchange)
    with (
        mock.patch.multiple(os, **calls),
        mock.patch.object(builtins, "open", disk.open),
        mock.patch.object(io, "open", disk.open),
        mock.patch.object(tarfile, "bltn_open", disk.open),
        # Pillow writes to the file itself if it can
        mock.patch.object(ImageFile, "_encode_tile", lambda *some: encode(*some[:4], None, io.UnsupportedOperation())),
        mock.patch.object(vitrail.files, "_exchange", exchange),
    ):
        yield disk


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if not path.is_dir()}


def check_every_failure(
    act: Callable[[Path], object],
    folder: Path,
    start: Callable[[Path], object] = lambda _: None,
    *,
    lasting: bool = False,
    together: bool = False,
) -> int:
    """Let `act` write into a folder that `start` has filled, with its first, second, … call failing, until none does.

    After each failure every file is the old or the new one (`together`: all of them are), and there are no others.
    Returns how many calls can fail.
    """
    whole = folder / "whole"
    whole.mkdir(parents=True)
    start(whole)
    old = contents(whole)
    act(whole)
    new = contents(whole)
    for number in count(1):
        assert number < MOST
        place = folder / str(number)
        place.mkdir()
        start(place)
        with failing(Disk(place, number, lasting=lasting)) as disk, suppress(OSError, VitrailError):
            act(place)
        if not disk.failed:
            assert contents(place) == new
            return number - 1
        if lasting:  # until now; the next one to look finds
            vitrail.files.sweep_drafts(place)
        _check(contents(place), old, new, disk.failed, together=together)
        assert not list(place.rglob(".*")), f"litter after {disk.failed}"
    raise AssertionError


def _check(
    found: dict[str, bytes], old: dict[str, bytes], new: dict[str, bytes], failed: str, *, together: bool
) -> None:
    assert found in (old, new) or not together, f"{sorted(found)} after {failed}"
    for name, data in found.items():
        assert data in (old.get(name), new.get(name)), f"{name} is neither old nor new after {failed}"
    for name in old:
        assert name in found or name not in new, f"{name} is gone after {failed}"

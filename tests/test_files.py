"""Old or new, never neither: whatever fails, and whenever a process is killed."""

import csv
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitrail.files
from faults import Disk, check_every_failure, contents, failing
from vitrail.files import MARK, atomic_path, harmless_cell, open_csv, sweep_drafts


def write_file(folder: Path) -> None:
    with atomic_path(folder / "a.txt") as draft:
        draft.write_text("new")


def write_folder(folder: Path) -> None:
    with atomic_path(folder / "a") as draft:
        draft.mkdir()
        (draft / "1").write_text("new 1")
        (draft / "2").write_text("new 2")


def begin_file(folder: Path) -> None:
    (folder / "a.txt").write_text("old")


def begin_folder(folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "1").write_text("old 1")
    (folder / "a" / "3").write_text("old 3")


@pytest.fixture(params=["exchange", "no exchange"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no exchange":
        monkeypatch.setattr(vitrail.files, "_exchange", lambda *_: False)


@pytest.mark.usefixtures("exchange")
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("act", [write_file, write_folder])
@pytest.mark.parametrize("old", [True, False])
def test_every_failure_leaves_the_old_or_the_new(
    act: Callable[[Path], None], tmp_path: Path, *, old: bool, lasting: bool
) -> None:
    begin = {write_file: begin_file, write_folder: begin_folder}[act] if old else lambda _: None
    assert check_every_failure(act, tmp_path, begin, lasting=lasting, together=True) >= 4


class Fatal(Disk):
    """Kills the process at its n-th call that writes."""

    def call(self, name: str, path: object) -> None:
        self.calls += 1
        if self.calls == self.number:
            os.kill(os.getpid(), signal.SIGKILL)


def die_at(call: int, folder: Path) -> None:
    """Let a process replace a folder, and be killed at the n-th call that writes."""
    child = os.fork()
    if child == 0:
        with failing(Fatal(folder, call)):
            write_folder(folder)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (-signal.SIGKILL, 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("exchange", [True, False])
def test_what_a_killed_process_left_is_cleared_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(vitrail.files, "_exchange", lambda *_: False)
    begin_folder(tmp_path)
    old, new = contents(tmp_path), {"a/1": b"new 1", "a/2": b"new 2"}
    call, drafts, gaps = 0, 0, 0
    while contents(tmp_path) == old:
        call += 1
        die_at(call, tmp_path)
        drafts += any(path.name.startswith(MARK) for path in tmp_path.iterdir())
        gaps += not (tmp_path / "a").exists()
        sweep_drafts(tmp_path)  # as the next one does who writes here, or misses what was here
        assert contents(tmp_path) in (old, new)
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert drafts > 3
    assert gaps == (0 if exchange else 1)


def test_a_living_one_is_left_alone(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a.txt") as draft:
        draft.write_text("mine")
        (tmp_path / f"{MARK}12345678").mkdir()
        sweep_drafts(tmp_path)
        write_file(tmp_path)
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [draft.parent.name]
    assert (tmp_path / "a.txt").read_text() == "mine"


def test_nothing_else_is_swept(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("x")
    (tmp_path / f"{MARK}aaaaaaaa").symlink_to(other)
    (tmp_path / ".vitrail-00000000-bbbbbbbb").mkdir()  # of another machine
    (tmp_path / ".a.original").mkdir()
    sweep_drafts(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4
    assert (other / "file").exists()


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("cat", "cat"),
        ("日本 🐈", "日本 🐈"),
        ('a, "quoted" name', 'a, "quoted" name'),
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@SUM(1)", "'@SUM(1)"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("--help", "'--help"),
        ("  =1", "'  =1"),
        ("\t=1", "'\\t=1"),
        ("\r=1", "'\\r=1"),
        ("＝1", "'＝1"),
        ("-0.5", "-0.5"),
        ("+1e-5", "+1e-5"),
        ("-.5", "-.5"),
        ("-", "'-"),
        ("-inf", "'-inf"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("two\nlines", "two\\nlines"),
        ("\u202ecod.exe", "\\u202ecod.exe"),
        ("\udc9b31m", "\\x9b31m"),
        ("caf\udce9", "caf\udce9"),
        (-0.5, -0.5),
        (3, 3),
        (None, None),
        ("", ""),
    ],
)
def test_what_becomes_of_a_cell(cell: object, written: object) -> None:
    assert harmless_cell(cell) == written


@given(st.text())
def test_no_text_does_anything(text: str) -> None:
    written = str(harmless_cell(text))
    assert not re.search("[\x00-\x1f\x7f-\x9f]", written)
    assert written[:1] not in set("=+-@") or re.fullmatch(r"[+-][0-9.eE+-]+", written)
    assert harmless_cell(written) == written


def test_a_file_for_people_and_one_for_programs(tmp_path: Path) -> None:
    for raw in (False, True):
        with open_csv(tmp_path / "a.csv", ("name", "score"), raw=raw) as write:
            write(("=1\x1b", -0.5))
            write(("caf\udce9", 2))
            write(("old\rmac", 3))
        with (tmp_path / "a.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.reader(file))
        first, last = ("=1\x1b", "old\rmac") if raw else ("'=1\\x1b", r"old\rmac")
        assert rows == [["name", "score"], [first, "-0.5"], ["caf\udce9", "2"], [last, "3"]]

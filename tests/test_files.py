"""Old or new, never neither: whatever fails, and whenever a process is killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import vitrail.files
from faults import Disk, check_every_failure, contents, failing
from vitrail.files import MARK, atomic_path, sweep_drafts


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

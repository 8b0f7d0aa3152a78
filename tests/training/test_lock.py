"""One process per run folder: a second one is told who has it, and a dead one leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vitrail.cli.main import main
from vitrail.errors import ConfigError
from vitrail.training import Listener, lock, train
from vitrail.training.lock import LOCK, RunLock

from .conftest import quick_config

HOLDER = """
import sys, time
from pathlib import Path
from vitrail.training.lock import RunLock
lock = RunLock()
lock.take(Path(sys.argv[1]))
print("taken", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_told_who_has_it_and_a_killed_one_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    with pytest.raises(ConfigError, match=f"in use by another process \\(pid {process.pid} on .*since"):
        RunLock().take(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    mine = RunLock()
    mine.take(tmp_path)
    mine.release()
    assert not (tmp_path / LOCK).exists()


def test_a_run_in_use_is_neither_resumed_nor_begun_again_and_goes_on_unharmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes: list[int] = []
    run = tmp_path / "run"

    class Intruder(Listener):
        def stepped(self, step: int, loss: float, images_per_second: float) -> None:
            if step == 3:
                codes.append(main(["train", "--resume", str(run)]))
                codes.append(main(["train", "digits", "--no-check", "--epochs", "1", "--out", str(run)]))

    outcome = train(quick_config(), run, Intruder())
    assert codes == [2, 2]
    errors = " ".join(capsys.readouterr().err.split())
    assert errors.count(f"is in use by another process (pid {os.getpid()}") == 2
    assert outcome.epochs == 2
    assert len((run / "results.csv").read_text().splitlines()) == 3
    assert not (run / LOCK).exists()


def test_of_two_starts_with_one_folder_the_first_wins(tmp_path: Path) -> None:
    """The second has looked at the folder before there was a run in it."""
    tried: list[str] = []

    class Second(Listener):
        def began(self, total_steps: int, done_steps: int, epochs: int) -> None:
            with pytest.raises(ConfigError, match="in use"):
                RunLock().take(tmp_path / "run")
            tried.append("yes")

    train(quick_config(epochs=1), tmp_path / "run", Second())
    assert tried == ["yes"]


def test_the_lock_of_windows_leaves_the_text_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[int] = set()

    class Fake:
        LK_NBLCK = 2

        @staticmethod
        def locking(handle: int, mode: int, count: int) -> None:
            assert os.lseek(handle, 0, os.SEEK_CUR) == lock.FAR
            if taken:
                raise PermissionError(13, "Permission denied")
            taken.add(handle)

    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "msvcrt", Fake)
    first = RunLock()
    first.take(tmp_path)
    with pytest.raises(ConfigError, match=f"pid {os.getpid()}"):
        RunLock().take(tmp_path)
    first.release()


def test_a_damaged_lock_file_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(b"\xff[[[")
    one, other = RunLock(), RunLock()
    one.take(tmp_path)
    (tmp_path / LOCK).write_bytes(b"\xff[[[")
    with pytest.raises(ConfigError, match="in use by another process;"):
        other.take(tmp_path)
    one.release()

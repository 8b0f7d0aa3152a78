"""A closed terminal: the run saves, though there is nobody left to tell."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitrail.train.signals import Signals


def test_a_hangup_is_a_wish_like_others_unless_nohup_ignores_it() -> None:
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.received == signal.SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not signals.received
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_run_saves_when_its_terminal_is_closed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vitrail", "train", "digits", "--epochs", "4000", "--no-check", "--out", "run"]
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    os.set_blocking(keyboard, False)
    rows = tmp_path / "run" / "results.csv"
    deadline = time.monotonic() + 120
    while not rows.exists():
        assert time.monotonic() < deadline
        try:
            os.read(keyboard, 10_000)  # as a terminal does
        except BlockingIOError:
            time.sleep(0.05)
    os.close(keyboard)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 128 + signal.SIGHUP
    newest = max((tmp_path / "run" / "weights" / "last").glob("step-*/state.json"))
    assert json.loads(newest.read_text())["progress"]["step"] > 9
    assert not (tmp_path / "run" / ".lock").exists()

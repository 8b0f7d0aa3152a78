"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal) as a request that the loop honours after the step, not a crash.

Before the first step there is nothing to save: then they end the process at once.
"""

import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from vitrail.errors import ResumableError


class InterruptedRunError(ResumableError):
    """The run was asked to stop, and has been saved."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__("the run was interrupted and has been saved", folder)
        self.exit_code = 128 + number


GRACE = 1.0  # seconds that a process has to end by itself


class PromptEnd:
    """From when it is made until `cancel`, a process that is asked to stop ends after a moment, come what may.

    By itself, Python hears of a signal only when torch has computed, and then waits for all its threads.
    """

    def __init__(self) -> None:
        self._cancelled = threading.current_thread() is not threading.main_thread()  # which alone hears signals
        if not self._cancelled:
            self._heard, self._wakeup = socket.socketpair()
            self._wakeup.setblocking(False)
            signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        with self._heard:
            while number := self._heard.recv(1):
                if number[0] in (signal.SIGINT, signal.SIGTERM):
                    time.sleep(GRACE)
                    if not self._cancelled:
                        os._exit(128 + number[0])

    def cancel(self) -> None:
        """From now on, whoever handles signals decides."""
        if not self._cancelled:
            self._cancelled = True
            signal.set_wakeup_fd(-1)
            self._wakeup.close()


class Signals:
    """While it is entered, the first signal is remembered; a second one has its usual effect at once."""

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in _wishes():
                self._previous[number] = signal.signal(number, self._remember)
        return self

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        signal.signal(number, self._previous[number])

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)


def _wishes() -> list[int]:
    """The signals that ask a run to stop; SIGHUP is unknown to Windows, and ignored under nohup."""
    hangup: int | None = getattr(signal, "SIGHUP", None)
    wanted = hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([hangup] if hangup is not None and wanted else [])]

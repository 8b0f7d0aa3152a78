"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal) as a request that the loop honours after the step, not a crash."""

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from vitrail.errors import ResumableError


class InterruptedRunError(ResumableError):
    """The run was asked to stop, and has been saved."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__("the run was interrupted and has been saved", folder)
        self.exit_code = 128 + number


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)


def _wishes() -> list[int]:
    """The signals that ask a run to stop; SIGHUP is unknown to Windows, and ignored under nohup."""
    hangup: int | None = getattr(signal, "SIGHUP", None)
    wanted = hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([hangup] if hangup is not None and wanted else [])]

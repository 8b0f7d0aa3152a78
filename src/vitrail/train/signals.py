"""Ctrl-C and SIGTERM as a wish that the loop grants at the next step, and not as a crash in the middle of one."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from vitrail.errors import VitrailError


class InterruptedRunError(VitrailError):
    """The run was asked to stop, and has saved itself."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted")
        self.exit_code = 128 + number


class Signals:
    """While it is entered, the first signal is remembered; a second one has its usual effect at once."""

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
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

"""Signs of life in a pipe, where no bar moves: a line before a reader has waited half a minute."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console

EVERY = 25.0  # seconds without a line after which one is due, so that nobody waits 30
LOOK = 1.0  # seconds between two looks at the clock

Clock = Callable[[], float]


class Pulse:
    """Prints what `describe` says when nothing has been printed for a while, by this pulse or an earlier one."""

    spoken_at: float | None = None  # shared by all: several short steps of work are one long silence to the reader

    def __init__(self, console: Console, describe: Callable[[], str], clock: Clock = time.monotonic) -> None:
        self._console, self._describe, self._clock = console, describe, clock
        self._began = clock()
        if Pulse.spoken_at is None:
            Pulse.spoken_at = self._began

    def heard(self) -> None:
        """Something else has been printed."""
        Pulse.spoken_at = self._clock()

    def speak(self) -> None:
        """A line, if one is due."""
        now = self._clock()
        if Pulse.spoken_at is not None and now - Pulse.spoken_at < EVERY:
            return
        Pulse.spoken_at = now
        self._console.print(
            f"{self._describe()} ({now - self._began:.0f} s)", markup=False, style="dim", soft_wrap=True
        )

    @contextmanager
    def beating(self) -> Generator[None]:
        """Look at the clock from a thread of its own while the work goes on."""
        ended = Event()

        def beat() -> None:
            while not ended.wait(LOOK):
                self.speak()

        thread = Thread(target=beat, name="pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

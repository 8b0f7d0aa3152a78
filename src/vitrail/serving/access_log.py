"""One line of JSON for each request, written without making anybody wait: never what is in a picture, never a token."""

import json
import sys
import time
from collections import deque
from threading import Event, Thread
from typing import TextIO

from vitrail.serving.exchange import Exchange

PAUSE = 0.2  # seconds between two looks at what is to be written
MOST_LINES = 10_000  # that wait while nobody reads the log; then the oldest are dropped


class AccessLog:
    """Collects lines; a thread writes them, so that a reader who is slow slows nobody down."""

    def __init__(self, enabled: bool, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._ended = Event()
        self._thread = Thread(target=self._work, name="access log", daemon=True) if enabled else None
        if self._thread is not None:
            self._thread.start()

    def write(self, exchange: Exchange) -> None:
        """Note an exchange that has ended."""
        if self._thread is None:
            return
        facts = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": exchange.id,
            "method": exchange.method,
            "path": exchange.path[:200],
            "status": exchange.status,
            "ms": round(1000 * exchange.seconds, 2),
            "pictures": exchange.pictures,
            "bytes": exchange.received,
            "client": exchange.client,
        }
        self._lines.append(json.dumps(facts))

    def close(self) -> None:
        """Write what is left."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _work(self) -> None:
        while not self._ended.wait(PAUSE):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        lines: list[str] = []
        while self._lines:
            lines.append(self._lines.popleft() + "\n")
        if lines:
            try:
                self._stream.write("".join(lines))
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads it any more
                return

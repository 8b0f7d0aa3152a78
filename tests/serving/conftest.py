"""What the tests of serving share: a running service with the bundled model, and one whose worker is a stand-in."""

import asyncio
import io
import json
import re
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image

from processes import SECONDS, wait_for
from vitrail.serving.app import build_app
from vitrail.serving.batching import Answer, Item, Slots
from vitrail.serving.dispatch import Service
from vitrail.serving.settings import ServeSettings
from vitrail.serving.telemetry import AccessLog

if TYPE_CHECKING:
    from serving.browser import Chromium, Script

QUICK = {
    "runtime": "torch",
    "threads": 1,
    "max_batch": 4,
    "max_wait_ms": 0,
    "client_timeout": 2,
    "max_client_connections": 64,
    "port": 0,
}


class Running:
    """A service in a process of its own."""

    def __init__(self, *models: str, **changes: Any) -> None:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**QUICK, **changes}.items()]
        command = [sys.executable, "-m", "vitrail", "serve", *models, *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []  # on the error stream
        self.logged: list[str] = []  # on standard output
        self._threads = [
            threading.Thread(target=collect, args=each)
            for each in ((self.process.stderr, self.said), (self.process.stdout, self.logged))
        ]
        for thread in self._threads:
            thread.start()
        wait_for(lambda: any("serving on" in line for line in list(self.said)) or self.process.poll() is not None)
        text = "".join(self.said)
        match = re.search(r"serving on http://127.0.0.1:(\d+)", text)
        assert match, text
        self.port = int(match[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def workers(self) -> list[psutil.Process]:
        """One, or two while a model is exchanged."""
        found: list[psutil.Process] = []
        for each in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                if each.status() != "zombie":
                    found.append(each)
        return found

    def worker(self) -> psutil.Process:
        (worker,) = self.workers()
        return worker

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Until it has ended by itself."""
        code = self.process.wait(SECONDS)
        for thread in self._threads:
            thread.join()
        return code


def collect(stream: Any, lines: list[str]) -> None:
    with stream:
        for line in stream:
            lines.append(line)  # noqa: PERF402 - line by line


@pytest.fixture(scope="session")
def running() -> Generator[Running]:
    service = Running()
    yield service
    assert service.end() == 143


@pytest.fixture(scope="session")
def client(running: Running) -> Generator[httpx.Client]:
    with httpx.Client(base_url=running.url, timeout=SECONDS) as client:
        yield client


def encode(
    kind: str = "PNG", size: tuple[int, int] = (40, 30), mode: str = "RGB", seed: int = 0, **options: Any
) -> bytes:
    """A picture of noise as a file."""
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture(scope="session")
def chromium() -> Generator["Chromium"]:
    from serving.browser import Chromium  # which needs Playwright

    browser = Chromium()
    yield browser
    browser.end()


@pytest.fixture
def visit(chromium: "Chromium", request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs a script on a page of the service with the bundled model, unless another is given."""

    def visit(script: "Script", url: str = "", *, expected: str = "", **options: Any) -> Any:
        url = url or request.getfixturevalue("running").url
        return chromium.thread.submit(chromium.visit, url, script, expected, options).result()

    return visit


@pytest.fixture(scope="session")
def picture() -> bytes:
    return encode()


FACTS: dict[str, Any] = {
    "version": "0123456789ab",
    "sha256": "0123456789ab" * 5,
    "task": "one",
    "output": "probabilities",
    "classes": 3,
    "labels": ["cat", "dog", "owl"],
    "thresholds": None,
    "image_size": [2, 2],
    "channels": 3,
    "grid": [1, 1],
    "depth": 1,
    "heads": 1,
    "runtime": "torch",
    "precision": "float32",
    "explains": True,
    "methods": ["attention"],
    "temperature": None,
    "highest_coverage": None,
    "notes": [],
}


class StandIn(Slots):
    """A worker that answers at once, or never, in the event loop itself."""

    def __init__(self, answers: Callable[[dict[str, Any], bytes], Answer] | None) -> None:
        self.free = self.spare = self.threads = 1
        self.max_batch, self.always_waits = 4, True
        self.missed = 0
        self.seen: list[Sequence[Item]] = []
        self._answers = answers
        self.gone = type("Never", (), {"is_set": lambda self: False})()

    def start(self, kind: str, items: Sequence[Item], alone: bool) -> None:
        self.seen.append(items)
        if self._answers is None:
            self.spare -= items[0].large
            self.free -= not items[0].large
            return
        for item in items:
            item.future.set_result(self._answers(item.facts, item.blob))


def answer_cat(facts: dict[str, Any], blob: bytes) -> Answer:
    return Answer({"labels": [["cat", 0, 0.75]]}, (), 0.001, 0.002, 0.003)


class Skipping(asyncio.SelectorEventLoop):
    """An event loop on which time passes only while all wait, and at once: no test depends on how busy a machine is."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = selectors.DefaultSelector()
        select = selector.select

        def skip(timeout: float | None = None) -> Any:
            events = select(0 if timeout else timeout)
            self.now += 0 if events or timeout is None else timeout
            return events

        selector.select = skip  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self.now


class InProcess:
    """The app without a socket; its worker is a stand-in."""

    def __init__(self, answers: Callable[[dict[str, Any], bytes], Answer] | None = answer_cat, **settings: Any) -> None:
        self.service = Service({"first": "a", "second": "b"}, ServeSettings(**{"threads": 1, **settings}))
        self.worker = StandIn(answers)
        for host in self.service.hosts.values():
            host.facts = {**FACTS}
            host._worker = host.batcher.worker = self.worker  # type: ignore[assignment]
        self.lines = io.StringIO()
        self.log = AccessLog(True, self.lines)
        self.app = build_app(self.service, self.log)

    def client(self, **options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", **options)

    def logged(self) -> list[dict[str, Any]]:
        self.log.close()
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]

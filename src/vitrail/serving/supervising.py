"""One model of the service: its queue, and its worker, which is watched, restarted, and exchanged for a newer one."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from vitrail.errors import VitrailError
from vitrail.serving.batching import Batcher
from vitrail.serving.metrics import Metrics
from vitrail.serving.problems import Problem
from vitrail.serving.settings import ServeSettings
from vitrail.serving.workers import Worker, start_worker
from vitrail.weights.layout import stamps_of
from vitrail.weights.locate import locate
from vitrail.wording import reason

LONGEST_PAUSE = 30.0  # seconds between two attempts to start a worker
STEADY = 60.0  # seconds after which a worker counts as healthy, and the pauses begin anew
LOOK = 0.5  # seconds between two looks at a model's files, and at its worker
SILENT, HUNG = 6, 20  # looks without a sign of life after which a worker is not ready, and is ended
START_RETRY = 5  # seconds after which a model that is being loaded may be ready
SHORTEST_STUCK = 30.0  # seconds without an answer after which a worker is ended

Say = Callable[[str], None]


class Host:
    """Keeps one model served for as long as the service runs."""

    def __init__(self, name: str, source: str, settings: ServeSettings, metrics: Metrics, say: Say) -> None:
        self.name, self.source, self._settings, self._metrics, self._say = name, source, settings, metrics, say
        self.facts: dict[str, Any] = {}  # of the model that was last ready
        self.batcher = Batcher(settings.queue_size)
        self.hopeless = False  # its workers keep ending: better refuse than let wait
        self._worker: Worker | None = None
        self._retired: list[Worker] = []  # which still have something to answer
        self._tasks: list[asyncio.Task[None]] = []
        metrics.waiting.labels(name).set_function(lambda: self.batcher.waiting)
        metrics.ready.labels(name).set_function(lambda: float(self.ready))

    @property
    def ready(self) -> bool:
        worker = self._worker
        return worker is not None and not worker.gone.is_set() and worker.missed < SILENT

    async def start(self) -> None:
        """The first worker; a model that cannot be loaded is an error. From then on it is watched."""
        self._switch(await self._open())
        self._tasks.append(asyncio.create_task(self._watch()))
        if self._settings.reload:
            self._tasks.append(asyncio.create_task(self._follow()))

    async def stop(self) -> None:
        """End the worker."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        worker, self._worker, self.batcher.worker = self._worker, None, None
        await asyncio.gather(*(each.end() for each in (worker, *self._retired) if each is not None))

    async def _open(self) -> Worker:
        settings = self._settings
        assert settings.threads is not None
        worker = await start_worker(settings.threads)
        order = {
            "source": self.source,
            "runtime": settings.runtime,
            "precision": settings.precision,
            "max_pixels": settings.max_pixels,
            "threads": settings.threads,
            "max_batch": settings.max_batch,
        }
        try:
            await worker.wait_until_ready(self.name, order, settings, self._metrics)
        except BaseException:
            worker.kill()
            raise
        return worker

    def _switch(self, worker: Worker) -> None:
        """From now on, this worker gets what waits; the one before it answers what it has."""
        before, self._worker = self._worker, worker
        self.hopeless = False
        self.facts = worker.facts
        worker.heard = self.batcher.answered
        self.batcher.worker = worker
        self.batcher.pump()
        if before is not None:
            before.retire()
            self._retired.append(before)

    async def _watch(self) -> None:
        """Start a worker again when it has ended, with longer pauses if it keeps ending."""
        failures, since = 0, time.monotonic()
        while True:
            worker = self._worker
            assert worker is not None
            try:
                await asyncio.wait_for(worker.gone.wait(), LOOK)
            except TimeoutError:
                self._retired = [each for each in self._retired if not each.gone.is_set()]
                for each in (worker, *self._retired):
                    self._check(each)
                continue
            if worker is not self._worker:  # it was exchanged
                continue
            self.batcher.worker = None
            failures = 0 if time.monotonic() - since > STEADY else failures + 1
            self.hopeless = failures > 1
            self._say(f"the worker of {self.name} has ended; starting it again")
            since = await self._restart(failures)

    async def _restart(self, failures: int) -> float:
        """Until a worker is ready; when that was."""
        while True:
            await asyncio.sleep(0 if failures <= 1 else min(LONGEST_PAUSE, 0.25 * 2**failures))
            self._metrics.restarts.labels(self.name).inc()
            try:
                self._switch(await self._open())
            except (VitrailError, OSError) as error:
                failures += 1
                self.hopeless = True
                self.batcher.refuse(restarting(self.name))
                self._say(f"{self.name} cannot be started again yet: {reason(error)}")
            else:
                self._say(f"{self.name} is ready again")
                return time.monotonic()

    def _check(self, worker: Worker) -> None:
        """End a worker that is stopped or stuck; looks are counted, not seconds: the front may have been stopped."""
        worker.missed += 1
        if worker.missed > HUNG:
            silence = f"given no sign of life for {HUNG * LOOK:.0f} s"
        elif worker.stuck_for() > max(SHORTEST_STUCK, 2 * self._settings.timeout):
            silence = f"not answered for {worker.stuck_for():.0f} s"
        else:
            return
        self._say(f"the worker of {self.name} has {silence} and is being killed")
        worker.kill()

    async def _follow(self) -> None:
        """Exchange the worker when the model's files have changed, and have stopped changing."""
        served = before = fingerprint(self.source)
        while True:
            await asyncio.sleep(LOOK)
            now = fingerprint(self.source)
            if now is None or now == served or now != before:
                before = now
                continue
            served = now
            try:
                self._switch(await self._open())
            except (VitrailError, OSError) as error:
                self._say(f"{self.name} has changed but cannot be loaded, so the old one stays: {reason(error)}")
            else:
                self._say(f"{self.name} has changed: version {self.facts['version']} is served from now on")


def restarting(name: str) -> Problem:
    """What is told while a model's worker is not there."""
    return Problem("not_ready", f"the model {name} is being started again.", retry_after=START_RETRY)


def fingerprint(source: str) -> tuple[Any, ...] | None:
    """Which files a model consists of and when they changed; None while they are not complete."""
    try:
        path = locate(source, allow_export=True).path
        assert path is not None
        return stamps_of(path)
    except (VitrailError, OSError):
        return None

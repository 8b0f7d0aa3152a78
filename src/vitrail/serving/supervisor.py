"""One worker process per model, as the front sees it: started, asked, watched, restarted, exchanged for a newer one."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vitrail.errors import VitrailError
from vitrail.serving.batching import BATCHED, Answer, Batcher, Item, Kind, Slots
from vitrail.serving.exchange import Problem
from vitrail.serving.frames import Frame, pack, read_frame
from vitrail.serving.settings import ServeSettings
from vitrail.serving.telemetry import Metrics
from vitrail.weights.resolve import locate, stamps_of
from vitrail.wording import reason

GONE_RETRY = 2  # seconds after which a worker that has ended may be back
END_SECONDS = 5.0  # that a worker gets to end by itself
LOAD_SILENCE = 60.0  # seconds without a heartbeat while it loads: a library may hold up all of Python for some time
BLOBS = {"top": 0, "row": 1, "scores": 2}  # of a picture's answer, by what is wanted
LONGEST_PAUSE = 30.0  # seconds between two attempts to start a worker
STEADY = 60.0  # seconds after which a worker counts as healthy, and the pauses begin anew
LOOK = 0.5  # seconds between two looks at a model's files, and at its worker
SILENT, HUNG = 6, 20  # looks without a heartbeat after which a worker is not ready, and is ended
START_RETRY = 5  # seconds after which a model that is being loaded may be ready
SHORTEST_STUCK = 30.0  # seconds without an answer after which a worker is ended

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sent:
    """A batch that the worker has and has not answered."""

    kind: Kind
    items: Sequence[Item]
    at: float
    cores: int = 1
    large: bool = False  # in a thread of the large ones


Heard = Callable[[Sent, float, float], None]  # is told of an answered batch, and the seconds to decode and compute it


class Worker(Slots):
    """A process that computes for one model. `start_worker` makes one."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self.facts: dict[str, Any] = {}  # of its model
        self.gone = asyncio.Event()
        self.retired = False  # nothing new is sent to it
        self.missed = 0  # looks at it since its last heartbeat
        self.heard: Heard = lambda _, __, ___: None
        self._reader, self._writer = reader, writer
        self._sent: dict[int, Sent] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None

    async def wait_until_ready(self, order: dict[str, Any], max_wait_ms: float | None) -> None:
        """Until the model is loaded and warm; a model that cannot be loaded is an error."""
        self._writer.write(pack(Frame(order)))
        try:
            while (frame := await asyncio.wait_for(read_frame(self._reader), LOAD_SILENCE)) and "beat" in frame.facts:
                pass
        except TimeoutError:
            raise VitrailError(
                f"the worker for {order['source']} sent no heartbeat for {LOAD_SILENCE:.0f} s while it loaded it."
            ) from None
        if frame is None:
            code = await self.process.wait()
            raise VitrailError(f"the worker for {order['source']} ended while it loaded the model (exit code {code}).")
        if "failed" in frame.facts:
            await self.end()
            raise VitrailError(frame.facts["failed"])
        self.facts = frame.facts["ready"]
        if max_wait_ms is not None:
            self.facts["max_wait_ms"] = max_wait_ms
        self.threads = self.free = self.spare = self.facts["threads"]
        self.max_batch = self.facts["max_batch"]
        self.max_wait, self.always_waits = self.facts["max_wait_ms"] / 1000, max_wait_ms is not None
        self._task = asyncio.create_task(self._listen())

    def start(self, kind: Kind, items: Sequence[Item], alone: bool) -> None:
        """Send a batch; a small one that is alone gets all cores, where that is faster."""
        large, batched = items[0].large, kind in BATCHED
        spread = alone and not large and batched and self.facts["spreads"] and len(items) < self.threads == self.free
        sent = Sent(kind, items, time.perf_counter(), self.threads if spread else 1, large)
        self._count += 1
        self._occupy(sent, 1)
        self._sent[self._count] = sent
        pool = "large" if large else "wide" if spread else "narrow"
        asked = {"items": [item.facts for item in items]} if batched else {"options": items[0].facts}
        frame = Frame({"id": self._count, "kind": kind, "pool": pool, **asked}, [item.blob for item in items])
        self._writer.write(pack(frame))

    def _occupy(self, sent: Sent, sign: int) -> None:
        """Count what a batch takes, or (-1) gives back."""
        if sent.large:
            self.spare -= sign
            self.decoding += sign * sent.items[0].pixels
        else:
            self.free -= sign * sent.cores
            self.explaining += sign * (sent.kind not in BATCHED)

    def stuck_for(self) -> float:
        """Seconds that the oldest batch has been without an answer."""
        oldest = next(iter(self._sent.values()), None)
        return 0.0 if oldest is None else time.perf_counter() - oldest.at

    def retire(self) -> None:
        """Let it answer what it has, then end."""
        self.retired = True
        if not self._sent:
            self._writer.close()

    def kill(self) -> None:
        """End it at once."""
        if self.process.returncode is None:
            self.process.kill()

    async def end(self) -> None:
        """Let it go; one that does not is killed."""
        self._writer.close()
        try:
            await asyncio.wait_for(self.process.wait(), END_SECONDS)
        except TimeoutError:
            self.kill()
            await self.process.wait()

    async def _listen(self) -> None:
        try:
            while (frame := await read_frame(self._reader)) is not None:
                self.missed = 0
                if "beat" not in frame.facts:
                    self._answered(frame)
                if self.retired and not self._sent:
                    break
        finally:
            self._writer.close()
            self._forget()
            self.gone.set()
        await self.end()

    def _answered(self, frame: Frame) -> None:
        facts = frame.facts
        sent = self._sent.pop(facts["id"])
        self._occupy(sent, -1)
        decode, compute = facts.get("decode", 0.0), facts.get("compute", 0.0)
        blobs = iter(frame.blobs)
        for index, item in enumerate(sent.items):
            if "error" in facts or sent.kind not in BATCHED:  # one answer for the whole batch
                entry, own = {name: facts[name] for name in ("error", "result") if name in facts}, frame.blobs
            else:
                entry = facts["items"][index]
                own = [next(blobs) for _ in range(0 if "error" in entry else BLOBS[item.facts["want"]])]
            if not item.future.done():
                item.future.set_result(Answer(entry, own, sent.at - item.added, decode, compute, self.facts))
        self.heard(sent, decode, compute)

    def _forget(self) -> None:
        """Tell those who wait that there will be no answer."""
        for sent in self._sent.values():
            for item in sent.items:
                if not item.future.done():
                    item.future.set_exception(
                        Problem("not_ready", "the model's worker ended while it computed this.", retry_after=GONE_RETRY)
                    )
        self._sent.clear()
        self.free = self.spare = 0


async def start_worker(threads: int) -> Worker:
    """A new process, which has not loaded anything yet."""
    ours, theirs = socket.socketpair()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # nothing is imported from the folder that the service was started in
            "-m",
            "vitrail.serving.worker",
            str(theirs.fileno()),
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else asyncio.subprocess.DEVNULL,
            env=environment,
        )
    finally:
        theirs.close()
    ours.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    return Worker(process, reader, writer)


def _has_descriptor(stream: Any) -> bool:
    try:
        return stream.fileno() >= 0
    except (OSError, ValueError, AttributeError):
        return False


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
        ordered = ("runtime", "precision", "max_pixels", "threads", "max_batch")
        order = {"source": self.source, **{name: getattr(settings, name) for name in ordered}}
        try:
            await worker.wait_until_ready(order, settings.max_wait_ms)
        except BaseException:
            worker.kill()
            raise
        return worker

    def _switch(self, worker: Worker) -> None:
        """From now on, this worker gets what waits; the one before it answers what it has."""
        before, self._worker = self._worker, worker
        self.hopeless = False
        self.facts = worker.facts
        worker.heard = partial(self._heard, worker.threads)
        self.batcher.worker = worker
        self.batcher.pump()
        if before is not None:
            before.retire()
            self._retired.append(before)

    def _heard(self, threads: int, sent: Sent, decode: float, compute: float) -> None:
        waited = [sent.at - item.added for item in sent.items]
        self._metrics.batch(self.name, sent.kind, decode, compute, waited)
        seconds = (decode + compute) / len(sent.items) / max(1, threads // sent.cores)
        self.batcher.answered(len(sent.items), seconds)

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
            silence = f"sent no heartbeat for {HUNG * LOOK:.0f} s"
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

"""One worker process per model, as the front sees it: started, asked, watched, restarted, exchanged for a newer one."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.errors import VitrailError
from vitrail.serving.batching import BATCHED, Answer, Batcher, Item, Kind
from vitrail.serving.exchange import Problem
from vitrail.serving.frames import Frame, pack, read_frame
from vitrail.serving.settings import ServeSettings
from vitrail.serving.telemetry import Metrics
from vitrail.weights.resolve import locate, stamps_of
from vitrail.wording import reason

GONE_RETRY = 2  # seconds after which a worker that has ended may be back
END_SECONDS = 5.0  # that a worker gets to end by itself
LOAD_SILENCE = 60.0  # seconds without a sign of life while it loads: a library may hold up all of Python for some time


@dataclass(frozen=True)
class Sent:
    """A batch that the worker has and has not answered."""

    kind: Kind
    items: Sequence[Item]
    at: float
    cores: int = 1
    large: bool = False  # in a thread of the large ones


class Worker:
    """A process that computes for one model. `start_worker` makes one."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self.facts: dict[str, Any] = {}
        self.free = self.spare = self.decoding = self.explaining = self.threads = 0
        self.max_batch, self.max_wait = 1, 0.0
        self.spreads = self.always_waits = False
        self.gone = asyncio.Event()
        self.retired = False  # nothing new is sent to it
        self.missed = 0  # looks at it since its last sign of life
        self.heard: Callable[[int, float], None] = lambda _, __: None  # pictures answered, and seconds for each
        self._model = ""  # its name, for the metrics
        self._metrics: Metrics | None = None
        self._reader, self._writer = reader, writer
        self._sent: dict[int, Sent] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None

    async def wait_until_ready(
        self, model: str, order: dict[str, Any], settings: ServeSettings, metrics: Metrics
    ) -> None:
        """Until the model is loaded and warm; a model that cannot be loaded is an error."""
        self._model = model
        self._writer.write(pack(Frame(order)))
        try:
            while (frame := await asyncio.wait_for(read_frame(self._reader), LOAD_SILENCE)) and "beat" in frame.facts:
                pass
        except TimeoutError:
            raise VitrailError(
                f"the worker for {order['source']} gave no sign of life for {LOAD_SILENCE:.0f} s while it loaded it."
            ) from None
        if frame is None:
            code = await self.process.wait()
            raise VitrailError(f"the worker for {order['source']} ended while it loaded the model (exit code {code}).")
        if "failed" in frame.facts:
            await self.end()
            raise VitrailError(frame.facts["failed"])
        self.facts = frame.facts["ready"]
        if settings.max_wait_ms is not None:
            self.facts["max_wait_ms"] = settings.max_wait_ms
        self.threads = self.free = self.spare = self.facts["threads"]
        self.max_batch, self.spreads = self.facts["max_batch"], self.facts["spreads"]
        self.max_wait, self.always_waits = self.facts["max_wait_ms"] / 1000, settings.max_wait_ms is not None
        self._metrics = metrics
        self._task = asyncio.create_task(self._listen())

    def start(self, kind: Kind, items: Sequence[Item], alone: bool) -> None:
        """Send a batch; a small one that is alone gets all cores, where that is faster."""
        large = items[0].large
        spread = not large and self.spreads and alone and kind in BATCHED and len(items) < self.threads == self.free
        sent = Sent(kind, items, time.perf_counter(), self.threads if spread else 1, large)
        self._count += 1
        self._occupy(sent, 1)
        self._sent[self._count] = sent
        facts: dict[str, Any] = {"id": self._count, "kind": kind, "pool": _pool(spread, large)}
        if kind in BATCHED:
            facts["items"] = [item.facts for item in items]
        else:
            facts["options"] = items[0].facts
        self._writer.write(pack(Frame(facts, [item.blob for item in items])))

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
        if self._metrics is not None:
            queued = [sent.at - each.added for each in sent.items]
            self._metrics.batch(self._model, sent.kind, len(sent.items), decode, compute, queued)
        if "error" in facts or sent.kind not in BATCHED:  # one answer for the whole batch
            answers = [({name: facts[name] for name in ("error", "result") if name in facts}, frame.blobs)] * len(
                sent.items
            )
        else:
            answers = _share_blobs(facts["items"], sent.items, frame.blobs)
        for item, (entry, blobs) in zip(sent.items, answers, strict=True):
            if not item.future.done():
                item.future.set_result(Answer(entry, blobs, sent.at - item.added, decode, compute, self.facts))
        self.heard(len(sent.items), (decode + compute) / len(sent.items) / max(1, self.threads // sent.cores))

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


def _pool(spread: bool, large: bool) -> str:
    """Which of the worker's threads compute a batch."""
    return "large" if large else "wide" if spread else "narrow"


def _share_blobs(
    entries: Sequence[dict[str, Any]], items: Sequence[Item], blobs: Sequence[bytes]
) -> list[tuple[dict[str, Any], Sequence[bytes]]]:
    """Each picture's entry with the blobs that are its own."""
    shared: list[tuple[dict[str, Any], Sequence[bytes]]] = []
    position = 0
    for entry, item in zip(entries, items, strict=True):
        count = 0 if "error" in entry else {"top": 0, "row": 1, "scores": 2}[item.facts["want"]]
        shared.append((entry, blobs[position : position + count]))
        position += count
    return shared


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

"""One worker process, as the front sees it: started, asked, heard, ended."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.errors import VitrailError
from vitrail.serving.batching import BATCHED, Answer, Item, Kind
from vitrail.serving.frames import Frame, pack, read_frame
from vitrail.serving.metrics import Metrics
from vitrail.serving.problems import Problem
from vitrail.serving.settings import ServeSettings

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
        self.free = self.spare = self.explaining = self.threads = 0
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

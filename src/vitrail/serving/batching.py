"""The bounded queue of one model, and which of the waiting pictures are computed together.

Whenever a core of the worker is free, what waits is divided among the free cores, up to `max_batch` pictures each.
While all cores are busy pictures gather, so that batches grow with the load by themselves. While a core is idle nobody
waits, unless `max_wait_ms` says so; a wait that was measured to pay is made only while pictures come in company.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from vitrail.serving.problems import Problem
from vitrail.wording import agree, counted

Kind = Literal["logits", "features", "explain", "attention"]
BATCHED: tuple[Kind, ...] = ("logits", "features")
REMEMBERED = 50  # pictures whose pace is the pace
LONGEST_RETRY = 60  # seconds that a client is told to wait at most
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Answer(NamedTuple):
    """What the worker says about one picture, and the seconds that it took."""

    facts: dict[str, Any]
    blobs: Sequence[bytes] = ()
    queue: float = 0.0
    decode: float = 0.0
    compute: float = 0.0
    model: Mapping[str, Any] = NOTHING  # the facts of the model that answered, which may be exchanged any time


@dataclass(eq=False)
class Item:
    """One picture that waits."""

    facts: dict[str, Any]
    blob: bytes
    future: "asyncio.Future[Answer]"
    added: float = field(default_factory=time.perf_counter)


class Slots(Protocol):
    """A worker, as the queue sees it."""

    free: int  # batches that it could start now
    explaining: int  # explanations that it works on
    threads: int
    max_batch: int
    max_wait: float  # seconds
    always_waits: bool  # or only while others can be expected

    def start(self, kind: Kind, items: Sequence[Item], alone: bool) -> None: ...


class Batcher:
    """The queue of one model; it outlives the workers."""

    def __init__(self, size: int, now: Callable[[], float] = time.perf_counter) -> None:
        self.size = size
        self.worker: Slots | None = None
        self.pace = 0.01  # seconds per picture lately, over all cores
        self._now = now
        self._last = 1  # pictures in the batch that was started last
        self._queues: dict[Kind, dict[Item, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def submit(self, kind: Kind, items: Sequence[Item]) -> None:
        """Let pictures wait for their turn; all of them or none."""
        if self.waiting + len(items) > self.size:
            raise Problem(
                "queue_full",
                f"{counted(self.waiting, 'picture')} {agree(self.waiting, 'is', 'are')} waiting already, and "
                f"{len(items)} more would exceed the limit of {self.size:,}.",
                retry_after=self.retry_after(),
            )
        queue = self._queues.setdefault(kind, {})
        queue.update(dict.fromkeys(items))
        self.pump()

    def withdraw(self, kind: Kind, items: Sequence[Item]) -> None:
        """Forget pictures whose client no longer waits; those that are being computed already are not stopped."""
        queue = self._queues.get(kind, {})
        for item in items:
            queue.pop(item, None)
            item.future.cancel()

    def refuse(self, problem: Problem) -> None:
        """Answer all who wait that they wait in vain."""
        for queue in self._queues.values():
            for item in queue:
                if not item.future.done():
                    item.future.set_exception(problem)
            queue.clear()

    def answered(self, count: int, seconds: float) -> None:
        """The worker has answered so many pictures, at so many seconds for each, and has a core free."""
        self.pace += (seconds - self.pace) * min(1.0, count / REMEMBERED)
        self.pump()

    def retry_after(self) -> int:
        """Seconds until what waits now has been computed, about."""
        return max(1, min(LONGEST_RETRY, math.ceil(self.waiting * self.pace)))

    def pump(self) -> None:
        """Start what can be started."""
        worker = self.worker
        while worker is not None and worker.free > 0:
            kind = self._next(worker)
            if kind is None:
                return
            queue = self._queues[kind]
            most = worker.max_batch if kind in BATCHED else 1
            oldest = next(iter(queue))
            ripe = oldest.added + (worker.max_wait if worker.always_waits or self._expects(worker) else 0.0)
            if kind in BATCHED and len(queue) < most and self._now() < ripe:
                self._wait_until(ripe)
                return
            count = min(most, math.ceil(len(queue) / worker.free))
            items = [item for item, _ in zip(queue, range(count), strict=False)]
            for item in items:
                del queue[item]
            self._last = count
            worker.start(kind, items, alone=not self.waiting)

    def _expects(self, worker: Slots) -> bool:
        """Whether pictures come in company: others are being computed, or were computed together a moment ago."""
        return worker.free < worker.threads or self._last > 1

    def _next(self, worker: Slots) -> Kind | None:
        """The kind of the picture that has waited longest; explanations leave a core for the others."""
        heads: list[tuple[float, Kind]] = [
            (next(iter(queue)).added, kind)
            for kind, queue in self._queues.items()
            if queue and (kind in BATCHED or worker.explaining < max(1, worker.threads - 1))
        ]
        return min(heads)[1] if heads else None

    def _wait_until(self, ripe: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, ripe - self._now()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.pump()

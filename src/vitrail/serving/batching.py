"""The bounded queue of one model, and which of the waiting pictures are computed together.

Whenever a core of the worker is free, what waits is divided among the free cores, up to `max_batch` pictures each.
While all cores are busy, pictures gather, so that batches grow with the load by themselves. While a core is idle, no
picture waits unless `max_wait_ms` says so; a wait that was measured to pay is made only while pictures come together.

Large pictures take long to decode. They have threads of their own, which give way to the others; few of them are
decoded at once, very large ones one by one. Among those who wait, clients take turns by the pixels that they have sent.
"""

import asyncio
import heapq
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from vitrail.serving.exchange import Problem
from vitrail.serving.frames import LARGE
from vitrail.wording import agree, counted

Kind = Literal["logits", "features", "explain", "attention"]
BATCHED: tuple[Kind, ...] = ("logits", "features")
AT_ONCE = 50_000_000  # pixels of large pictures that a worker decodes at once, unless a single one has more
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

    @property
    def seconds(self) -> float:
        return self.queue + self.decode + self.compute

    @property
    def problem(self) -> Problem | None:
        error = self.facts.get("error")
        return None if error is None else Problem(error["code"], error["message"])


@dataclass(eq=False)
class Item:
    """One picture that waits."""

    facts: dict[str, Any]
    blob: bytes
    future: "asyncio.Future[Answer]"
    pixels: int = 0
    client: str = ""
    turn: int = 0  # in pixels that its client has sent; the smallest is next
    added: float = field(default_factory=time.perf_counter)

    @property
    def large(self) -> bool:
        return self.pixels > LARGE


class Slots(ABC):
    """A worker, as the queue sees it."""

    free = 0  # batches that it could start now
    spare = 0  # large pictures that it could start now
    decoding = 0  # pixels of the large ones that it has
    explaining = 0  # explanations that it works on
    threads = 0
    max_batch = 1
    max_wait = 0.0  # seconds
    always_waits = False  # or only while others can be expected

    @abstractmethod
    def start(self, kind: Kind, items: Sequence[Item], alone: bool) -> None:
        """Begin to compute a batch; `alone`: nothing else waits."""


class Batcher:
    """The queue of one model; it outlives the workers."""

    def __init__(self, size: int, now: Callable[[], float] = time.perf_counter) -> None:
        self.size = size
        self.worker: Slots | None = None
        self.pace = 0.01  # seconds per picture lately, over all cores
        self._now = now
        self._last = 1  # pictures in the batch that was started last
        self._queues: dict[tuple[Kind, bool], dict[Item, None]] = {}  # kind, and whether they are large
        self._turn = 0  # of the picture that was started last
        self._turns: dict[str, int] = {}  # client → the turn of what it sends next
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
        if not self.waiting:
            self._turn, self._turns = 0, {}
        for item in items:
            item.turn = max(self._turn, self._turns.get(item.client, 0))
            self._turns[item.client] = item.turn + item.pixels
            self._queues.setdefault((kind, item.large), {})[item] = None
        self.pump()

    def withdraw(self, kind: Kind, items: Sequence[Item]) -> None:
        """Forget pictures whose client no longer waits; those that are already being computed are not stopped."""
        for item in items:
            self._queues.get((kind, item.large), {}).pop(item, None)
            item.future.cancel()

    def refuse(self, problem: Problem) -> None:
        """Answer all who wait that they wait in vain."""
        for queue in self._queues.values():
            for item in queue:
                if not item.future.done():
                    item.future.set_exception(problem)
            queue.clear()

    def answered(self, count: int, seconds: float) -> None:
        """The worker has answered `count` pictures in `seconds` each, and has a free core."""
        self.pace += (seconds - self.pace) * min(1.0, count / REMEMBERED)
        self.pump()

    def retry_after(self) -> int:
        """Seconds until what waits now has been computed, about."""
        return max(1, min(LONGEST_RETRY, math.ceil(self.waiting * self.pace)))

    def pump(self) -> None:
        """Start what can be started."""
        worker = self.worker
        if worker is None:
            return
        while worker.spare > 0 and (kind := self._next(worker, large=True)) is not None:
            queue = self._queues[kind, True]
            if worker.decoding and worker.decoding + min(queue, key=_turn).pixels > AT_ONCE:
                break
            self._start(worker, kind, queue, 1)
        while worker.free > 0 and (kind := self._next(worker, large=False)) is not None:
            queue = self._queues[kind, False]
            most = worker.max_batch if kind in BATCHED else 1
            oldest = next(iter(queue))
            ripe = oldest.added + (worker.max_wait if worker.always_waits or self._expects(worker) else 0.0)
            if kind in BATCHED and len(queue) < most and self._now() < ripe:
                self._wait_until(ripe)
                return
            self._last = min(most, math.ceil(len(queue) / worker.free))
            self._start(worker, kind, queue, self._last)

    def _start(self, worker: Slots, kind: Kind, queue: dict[Item, None], count: int) -> None:
        items = heapq.nsmallest(count, queue, key=_turn)
        for item in items:
            del queue[item]
        self._turn = max(self._turn, items[-1].turn)
        worker.start(kind, items, alone=not self.waiting)

    def _expects(self, worker: Slots) -> bool:
        """Whether pictures come together: others are being computed, or were computed together a moment ago."""
        return worker.free < worker.threads or self._last > 1

    def _next(self, worker: Slots, large: bool) -> Kind | None:
        """The kind of the picture that has waited longest; explanations leave a core for the others."""
        heads: list[tuple[float, Kind]] = [
            (next(iter(queue)).added, kind)
            for (kind, is_large), queue in self._queues.items()
            if queue and is_large is large
            if large or kind in BATCHED or worker.explaining < max(1, worker.threads - 1)
        ]
        return min(heads)[1] if heads else None

    def _wait_until(self, ripe: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, ripe - self._now()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.pump()


def _turn(item: Item) -> int:
    return item.turn

"""One request and its answer, as the log, the metrics and traces see them, and the memory that its body takes."""

import re
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from starlette.requests import Request

from vitrail.serving.batching import Answer, Item
from vitrail.serving.problems import Problem

UNMATCHED = "unmatched"  # the route of an address that there is not
KEY = "vitrail.exchange"  # in the scope of a request
_SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")


BUFFER_RETRY = 1  # seconds after which there may be room for a body again


class Buffer:
    """The memory that the bodies of all requests may take together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0

    def take(self, count: int) -> Problem | None:
        """Count so many bytes more, or say why there is no room for them."""
        if self.held + count > self.size:
            return Problem(
                "queue_full",
                f"the requests that are being answered take up {self.held:,} of {self.size:,} bytes already.",
                retry_after=BUFFER_RETRY,
                headers=(("connection", "close"),),
            )
        self.held += count
        return None


@dataclass
class Exchange:
    """What is known about a request; never what is in its pictures."""

    method: str
    path: str
    client: str
    id: str = field(default_factory=lambda: uuid4().hex)
    route: str = UNMATCHED  # the pattern of its address
    status: int = 0  # 499: the client left before the answer
    pictures: int = 0
    received: int = 0  # bytes of the body
    began: float = field(default_factory=time.perf_counter)
    computed: tuple[Item, Answer] | None = None  # the picture that took longest
    buffer: Buffer | None = None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def receive(self, count: int) -> Problem | None:
        """Count bytes of the body, which stay in memory until the exchange ends, if there is room for them."""
        problem = None if self.buffer is None else self.buffer.take(count)
        if problem is None:
            self.received += count
        return problem

    def release(self) -> None:
        """The body is no longer in memory."""
        if self.buffer is not None:
            self.buffer.held -= self.received
            self.buffer = None


def exchange_of(request: Request) -> Exchange:
    """The exchange that a request belongs to."""
    return request.scope[KEY]


def begin(scope: Any, given: str, buffer: Buffer) -> Exchange:
    """A new exchange; the client's own id is kept if it is a sane one."""
    client = scope.get("client")
    exchange = Exchange(method=scope["method"], path=scope["path"], client=client[0] if client else "", buffer=buffer)
    if _SANE.fullmatch(given):
        exchange.id = given
    scope[KEY] = exchange
    return exchange

"""One request and its answer, as the log and the metrics see them."""

import re
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from starlette.requests import Request

KEY = "vitrail.exchange"  # in the scope of a request
_SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass
class Exchange:
    """What is known about a request; never what is in its pictures."""

    method: str
    path: str
    client: str
    id: str = field(default_factory=lambda: uuid4().hex)
    route: str = "unmatched"  # the pattern of its address
    status: int = 0  # 499: the client left before the answer
    pictures: int = 0
    received: int = 0  # bytes of the body
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began


def exchange_of(request: Request) -> Exchange:
    """The exchange that a request belongs to."""
    return request.scope[KEY]


def begin(scope: Any, given: str) -> Exchange:
    """A new exchange; the client's own id is kept if it is a sane one."""
    client = scope.get("client")
    exchange = Exchange(method=scope["method"], path=scope["path"], client=client[0] if client else "")
    if _SANE.fullmatch(given):
        exchange.id = given
    scope[KEY] = exchange
    return exchange

"""One request and its answer, as the log, the metrics and traces see them, and why a request has no answer."""

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from starlette.requests import Request

if TYPE_CHECKING:
    from vitrail.serving.batching import Answer, Item

UNMATCHED = "unmatched"  # the route of an address that does not exist
KEY = "vitrail.exchange"  # in the scope of a request
CLOSE = (("connection", "close"),)  # the header of an answer after which nothing more is read
BUFFER_RETRY = 1  # seconds after which there may be room for a body again
_VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

# Code → status, and what to do. Everything that the service can answer with stands here, and in /openapi.json.
CODES: dict[str, tuple[int, str]] = {
    "unreadable_picture": (400, "Send a complete JPEG, PNG or WebP file."),
    "unreadable_body": (400, "See /openapi.json for the bodies that are understood."),
    "invalid_request": (400, "Send one well-formed HTTP/1.1 request at a time."),
    "unauthorized": (401, "Send the header `Authorization: Bearer TOKEN`."),
    "forbidden": (403, "Send requests from this machine to localhost, or use the service's own page."),
    "not_found": (404, "See /openapi.json for the addresses of this service."),
    "unknown_model": (404, "See /v1/models for the models of this service."),
    "method_not_allowed": (405, "See the header Allow, and /openapi.json."),
    "request_timeout": (408, "Send the whole request without long pauses."),
    "too_large": (413, "Shrink the picture, or send fewer at once."),
    "unsupported_format": (415, "Send JPEG, PNG or WebP: as the body, as multipart/form-data, or as base64 in JSON."),
    "invalid_argument": (422, "See /openapi.json for the arguments and their values."),
    "cannot_explain": (422, "See /v1/models for what each model can explain."),
    "rate_limited": (429, "Wait as long as Retry-After says."),
    "headers_too_large": (431, "Send fewer or shorter headers, and a shorter address."),
    "model_failed": (
        500,
        "The picture was read, but the model gave no usable answer; look at the service's error log.",
    ),
    "internal_error": (500, "This is a mistake in vitrail; please report it with the request's id."),
    "queue_full": (503, "Wait as long as Retry-After says, or send fewer pictures at once."),
    "not_ready": (503, "Wait as long as Retry-After says; /v2/health/ready tells when the model is ready."),
    "too_many_connections": (503, "Wait as long as Retry-After says, and reuse connections."),
    "timeout": (504, "Send fewer pictures at once, or raise the service's timeout."),
}


@dataclass(eq=False)
class Problem(Exception):  # noqa: N818 - it is also an entry of an answer
    """Why a request, or one of its pictures, has no answer."""

    code: str
    message: str
    hint: str = ""
    retry_after: int | None = None  # seconds
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def status(self) -> int:
        return CODES[self.code][0]

    def entry(self) -> dict[str, Any]:
        """As it stands under "error"."""
        return {"code": self.code, "message": self.message, "hint": self.hint or CODES[self.code][1]}

    def extra_headers(self) -> list[tuple[str, str]]:
        """What its answer says beside the usual headers."""
        retry = [] if self.retry_after is None else [("retry-after", str(self.retry_after))]
        return [*self.headers, *retry]


def invalid(message: str, hint: str = "") -> Problem:
    """What is wrong with an argument, or with a value in the body."""
    return Problem("invalid_argument", message, hint)


class ClientGoneError(Exception):
    """The client has closed the connection before its answer."""


class Buffer:
    """The memory that the bodies of all requests may take together."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0

    def take(self, count: int) -> None:
        """Count more bytes, if there is room for them."""
        if self.held + count > self.size:
            message = f"the requests that are being answered take up {self.held:,} of {self.size:,} bytes already."
            raise Problem("queue_full", message, retry_after=BUFFER_RETRY, headers=CLOSE)
        self.held += count


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
    computed: "tuple[Item, Answer] | None" = None  # the picture that took longest
    buffer: Buffer | None = None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def receive(self, count: int) -> None:
        """Count bytes of the body, which stay in memory until the exchange ends."""
        if self.buffer is not None:
            self.buffer.take(count)
        self.received += count

    def release(self) -> None:
        """The body is no longer in memory."""
        if self.buffer is not None:
            self.buffer.held -= self.received
            self.buffer = None


def exchange_of(request: Request) -> Exchange:
    """The exchange that a request belongs to."""
    return request.scope[KEY]


def begin(scope: Any, given: str, buffer: Buffer) -> Exchange:
    """A new exchange; the client's own id is kept if it is a valid one."""
    client = scope.get("client")
    exchange = Exchange(method=scope["method"], path=scope["path"], client=client[0] if client else "", buffer=buffer)
    if _VALID_ID.fullmatch(given):
        exchange.id = given
    scope[KEY] = exchange
    return exchange

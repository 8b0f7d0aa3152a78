"""What one connection may do: uvicorn's protocol, with limits on the size of headers and on a client's slowness."""

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vitrail.serving.exchange import Exchange
from vitrail.serving.gate import SECURITY_HEADERS
from vitrail.serving.problems import Problem

LONGEST_HEAD = 16_384  # bytes of a request before its body
LONGEST_URL = 4_096
MOST_HEADERS = 64
MOST_CONNECTIONS = 2_000  # at once, or half of the files that this process may open
PATIENCE = 3  # times `client_timeout` that a client may take to read an answer


class Connection(HttpToolsProtocol):
    """One client's connection."""

    def __init__(self, *, client_timeout: float, report: Callable[[Exchange], None], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._client_timeout, self._report = client_timeout, report
        self._most = min(MOST_CONNECTIONS, _open_files() // 2)
        self._head: int | None = None  # bytes of an unfinished head, without those of the chunk in which it begins
        self._begins = False  # whether a head begins in the chunk that is being parsed
        self._timer: asyncio.TimerHandle | None = None  # until a head must be complete
        self._reading: asyncio.TimerHandle | None = None  # until the client must have read what it was sent
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            self._refuse(Problem("too_many_connections", "too many connections are open.", retry_after=1))
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.parser is None:
            return
        self._begins = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(Problem("invalid_request", "this service does not switch to another protocol."))
        except httptools.HttpParserError as error:
            context = error.__context__
            self._refuse(context if isinstance(context, Problem) else _invalid())
        else:
            if self._head is not None and not self._begins:
                self._head += len(data)
                if self._head > LONGEST_HEAD:
                    self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._head, self._begins = 0, True
        if self._timer is None:
            self._expect_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MOST_HEADERS:
            raise _head_too_large()

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.url) > LONGEST_URL or size > LONGEST_HEAD:
            raise _head_too_large()
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1 and self.parser is not None and self.parser.get_http_version() == "1.1":
            raise _invalid()
        self._head = None
        self._stop_waiting_for_head()
        super().on_headers_complete()

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reading is None:
            self._reading = self.loop.call_later(PATIENCE * self._client_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(self._client_timeout, self._head_is_late)

    def _head_is_late(self) -> None:
        self._timer = None
        if self._head is not None:  # something has come, which deserves an answer
            self._refuse(Problem("request_timeout", "the headers took too long."))
        else:
            self._close()

    def _close(self) -> None:
        """Close, without waiting for a client that does not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        """Answer what is not a request, or not one that we take, and close; what was accepted before is answered."""
        self._refused = True
        self._stop_waiting_for_head()
        if self.cycle and not self.cycle.response_complete:
            if not self.cycle.more_body:
                self.cycle.keep_alive = False
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        client = self.client[0] if self.client else ""
        exchange = Exchange(method="", path="", client=client, route="connection", status=problem.status)
        self._report(exchange)
        body = json.dumps({"error": problem.entry()}).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            ("x-request-id", exchange.id),
            *problem.extra_headers(),
            *SECURITY_HEADERS,
        ]
        lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}", *(f"{k}: {v}" for k, v in headers)]
        self.transport.write("\r\n".join((*lines, "", "")).encode("latin-1") + body)
        self.transport.close()

    def _stop_waiting_for_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_timers(self) -> None:
        self._stop_waiting_for_head()
        if self._reading is not None:
            self._reading.cancel()


def _open_files() -> int:
    """How many files this process may have open; Windows knows no such limit."""
    if find_spec("resource") is None:
        return 2 * MOST_CONNECTIONS
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _invalid() -> Problem:
    return Problem("invalid_request", "this is not a valid HTTP request.")


def _head_too_large() -> Problem:
    return Problem(
        "headers_too_large",
        f"a request's address may have {LONGEST_URL:,} bytes, and its headers {LONGEST_HEAD:,} bytes and "
        f"{MOST_HEADERS} lines.",
    )

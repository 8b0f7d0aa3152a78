"""What one connection may do: uvicorn's protocol, with limits on the size of headers and on a client's slowness.

There is always room for a health check. When there are too many connections, a new one takes the place of one that is
idle, of the address that has most. Where all are busy, a few more are open to health checks only.
"""

import asyncio
import errno
import json
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vitrail.serving.exchange import Exchange, Problem
from vitrail.serving.gate import SECURITY_HEADERS

LONGEST_HEAD = 16_384  # bytes of a request before its body
LONGEST_URL = 4_096
MOST_HEADERS = 64
MOST_CONNECTIONS = 2_000  # at once, or half of the files that this process may open
RESERVE = 64  # connections beyond these, for health checks
HEALTH = b"/v2/health/"
PATIENCE = 3  # times `client_timeout` that a client may take to read an answer


class Room:
    """The connections that are open: how many of each address, and which of them are idle."""

    def __init__(self, most_of_one: int, say: Callable[[str], None], most: int | None = None) -> None:
        self._most_of_one, self._say = most_of_one, say
        self._most = min(MOST_CONNECTIONS, open_files() // 2) if most is None else most
        self._counts: Counter[str] = Counter()  # by address
        self._idle: dict[str, dict[Connection, None]] = {}  # by address, longest idle first
        self._reserve: dict[Connection, None] = {}  # for health checks, oldest first
        self._starved = 0  # how many connections there were when no file could be opened any more

    def enter(self, connection: "Connection") -> bool:
        """Make room for a new connection; False if it is for health checks only."""
        address, total = connection.address, self._counts.total()
        if self._starved and total < self._starved / 2:
            self._starved = 0
            self._say("connections can be opened again")
        crowded = self._counts[address] >= self._most_of_one
        if crowded or total >= self._most:
            source = address if crowded else max(self._idle, key=self._counts.__getitem__, default=address)
            idle = next(iter(self._idle.get(source, ())), None)
            if idle is None:
                self._reserve[connection] = None
                if len(self._reserve) > RESERVE:
                    self._give_up(next(iter(self._reserve)))
                return False
            self._give_up(idle)
        self._counts[address] += 1
        self.rest(connection)
        return True

    def leave(self, connection: "Connection") -> None:
        """A connection has ended."""
        if connection.left:
            return
        connection.left = True
        if connection in self._reserve:
            del self._reserve[connection]
            return
        self.work(connection)
        self._counts[connection.address] -= 1
        if not self._counts[connection.address]:
            del self._counts[connection.address]

    def work(self, connection: "Connection") -> None:
        """It has a request to answer."""
        idle = self._idle.get(connection.address, {})
        idle.pop(connection, None)
        if not idle:
            self._idle.pop(connection.address, None)

    def rest(self, connection: "Connection") -> None:
        """It has none."""
        if not connection.left and connection not in self._reserve:
            self._idle.setdefault(connection.address, {})[connection] = None

    def _give_up(self, connection: "Connection") -> None:
        self.leave(connection)
        connection.close()

    def note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Say once that no file can be opened any more, not for each connection that would need one."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif not self._starved:
            self._starved = max(1, self._counts.total())
            self._say(f"no more connections can be opened for now ({error.strerror}); raise the limit: ulimit -n")


class Connection(HttpToolsProtocol):
    """One client's connection."""

    def __init__(
        self, *, client_timeout: float, report: Callable[[Exchange], None], room: Room, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._client_timeout, self._report, self._room = client_timeout, report, room
        self.address = ""
        self.left = False  # the room
        self._only_health = False
        self._head: int | None = None  # bytes of an unfinished head, without those of the chunk in which it begins
        self._begins = False  # whether a head begins in the chunk that is being parsed
        self._timer: asyncio.TimerHandle | None = None  # until a head must be complete
        self._reading: asyncio.TimerHandle | None = None  # until the client must have read what it was sent
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._only_health = not self._room.enter(self)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.leave(self)
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
        if self._only_health and not self.url.startswith(HEALTH):
            raise Problem("too_many_connections", "too many connections are open.", retry_after=1)
        self._head = None
        self._stop_waiting_for_head()
        self._room.work(self)
        super().on_headers_complete()
        if self._only_health:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self._room.rest(self)

    def timeout_keep_alive_handler(self) -> None:
        self.close()

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
            self.close()

    def close(self) -> None:
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
        exchange = Exchange(method="", path="", client=self.address, route="connection", status=problem.status)
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


def open_files() -> int:
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

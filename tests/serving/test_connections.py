"""What one connection may do, over raw sockets, and what hostile clients achieve: nothing."""

import asyncio
import errno
import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any
from unittest.mock import Mock

import httpx
import psutil
import pytest
import uvicorn

from fuzzing import SEED, cases
from processes import SECONDS
from serving import hostile
from serving.conftest import QUICK, Running, encode, wait_for
from vitrail.serving.connections import RESERVE, Connection, Room

HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n"


def send(port: int, *pieces: bytes | float) -> tuple[int, bytes]:
    return hostile.carry_out(port, hostile.Attack(list(pieces)))


@pytest.mark.fuzz
def test_hostile_requests_achieve_nothing(running: Running, client: httpx.Client) -> None:
    expected = client.post("/v1/predict", content=encode()).json()["predictions"]
    worker, files = running.worker().pid, hostile.files_of(running.process.pid)
    statuses, wrong = hostile.run(running.port, cases(6) * len(hostile.ATTACKS), SEED)
    assert wrong == []
    assert statuses[200] > 5
    assert statuses[400] > 15
    assert client.post("/v1/predict", content=encode()).json()["predictions"] == expected
    assert running.worker().pid == worker
    wait_for(lambda: hostile.files_of(running.process.pid) <= files)
    assert not any("Traceback" in line for line in running.said)


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, b"invalid_request"),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400, b"invalid_request"),
        (HEAD + b"Host: localhost\r\nContent-Length: 0\r\n\r\n", 400, b"invalid_request"),
        (b"GET /v2/health/live HTTP/1.1\r\n\r\n", 400, b"invalid_request"),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", 400, b"invalid_request"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, b"invalid_request"),
        (HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 400, b"unreadable_picture"),
        (HEAD + b"X: " + b"a" * 20_000 + b"\r\n\r\n", 431, b"headers_too_large"),
        (HEAD + b"X: a\r\n" * 100 + b"\r\n", 431, b"headers_too_large"),
        (b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431, b"headers_too_large"),
        (HEAD + b"X: " + b"a" * 600_000, 431, b"headers_too_large"),
        (HEAD + b"Content-Length: 30000000\r\nExpect: 100-continue\r\n\r\n", 413, b"too_large"),
    ],
)
def test_what_is_not_a_request_is_refused(running: Running, request_: bytes, status: int, code: bytes) -> None:
    answered, answer = send(running.port, request_)
    assert (answered, code in answer) == (status, True), answer
    assert b"content-security-policy" in answer


def test_slow_clients_are_cut_off(running: Running) -> None:
    began = time.perf_counter()
    lengths = (b"Content-Length: 100\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    slow = (HEAD[:20], *(HEAD + length for length in lengths))
    with ThreadPoolExecutor(4) as threads:
        idle = threads.submit(send, running.port, b"")
        for answer in threads.map(lambda piece: send(running.port, piece), slow):
            assert answer[0] == 408, answer
        assert idle.result()[0] == 0  # an idle connection is closed without a word
    assert time.perf_counter() - began > 0.8 * QUICK["client_timeout"]


def test_a_trickle_is_cut_off_too(running: Running) -> None:
    """Bytes that keep coming, but lead nowhere."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=SECONDS) as connection:
        connection.sendall(HEAD)
        answered: list[Any] = []
        for number in range(400):
            with suppress(ConnectionError):
                connection.sendall(b"X%d: a\r\n" % number)
            answered, _, _ = select.select([connection], [], [], 0.1)
            if answered:
                break
        assert answered, "it is still listened to"


def test_a_body_is_limited_while_it_streams(running: Running) -> None:
    """No length is given, so that only counting can end it."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=SECONDS) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"%x\r\n" % 1_000_000 + bytes(1_000_000) + b"\r\n"
        sent = 0
        try:
            while sent < 300:
                connection.sendall(piece)
                sent += 1
        except (ConnectionError, TimeoutError):
            pass
        assert sent < 300
    memory = psutil.Process(running.process.pid).memory_info().rss
    assert memory < 400e6


def test_requests_in_a_pipeline_are_answered_in_their_order(running: Running) -> None:
    one = hostile.post(encode(), "/v1/predict?top_k=1")
    other = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=SECONDS) as connection:
        connection.sendall(one + one + other)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.rindex(b"binary_tensor_data") > received.rindex(b'"predictions"')


def test_what_was_accepted_is_answered_before_garbage_ends_the_connection(running: Running) -> None:
    status, answer = send(running.port, hostile.post(encode("PNG", (500, 500))) + b"\0garbage\r\n\r\n")
    assert status == 200
    assert b'"predictions"' in answer


def test_idle_connections_do_not_keep_anybody_out(running: Running) -> None:
    idle = [socket.create_connection(("127.0.0.1", running.port), timeout=SECONDS) for _ in range(150)]
    try:
        for path in ("/v2/health/live", "/v1/models"):
            assert httpx.get(running.url + path, timeout=SECONDS).status_code == 200
        assert idle[0].recv(1) == b""  # the one that was idle longest had to go
    finally:
        for each in idle:
            each.close()


class Caller:
    """A connection, as the room sees it."""

    def __init__(self, room: Room, address: str) -> None:
        self.address, self.left, self.closed = address, False, False
        self.admitted = room.enter(self)  # type: ignore[arg-type]

    def close(self) -> None:
        self.closed = True


def make_room(most_of_one: int, most: int) -> tuple[Room, Callable[[str, int], list[Caller]], list[str]]:
    said: list[str] = []
    room = Room(most_of_one, said.append, most)
    return room, lambda address, count: [Caller(room, address) for _ in range(count)], said


def test_the_longest_idle_of_the_address_with_most_makes_room() -> None:
    room, call, _ = make_room(4, 6)
    (one,) = call("modest", 1)
    greedy = call("greedy", 6)
    assert [each.closed for each in greedy] == [True, True, False, False, False, False]  # over its own limit
    room.work(greedy[2])  # type: ignore[arg-type]
    others = [each for name in "ab" for each in call(name, 1)]
    assert all(each.admitted and not each.closed for each in (one, *others))
    assert [each.closed for each in greedy[2:]] == [False, True, False, False]  # over everybody's; a request is not cut
    room.rest(greedy[2])  # type: ignore[arg-type]
    call("c", 1)
    assert [each.closed for each in greedy[2:]] == [False, True, True, False]


def test_where_all_are_busy_there_is_room_for_health_checks() -> None:
    room, call, _ = make_room(3, 100)
    busy = call("it", 3)
    for each in busy:
        room.work(each)  # type: ignore[arg-type]
    late = call("it", RESERVE + 2)
    assert not any(each.admitted for each in late)
    assert [each.closed for each in late] == [True, True] + [False] * RESERVE
    assert all(each.admitted for each in call("other", 3))
    room.leave(busy[0])  # type: ignore[arg-type]
    assert call("it", 1)[0].admitted
    assert not any(each.closed for each in busy)


def test_that_no_file_can_be_opened_is_said_once() -> None:
    room, call, said = make_room(100, 100)
    some = call("it", 10)
    loop = Mock()
    for _ in range(3000):
        room.note_error(loop, {"exception": OSError(errno.EMFILE, "Too many open files")})
    assert said == ["no more connections can be opened for now (Too many open files); raise the limit: ulimit -n"]
    for each in some[1:]:
        room.leave(each)  # type: ignore[arg-type]
    call("it", 2)
    assert said[1:] == ["connections can be opened again"]
    room.note_error(loop, {"exception": ValueError()})
    loop.default_exception_handler.assert_called_once()


def only_health(room: Room, path: bytes) -> bytes:
    """What a connection that is for health checks only answers to this path."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})

    async def work() -> bytes:
        config = uvicorn.Config(app, log_config=None, lifespan="off")
        config.load()
        connection = Connection(
            client_timeout=10,
            report=lambda _: None,
            room=room,
            config=config,
            server_state=uvicorn.Server(config).server_state,
            app_state={},
        )
        written: list[bytes] = []
        transport = Mock(write=written.append, is_closing=lambda: False, get_extra_info=lambda _: None)
        connection.connection_made(transport)
        connection.data_received(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.gather(*connection.tasks)
        assert transport.close.called
        connection.connection_lost(None)
        return b"".join(written)

    return asyncio.run(work())


def test_connections_of_the_reserve_answer_health_checks_only() -> None:
    room, _, _ = make_room(1, 0)
    assert only_health(room, b"/v2/health/live").startswith(b"HTTP/1.1 200")
    refused = only_health(room, b"/v1/models")
    assert refused.startswith(b"HTTP/1.1 503")
    assert b"too_many_connections" in refused
    assert b"retry-after: 1" in refused
    assert not room._reserve


def test_attacks_are_the_same_for_the_same_seed() -> None:
    for make in hostile.ATTACKS:
        assert make(Random("1")) == make(Random("1"))

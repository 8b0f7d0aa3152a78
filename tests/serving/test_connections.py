"""What one connection may do, over raw sockets, and what hostile clients achieve: nothing."""

import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import httpx
import psutil
import pytest

from serving import hostile
from serving.conftest import QUICK, Running, encode, wait_for

HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n"


def send(port: int, *pieces: bytes | float) -> tuple[int, bytes]:
    return hostile.carry_out(port, hostile.Attack(list(pieces)))


def test_hostile_requests_achieve_nothing(running: Running, client: httpx.Client) -> None:
    expected = client.post("/v1/predict", content=encode()).json()["predictions"]
    worker, files = running.worker().pid, hostile.files_of(running.process.pid)
    statuses, wrong = hostile.run(running.port, 10 * len(hostile.ATTACKS))
    assert wrong == []
    assert statuses[200] > 5
    assert statuses[400] > 20
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
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
        connection.sendall(HEAD)
        for number in range(400):
            with suppress(ConnectionError):
                connection.sendall(b"X%d: a\r\n" % number)
            answered, _, _ = select.select([connection], [], [], 0.1)
            if answered:
                break
        assert answered, "it is still listened to"


def test_a_body_is_limited_while_it_streams(running: Running) -> None:
    """No length is given, so that only counting can end it."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
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
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
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


def test_attacks_are_the_same_for_the_same_seed() -> None:
    for make in hostile.ATTACKS:
        assert make(Random("1")) == make(Random("1"))

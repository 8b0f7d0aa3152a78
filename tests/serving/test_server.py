"""The front process: what it loads, what it answers, and how it ends."""

import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

import vitrail
from processes import SECONDS, wait_for
from serving.conftest import Running, encode
from vitrail.serving.server import GRACE, LINGER, stop_listening

TORCHLESS = "import sys, vitrail.serving.server, vitrail.verbs.serve; sys.exit('torch' in sys.modules)"


def test_the_front_never_loads_torch() -> None:
    assert subprocess.run([sys.executable, "-c", TORCHLESS]).returncode == 0


def test_the_start_says_what_is_served_and_how(running: Running) -> None:
    said = "".join(running.said)
    assert "cifar10: 10 classes on torch, 1 thread, batches of up to 4, max wait 0 ms, version " in said


def test_answers_are_those_of_the_library(client: httpx.Client) -> None:
    pictures = [
        encode("PNG"),
        encode("JPEG", (200, 100), quality=90),
        encode("WEBP", (64, 64)),
        encode("JPEG", mode="CMYK"),
    ]
    predictor = vitrail.load()
    answer = client.post(
        "/v1/predict?top_k=3", files=[("p", (f"{i}.x", data)) for i, data in enumerate(pictures)]
    ).json()
    for row, expected in zip(answer["predictions"], predictor.predict(pictures, top_k=3), strict=True):
        assert [each["label"] for each in row["labels"]] == list(expected.labels)
        assert [each["index"] for each in row["labels"]] == list(expected.indices)
        assert all(
            abs(each["score"] - score) < 1e-5 for each, score in zip(row["labels"], expected.scores, strict=True)
        )
    assert answer["model"]["sha256"].startswith(answer["model"]["version"])
    vector = client.post("/v1/embed", content=pictures[0]).json()["embeddings"][0]["vector"]
    assert max(abs(a - b) for a, b in zip(vector, predictor.embed(pictures[0]).vector, strict=True)) < 1e-4


def test_health_is_answered_while_the_worker_computes(client: httpx.Client, running: Running) -> None:
    large = encode("PNG", (3000, 3000))
    thread = threading.Thread(target=lambda: httpx.post(f"{running.url}/v1/predict", content=large, timeout=SECONDS))
    thread.start()
    answers = 0
    while thread.is_alive():
        assert client.get("/v2/health/live").status_code == 200
        answers += thread.is_alive()
    assert answers > 3


def test_sigterm_loses_no_accepted_request() -> None:
    """Nor one of a client that was connected in time: each answer ends the connection, and the next one is new."""
    service = Running(max_batch=4, client_timeout=SECONDS)
    data = encode("PNG", (200, 200))
    statuses: list[int | str] = []
    began = threading.Barrier(9)

    def ask() -> None:
        with httpx.Client(base_url=service.url, timeout=SECONDS) as client:
            client.get("/v2/health/live")
            began.wait(SECONDS)
            while True:
                try:
                    answer = client.post("/v1/predict", content=data)
                except httpx.ConnectError:  # the service no longer takes connections
                    return
                except httpx.HTTPError as error:
                    statuses.append(type(error).__name__)
                    return
                statuses.append(answer.status_code)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    began.wait(SECONDS)
    wait_for(lambda: len(statuses) > 16)
    with socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS) as slow:
        service.process.terminate()
        for thread in threads:
            thread.join()
        time.sleep(LINGER + 2 * GRACE)  # it asks when all others are gone
        slow.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: slow.recv(65536), b""))
    assert service.wait() == 143
    assert set(statuses) == {200}
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer


def test_who_is_connected_when_listening_ends_is_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = listener.getsockname()
        with socket.create_connection(address) as early:
            early.sendall(b"hello")
            (kept,) = stop_listening(listener)
            with kept:
                assert kept.recv(5) == b"hello"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
        assert listener.fileno() >= 0

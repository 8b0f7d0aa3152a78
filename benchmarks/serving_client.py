"""The client of `benchmarks.serving`: many keep-alive connections in one process that costs next to no time.

It is a loop over non-blocking sockets, since every microsecond of the client is taken from the servers, which run on
the same cores. Each line of standard input is an order, and its answer one line, both JSON.
"""

import json
import selectors
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

BOUNDARY = "a-part-of-benchmarks-serving"
LIMIT = 60.0  # seconds after which a request counts as lost


def make_request(path: str, picture: bytes) -> bytes:
    """A form with one file, which is what all contestants understand."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n'
    body = f"{head}Content-Type: image/jpeg\r\n\r\n".encode() + picture + f"\r\n--{BOUNDARY}--\r\n".encode()
    lines = (f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: multipart/form-data; boundary={BOUNDARY}")
    return "\r\n".join((*lines, f"Content-Length: {len(body)}", "\r\n")).encode() + body


class Connection:
    """One client, who asks again as soon as there is an answer."""

    def __init__(self, port: int, number: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.picture, self.began = number, 0.0
        self.received = b""
        self.length = -1  # of the whole answer

    def ask(self, requests: list[bytes]) -> None:
        self.received, self.length = b"", -1
        self.began = time.perf_counter()
        self.socket.sendall(requests[self.picture % len(requests)])

    def hear(self) -> bytes | None:
        """The whole answer, once it is there."""
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise ConnectionError("the server closed the connection")
        self.received += piece
        if self.length < 0 and (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = self.received[:end].lower()
            start = head.index(b"content-length:") + len(b"content-length:")
            self.length = end + 4 + int(head[start:].split(b"\r\n", 1)[0])
        return self.received if 0 <= self.length <= len(self.received) else None


def take_turn(port: int, requests: list[bytes], clients: int, seconds: float) -> dict[str, Any]:
    """Ask for some seconds, then wait for what is still to come; what was answered, and how long each answer took."""
    selector = selectors.DefaultSelector()
    connections = [Connection(port, number) for number in range(clients)]
    took: list[float] = []
    answers: list[tuple[int, bytes]] = []
    statuses: Counter[str] = Counter()
    began, used = time.perf_counter(), time.process_time()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.ask(requests)
    waiting, now = clients, began
    while waiting and now < began + seconds + LIMIT:
        for key, _ in selector.select(1.0):
            connection: Connection = key.data
            try:
                answer = connection.hear()
            except (ConnectionError, ValueError) as error:
                statuses[type(error).__name__] += 1
                selector.unregister(connection.socket)
                waiting -= 1
                continue
            if answer is None:
                continue
            now = time.perf_counter()
            took.append(now - connection.began)
            status = answer[9:12].decode("latin-1")
            statuses[status] += 1
            if status == "200":
                answers.append((connection.picture % len(requests), answer))
            connection.picture += clients
            if now < began + seconds:
                connection.ask(requests)
            else:  # a server may close a connection on which nothing more is asked, and that is no error
                selector.unregister(connection.socket)
                waiting -= 1
        now = time.perf_counter()
    elapsed, busy = time.perf_counter() - began, time.process_time() - used
    if waiting:
        statuses["lost"] += waiting
    for connection in connections:
        connection.socket.close()
    return {"took": took, "elapsed": elapsed, "busy": busy, "statuses": statuses, "answers": answers}


def best_class(answer: bytes) -> int:
    """The index of the best class, in our answers and in the peers'."""
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    (first, *_) = body.get("predictions", [body])
    return int(first["labels"][0]["index"])


def sum_up(turn: dict[str, Any], expected: list[int]) -> dict[str, Any]:
    """Requests per second, milliseconds, errors by status, and the share of answers with the expected class."""
    times = sorted(turn["took"])
    same = [best_class(answer) == expected[picture] for picture, answer in turn["answers"]]
    return {
        "rate": len(turn["answers"]) / turn["elapsed"],
        "p50": 1000 * times[len(times) // 2] if times else 0.0,
        "p99": 1000 * times[min(len(times) - 1, int(0.99 * len(times)))] if times else 0.0,
        "errors": {status: count for status, count in turn["statuses"].items() if status != "200"},
        "same": sum(same) / len(same) if same else 0.0,
        "count": len(times),
        "client": turn["busy"] / turn["elapsed"],
        "elapsed": turn["elapsed"],
    }


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pictures = [Path(name).read_bytes() for name in order["pictures"]]
        requests = [make_request(order["path"], picture) for picture in pictures]
        turn = take_turn(order["port"], requests, order["clients"], order["seconds"])
        print(json.dumps(sum_up(turn, order["expected"])), flush=True)


if __name__ == "__main__":
    main()

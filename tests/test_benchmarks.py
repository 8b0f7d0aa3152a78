"""The benchmarks are fair: what they count is what happened."""

import socket
import threading
import time

from benchmarks.serving_client import make_request, take_turn

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def test_a_server_may_close_a_connection_that_has_had_its_answer() -> None:
    """As uvicorn does after five idle seconds; others still wait for theirs, and nothing is an error."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        first, second = (listener.accept()[0] for _ in range(2))
        for connection in (first, second):
            connection.recv(1 << 16)
        first.sendall(ANSWER)
        first.close()
        time.sleep(0.2)
        second.sendall(ANSWER)
        second.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with listener:
        turn = take_turn(listener.getsockname()[1], [make_request("/", b"a picture")], clients=2, seconds=0.0)
        thread.join()
    assert turn["statuses"] == {"200": 2}
    assert len(turn["took"]) == 2

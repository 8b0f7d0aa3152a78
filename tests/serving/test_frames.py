"""What front and worker send each other, both ways."""

import asyncio
import socket
from threading import Thread

from vitrail.serving.frames import Frame, pack, read_frame, receive_frame

FRAMES = [
    Frame({"id": 1, "text": "ä\0\ud800", "list": [1.5, None]}, [b"", b"abc", bytes(300_000)]),
    Frame({}, []),
    Frame({"id": 2}, [b"x"] * 1000),
]


def test_frames_arrive_as_they_were_sent() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = Thread(target=lambda: ours.sendall(b"".join(map(pack, FRAMES))))
        thread.start()
        assert [receive_frame(theirs) for _ in FRAMES] == FRAMES
        thread.join()
        ours.sendall(pack(FRAMES[0])[:50])
        ours.shutdown(socket.SHUT_WR)
        assert receive_frame(theirs) is None


def test_frames_arrive_in_an_event_loop() -> None:
    async def work() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(map(pack, FRAMES)))
        reader.feed_data(pack(FRAMES[0])[:50])
        reader.feed_eof()
        assert [await read_frame(reader) for _ in FRAMES] == FRAMES
        assert await read_frame(reader) is None

    asyncio.run(work())

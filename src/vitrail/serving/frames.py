"""What front and worker send each other: a frame is a JSON text and some blobs, each with its length. Needs no torch.

Nothing of a client is ever unpickled: what arrives is text of ours, and bytes that only a decoder looks at.
"""

import asyncio
import json
import struct
from collections.abc import Sequence
from socket import socket
from typing import Any, NamedTuple

_HEAD = struct.Struct("!II")  # bytes of the text, number of blobs


class Frame(NamedTuple):
    """`facts` say what the blobs are."""

    facts: dict[str, Any]
    blobs: Sequence[bytes] = ()


def pack(frame: Frame) -> bytes:
    """A frame as it is sent."""
    text = json.dumps(frame.facts, separators=(",", ":")).encode()
    lengths = struct.pack(f"!{len(frame.blobs)}Q", *map(len, frame.blobs))
    return b"".join((_HEAD.pack(len(text), len(frame.blobs)), lengths, text, *frame.blobs))


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None once the other side has gone."""
    try:
        size, count = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        lengths = struct.unpack(f"!{count}Q", await reader.readexactly(8 * count))
        text = await reader.readexactly(size)
        return Frame(json.loads(text), [await reader.readexactly(length) for length in lengths])
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def receive_frame(connection: socket) -> Frame | None:
    """As `read_frame`, for a thread that waits."""
    try:
        size, count = _HEAD.unpack(_receive(connection, _HEAD.size))
        lengths = struct.unpack(f"!{count}Q", _receive(connection, 8 * count))
        text = _receive(connection, size)
        return Frame(json.loads(text), [_receive(connection, length) for length in lengths])
    except (EOFError, ConnectionError):
        return None


def _receive(connection: socket, size: int) -> bytes:
    buffer = bytearray(size)
    view, done = memoryview(buffer), 0
    while done < size:
        count = connection.recv_into(view[done:])
        if not count:
            raise EOFError
        done += count
    return bytes(buffer)

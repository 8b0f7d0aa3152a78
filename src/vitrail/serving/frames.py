"""What front and worker send each other: a frame is a JSON text and some blobs, each with its length. Needs no torch.

Nothing of a client is ever unpickled: what arrives is text of ours, and bytes that only a decoder looks at.
"""

import asyncio
import ctypes
import json
import signal
import struct
import sys
from collections.abc import Sequence
from socket import socket
from typing import Any, NamedTuple

LARGE = 1 << 20  # pixels, over which a picture is large: decoding it takes long
SET_DEATH_SIGNAL = 1  # prctl's number for: send me this signal when my parent ends
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
    receive_into(connection, memoryview(buffer))
    return bytes(buffer)


def receive_into(connection: socket, view: memoryview) -> None:
    """As many bytes as there is room for."""
    done = 0
    while done < len(view):
        count = connection.recv_into(view[done:])
        if not count:
            raise EOFError
        done += count


def attach(descriptor: int) -> socket:
    """The connection of this process to the one that started it, with which it ends, also while it is stopped (Linux).

    Signals that are meant for the service as a whole are left to the front, which lets others finish what was accepted.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, int(signal.SIGKILL))
    return socket(fileno=descriptor)

"""Large WebP pictures are decoded in a process beside the worker: `python -m vitrail.serving.decoder FD`.

Pillow holds Python's lock for as long as it decodes one, half a second for 49 megapixels, in which the worker could
answer no other request; its other decoders release it. The process is started for the first such picture, gives way to
everything else, and is replaced if a picture ends it. It sends pixels only, as raw bytes.
"""

import os
import subprocess
import sys
from socket import socket, socketpair
from threading import Lock

import numpy as np
from PIL import Image

from vitrail.data.pixels import open_picture
from vitrail.errors import InputError
from vitrail.serving.frames import Frame, attach, pack, receive_frame, receive_into

GIVES_WAY = 10  # how nice it is: with others at work, it gets a tenth of a core


class Decoder:
    """The worker's side of it."""

    def __init__(self) -> None:
        self._lock = Lock()  # one picture at a time: they are large
        self.process: subprocess.Popen[bytes] | None = None
        self._connection: socket | None = None

    def decode(self, opened: Image.Image, data: bytes, name: str) -> Image.Image:
        """The pixels of a WebP file that was opened, with everything that its header says."""
        mode = "RGBA" if opened.mode == "RGBA" else "RGBX"
        pixels = np.empty(4 * opened.width * opened.height, dtype=np.uint8)  # not touched yet, which would take time
        with self._lock:
            try:
                connection = self._connection or self._start()
                connection.sendall(pack(Frame({"mode": mode, "size": opened.size}, [data])))
                answer = receive_frame(connection)
                if answer is None:
                    raise EOFError
                if error := answer.facts.get("error"):
                    raise InputError(f"{name}: damaged or truncated ({error}).")
                receive_into(connection, pixels.data)
            except (EOFError, OSError):
                self.stop()
                raise InputError(f"{name}: damaged, or too large to decode.") from None
        image = Image.frombuffer(mode, opened.size, pixels, "raw", mode, 0, 1)  # not copied
        image = image if mode == "RGBA" else image.convert("RGB")
        vars(image).update(format=opened.format, info=dict(opened.info), n_frames=getattr(opened, "n_frames", 1))
        return image

    def _start(self) -> socket:
        ours, theirs = socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "vitrail.serving.decoder", str(theirs.fileno())]
            try:
                self.process = subprocess.Popen(  # noqa: S603 - our own
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
                )
            except OSError as error:  # not the picture's fault
                ours.close()
                raise RuntimeError(f"the process for large WebP pictures cannot be started: {error}") from error
        self._connection = ours
        return ours

    def stop(self) -> None:
        """End the process; another one is started for the next picture."""
        if self._connection is not None:
            self._connection.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._connection = self.process = None


def main() -> None:
    """Decode what comes until the worker has gone."""
    connection = attach(int(sys.argv[1]))
    os.nice(GIVES_WAY)
    while (frame := receive_frame(connection)) is not None:
        width, height = frame.facts["size"]
        try:
            with open_picture(frame.blobs[0], formats=("WEBP",), max_pixels=width * height) as image:
                pixels = image.tobytes("raw", frame.facts["mode"])
        except Exception as error:  # decoders may raise anything on hostile bytes
            connection.sendall(pack(Frame({"error": str(error) or type(error).__name__})))
        else:
            connection.sendall(pack(Frame({})))
            connection.sendall(pixels)


if __name__ == "__main__":
    main()

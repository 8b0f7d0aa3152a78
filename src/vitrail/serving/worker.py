"""The worker process of one model: `python -m vitrail.serving.worker FD`. It reads batches, and answers each."""

import json
import os
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from socket import socket
from threading import Lock, Thread
from typing import Any

from vitrail.errors import AssumptionWarning, VitrailError
from vitrail.serving.frames import Frame, attach, pack, receive_frame
from vitrail.threads import start_workers
from vitrail.wording import reason

BEAT = 1.0  # seconds between two heartbeats, which come while it loads and computes, too
GIVES_WAY = 10  # how nice the threads of large pictures are: with others at work, they get a tenth of a core


def main() -> None:
    """Load the model that the first frame names, tell the front, and work until it has gone."""
    connection = attach(int(sys.argv[1]))
    warnings.simplefilter("ignore", AssumptionWarning)  # the notes go to the front
    first = receive_frame(connection)
    if first is not None:
        serve(connection, first.facts)


def serve(connection: socket, order: dict[str, Any]) -> None:
    """One model until the front has gone."""
    lock = Lock()

    def send(frame: Frame) -> None:
        try:
            with lock:
                connection.sendall(pack(frame))
        except OSError:
            os._exit(0)  # the front has gone

    def beat() -> None:
        while True:
            send(Frame({"beat": True}))
            time.sleep(BEAT)

    Thread(target=beat, name="beat", daemon=True).start()
    try:
        from vitrail.serving.engine import Engine, model_failure, warm_up

        engine = Engine(order["source"], order["runtime"], order["precision"], order["max_pixels"])
        pools = {
            "narrow": start_workers(order["threads"]),
            "large": start_workers(order["threads"]),
            "wide": ThreadPoolExecutor(1),
        }
        measured = warm_up(engine, pools["narrow"], pools["wide"], order["threads"], order["max_batch"])
        facts = {**engine.describe(), **measured}
    except Exception as error:  # of any library that loads a model: the front reports it
        message = reason(error) if isinstance(error, VitrailError | OSError) else f"{type(error).__name__}: {error}"
        send(Frame({"failed": message}))
        if not isinstance(error, VitrailError | OSError):
            raise
        return
    send(Frame({"ready": facts}))

    def work(frame: Frame) -> None:
        if frame.facts["pool"] == "large" and sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, 0, GIVES_WAY)  # of this thread
        try:
            answer = engine.run(frame)
        except Exception as error:  # our own mistake, or a runtime's: this batch has no answer, others may
            text = f"{type(error).__name__}: {error}"
            print(json.dumps({"worker": os.getpid(), "error": text[:1000]}), file=sys.stderr, flush=True)
            answer = Frame({"id": frame.facts["id"], **model_failure(error)})
        send(answer)

    while (frame := receive_frame(connection)) is not None:
        pools[frame.facts["pool"]].submit(work, frame)
    os._exit(0)  # without waiting for answers that nobody will read


if __name__ == "__main__":
    main()

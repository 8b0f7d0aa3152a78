"""Real processes at the price of a fork: their parent has imported what takes long, and computed nothing.

Each is as fresh as one from the command line: it can be killed, take part in a group of ranks, use any threads.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "torch.distributed.fsdp", "vitrail.training.run", "vitrail.training.display"]
)
SECONDS = 300  # until a process is taken to hang


def run(work: Callable[..., None], *arguments: Any, threads: int = 1, environment: dict[str, str] | None = None) -> int:
    """How a process ended that called `work(*arguments)`: its exit code, or minus the signal that killed it."""
    return _end_all([start(work, *arguments, threads=threads, environment=environment)])[0]


def run_ranks(work: Callable[..., None], *arguments: Any, count: int = 2) -> list[int]:
    """As `run`, on ranks that torchrun could have started; when one of them fails, the others are ended, as by it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    sizes = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    return _end_all([start(work, *arguments, environment={**meeting, **sizes, **rank}) for rank in ranks])


def start(
    work: Callable[..., None], *arguments: Any, threads: int = 1, environment: dict[str, str] | None = None
) -> BaseProcess:
    """A process that calls `work(*arguments)`, while the test goes on."""
    process = CONTEXT.Process(target=_work, args=(work, arguments, threads, environment or {}))
    process.start()
    return process


def wait_for(holds: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """What `holds` returns as soon as it is true."""
    ends = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < ends, f"it has not happened in {seconds} seconds"
        time.sleep(0.01)
    return value


def _work(work: Callable[..., None], arguments: tuple[Any, ...], threads: int, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(threads)
    work(*arguments)


def _end_all(processes: list[BaseProcess]) -> list[int]:
    """Wait until all have ended, or one of them has failed, which ends the others."""
    running = list(processes)
    try:
        while running and all(process.exitcode in (None, 0) for process in processes):
            ended = wait([process.sentinel for process in running], timeout=SECONDS)
            assert ended, f"no process has ended in {SECONDS} seconds"
            for process in [process for process in running if process.sentinel in ended]:
                process.join()
                running.remove(process)
        for process in running:
            process.terminate()
            process.join(SECONDS)
    finally:
        for process in running:
            process.kill()
            process.join()
    return [1 if process.exitcode is None else process.exitcode for process in processes]

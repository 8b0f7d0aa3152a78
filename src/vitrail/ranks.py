"""The processes of one run: one, or those that torchrun started."""

import os
import socket
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar, cast
from uuid import uuid4

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from vitrail.errors import VitrailError
from vitrail.machine import pick_device

T = TypeVar("T")
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among its peers, and how they agree."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that prints and writes."""
        return self.rank == 0

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number summed over all ranks, in double precision."""
        if self.world_size == 1:
            return list(numbers)
        device = self.device if self.device.type == "cuda" else torch.device("cpu")
        total = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return cast("list[float]", total.tolist())

    def any(self, flag: bool) -> bool:
        """Whether it holds for any rank."""
        return self.sum([float(flag)])[0] > 0

    def from_first(self, make: Callable[[], T]) -> T:
        """What the first rank computes, on all ranks; its error is raised on all of them."""
        if self.world_size == 1:
            return make()
        box: list[Any] = [None, None]
        if self.is_first:
            try:
                box[0] = make()
            except Exception as error:
                box[1] = error
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise self.reported_once(box[1])
        return box[0]

    def reported_once(self, error: Any) -> Exception:
        """An error that all ranks raise, marked so that only the first prints it."""
        error.reported = not self.is_first
        return error

    def share(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give every rank the first's numbers."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def in_turn(self, make: Callable[[], T]) -> T:
        """Run on the first rank, which may have to download; then on the others. Errors are raised on all ranks."""
        made: list[T] = []
        self.from_first(lambda: made.append(make()))
        trouble = None
        if not made:
            try:
                made.append(make())
            except VitrailError as error:
                trouble = f"rank {self.rank} on {socket.gethostname()}: {error.message}"
        if troubles := self.gather(trouble):
            raise self.reported_once(VitrailError(troubles[0]))
        return made[0]

    def part(self, count: int) -> range:
        """This rank's range of `count` items; the ranges of all ranks follow one another without gaps."""
        return range(self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size)

    def gather(self, own: T) -> list[T]:
        """What every rank has, in the order of the ranks, on every rank; without those that have None."""
        everything: list[T | None] = [own] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(everything, own)
        return [item for item in everything if item is not None]

    def wait(self) -> None:
        """Wait until all ranks are here."""
        if self.world_size > 1:
            dist.barrier()


def current_ranks() -> Ranks:
    """This process among its connected peers, or on its own. What is shared is in main memory."""
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    return Ranks(rank=dist.get_rank(), world_size=dist.get_world_size())


@contextmanager
def shared_ranks() -> Generator[Ranks]:
    """The ranks that torchrun started, connected for as long as the block lasts; a single rank without torchrun."""
    if dist.is_initialized():
        yield current_ranks()
        return
    try:
        yield join_ranks("cpu")  # what is gathered is in main memory, whichever device computes
    finally:
        leave_ranks()


def join_ranks(device_name: str) -> Ranks:
    """This process among its peers; under torchrun, it connects to the others first."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    device = pick_device(device_name)
    if world_size == 1:
        return Ranks(device=device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        _meet("nccl" if device.type == "cuda" else "gloo")
    return replace(current_ranks(), device=device)


def _meet(backend: str) -> None:
    """Start the process group under a name that only this round of processes knows.

    After a lost worker, torchrun's store still holds the addresses of dead processes, for which others would wait.
    """
    store, rank, world_size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    board: Any = PrefixStore("vitrail", store)
    if rank == 0:
        name = uuid4().hex
        board.set("round", name)
        board.wait([f"{name}/{other}" for other in range(1, world_size)], TIMEOUT)
        board.set(f"{name}/go", "")
    else:
        name = _answer(board, rank)
    dist.init_process_group(backend, store=PrefixStore(name, store), rank=rank, world_size=world_size, timeout=TIMEOUT)
    if rank == 0:
        board.delete_key("round")


def _answer(board: Any, rank: int) -> str:
    """Answer the first rank's call until it says go; a call without a follow-up is left from an earlier round."""
    while True:
        board.wait(["round"], TIMEOUT)
        name = board.get("round").decode()
        board.set(f"{name}/{rank}", "")
        try:
            board.wait([f"{name}/go"], timedelta(seconds=2))
        except dist.DistStoreError:
            continue
        return name


def leave_ranks() -> None:
    """Disconnect from the other ranks, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()


def was_restarted() -> bool:
    """Whether torchrun has restarted this process after one was lost; other nodes may not know."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def elastic_id() -> str | None:
    """What stays the same when torchrun starts processes again; None without torchrun."""
    run_id = os.environ.get("TORCHELASTIC_RUN_ID")
    if run_id == "none":  # the job has no name: the launcher's process identifies it
        return f"{socket.gethostname()}-{os.getppid()}"
    return run_id

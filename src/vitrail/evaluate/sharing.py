"""Dividing work over the processes of torch.distributed, and bringing the results together in order."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which process this is, of how many; one of one without torch.distributed."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def current(cls) -> "Share":
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(rank=dist.get_rank(), world_size=dist.get_world_size())

    def part(self, count: int) -> range:
        """This rank's stretch of `count` things; the stretches follow one another and miss nothing."""
        return range(self.rank * count // self.world_size, (self.rank + 1) * count // self.world_size)

    def gather(self, own: T) -> list[T]:
        """What every rank has, in the order of the ranks, on every rank."""
        if self.world_size == 1:
            return [own]
        everything: list[T | None] = [None] * self.world_size
        dist.all_gather_object(everything, own)
        return [item for item in everything if item is not None]


@contextmanager
def share_work() -> Generator[Share]:
    """The ranks that torchrun started, together for as long as the block lasts; one alone without torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or dist.is_initialized():
        yield Share.current()
        return
    dist.init_process_group("gloo")  # what is gathered lies in main memory, whatever computes
    try:
        yield Share.current()
    finally:
        dist.destroy_process_group()

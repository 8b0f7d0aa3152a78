"""Which samples are in which batch of which rank: a function of (seed, epoch) only, so it can be resumed anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.draws import permutation

Integers = np.ndarray[Any, np.dtype[np.int64]]
WINDOW = 8  # shards whose samples are shuffled together


@dataclass(frozen=True)
class Order:
    """One epoch: the sample at each position, and which repetition of it that is."""

    samples: Integers
    repeats: Integers
    batch_size: int  # over all ranks

    def __len__(self) -> int:
        return -(-len(self.samples) // self.batch_size)

    def positions(self, batch: int, rank: int, world_size: int) -> Integers:
        """This rank's part of a batch. Ranks get parts of equal length; of a last, shorter batch, almost equal."""
        start = batch * self.batch_size
        count = min(self.batch_size, len(self.samples) - start)
        return np.arange(start + rank * count // world_size, start + (rank + 1) * count // world_size)


def evaluation_order(num_samples: int, batch_size: int) -> Order:
    """Every sample once, in its own order; the last batch may be shorter."""
    samples = np.arange(num_samples)
    return Order(samples, np.zeros_like(samples), batch_size)


def training_order(shuffled: Integers, batch_size: int, *, remainder: str = "drop", repeats: int = 1) -> Order:
    """Whole batches of shuffled samples. With repeats, a batch holds each of its samples that many times."""
    batches = len(shuffled) // batch_size if remainder == "drop" else -(-len(shuffled) // batch_size)
    distinct = batch_size // repeats
    samples = np.resize(shuffled, batches * distinct).reshape(batches, 1, distinct)
    copies = np.arange(repeats).reshape(1, repeats, 1)
    shape = (batches, repeats, distinct)
    return Order(np.broadcast_to(samples, shape).ravel(), np.broadcast_to(copies, shape).ravel(), batch_size)


def shuffle(num_samples: int, seed: int, epoch: int, blocks: Sequence[int] | None = None) -> Integers:
    """All samples in this epoch's order. Blocks (shards) are shuffled whole, and then in windows of a few of them."""
    if blocks is None:
        return permutation(seed, epoch, num_samples)
    starts = [0, *(int(end) for end in np.cumsum(blocks))]
    order = permutation(seed, epoch, len(blocks), "blocks")
    result: list[Integers] = []
    for first in range(0, len(order), WINDOW):
        window = [int(block) for block in order[first : first + WINDOW]]
        samples = np.concatenate([np.arange(starts[block], starts[block + 1]) for block in window])
        result.append(samples[permutation(seed, epoch, len(samples), f"window-{first}")])
    return np.concatenate(result)

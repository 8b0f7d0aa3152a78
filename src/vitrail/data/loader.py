"""The loader: batches of one split, the same whatever the number of workers and ranks, from any point of an epoch.

Which samples are in which batch of which rank is a function of (seed, epoch) only, so it can be resumed anywhere.
Workers are threads: Pillow and torch release Python's lock while they decode and resize, and no picture is copied
between processes. Each rank is a process of its own anyway.
"""

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.chunks import Buffers, Chunk, ChunkMaker
from vitrail.data.config import Augment, LoaderConfig
from vitrail.data.preprocess import Preprocess
from vitrail.data.source import ArraySource, Dataset, Source, list_broken, refuse_broken
from vitrail.errors import ConfigError, DataError
from vitrail.registry import labels_of
from vitrail.rng import Draws, Integers, permutation
from vitrail.threads import start_workers
from vitrail.wording import counted

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


def draw_evenly(labels: Integers, seed: int, epoch: int) -> Integers:
    """As many samples as there are, in this epoch's order, with all classes equally often.

    Classes take turns, over all epochs, and each goes through its own samples again and again, in another order each
    time: those of a class are seen equally often, rare ones many times an epoch.
    """
    grouped = np.argsort(labels, kind="stable")
    members = [own for own in np.split(grouped, np.cumsum(np.bincount(labels))[:-1]) if len(own)]
    before, classes = epoch * len(labels), len(members)
    drawn = np.empty(len(labels), dtype=np.int64)
    for number, own in enumerate(members):
        first = (number - before) % classes  # its first turn in this epoch
        turns = (before + np.arange(first, len(labels), classes)) // classes
        if not len(turns):
            continue
        rounds, places = np.divmod(turns, len(own))
        some = np.arange(rounds[0], rounds[-1] + 1)
        words = Draws(seed, np.repeat(some, len(own)), np.tile(own, len(some))).words("evenly", 1)
        orders = np.argsort(words.reshape(len(some), len(own)), axis=1, kind="stable")
        drawn[first::classes] = own[orders[rounds - rounds[0], places]]
    return drawn[permutation(seed, epoch, len(labels))]


def count_repeats(samples: Integers) -> Integers:
    """Which occurrence of its sample each of them is, so that every one is augmented in its own way."""
    order = np.argsort(samples, kind="stable")
    starts = np.flatnonzero(np.diff(samples[order], prepend=-1))
    counts = np.diff(starts, append=len(samples))
    repeats = np.empty_like(samples)
    repeats[order] = np.arange(len(samples)) - np.repeat(starts, counts)
    return repeats


CHUNK = 16  # pictures that a worker decodes at a time; even, so that neighbours can be mixed


class Batch(NamedTuple):
    """Some pictures with their targets."""

    images: Tensor  # (B, C, H, W)
    # (B,) classes, (B, labels) zeros and ones or (B, values); floats (B, classes) where pictures are mixed.
    targets: Tensor
    indices: Tensor  # (B,) which samples of the split


class Loader:
    """Iterates over the batches of one split; with an `Augment`, shuffled and in whole batches, for training."""

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        preprocess: Preprocess,
        config: LoaderConfig | None = None,
        augment: Augment | None = None,
    ) -> None:
        self.source = dataset.split(split)
        self.preprocess = preprocess
        self.config = config or LoaderConfig()
        self.augment = augment
        self.broken: dict[str, str] = {}  # the samples that could not be read so far, and why
        self._epoch = 0
        self._batch = 0  # the next one for the caller
        self._start = 0  # where the next iteration begins
        self._maker = ChunkMaker(self.source, preprocess, augment, len(dataset.classes))
        self._buffers = Buffers(self._ahead + 4, pinned=self.config.pin_memory)
        self._pool: ThreadPoolExecutor | None = None
        _check_batch_size(self.config, augment, len(self.source))
        if augment and augment.outlier_rate > 0 and labels_of(dataset.task) not in ("class", "set"):
            raise ConfigError(
                f"is for classes and labels; these data have {dataset.labelling.what}; omit it.", field="outlier_rate"
            )
        if self.config.evenly and self.source.blocks is not None:
            raise ConfigError(
                "shards are read one after another, so that classes cannot be drawn equally often; use "
                '`balance="logit"`, which needs no other order.'
            )
        if self.config.pin_memory and not torch.cuda.is_available():
            raise ConfigError("pin_memory needs a CUDA device, and torch finds none.")
        self._order = self._make_order()
        self.source.require_room()

    def __len__(self) -> int:
        return len(self._order)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to iterate over; going to another one starts at its first batch."""
        if epoch != self._epoch:
            self._epoch, self._batch, self._start = epoch, 0, 0
            self._order = self._make_order()

    def state_dict(self) -> dict[str, Any]:
        """The current position: after loading it, the next batch is the one that would have come next."""
        return {"epoch": self._epoch, "batch": self._batch, "broken": dict(self.broken), **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where another loader of the same data and settings was; workers and ranks may differ."""
        identity = self._identity()
        missing = sorted({"epoch", "batch", "broken", *identity} - set(state))
        if missing:
            raise ConfigError(f"cannot resume the data: not the state of a loader, it lacks {', '.join(missing)}.")
        for name, value in identity.items():
            if state[name] != value:
                was = repr(state[name])[:100]
                raise ConfigError(f"cannot resume the data: {name} was {was} and is now {value!r}.")
        self.set_epoch(state["epoch"])
        self._batch = self._start = state["batch"]
        self.broken = dict(state["broken"])

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self.config.seed,
            "batch_size": self.config.batch_size,
            "remainder": self.config.remainder,
            "repeats": self.augment.repeats if self.augment else 1,
            "num_samples": len(self.source),
            "training": self.augment is not None,
            "data": _fingerprint(self.source),
            **({"evenly": True} if self.config.evenly else {}),
        }

    def _make_order(self) -> Order:
        if self.augment is None:
            return evaluation_order(len(self.source), self.config.batch_size)
        size, repeats, remainder = self.config.batch_size, self.augment.repeats, self.config.remainder
        if self.config.evenly:
            drawn = draw_evenly(self.source.labels, self.config.seed, self._epoch)
            order = training_order(drawn, size, remainder=remainder, repeats=repeats)
            return replace(order, repeats=count_repeats(order.samples))
        shuffled = shuffle(len(self.source), self.config.seed, self._epoch, self.source.blocks)
        return training_order(shuffled, size, remainder=remainder, repeats=repeats)

    def __iter__(self) -> Iterator[Batch]:
        start, self._start = self._start, 0
        broken: dict[str, str] = {}
        for batch, chunks, images in self._batches(self._order, start):
            broken_here = {key: why for chunk in chunks for key, why in chunk.broken.items()}
            broken |= broken_here
            self.broken |= broken_here
            if broken_here:
                self._judge(broken)
            self._batch = batch + 1
            if sum(chunk.num_images for chunk in chunks):
                yield _join(chunks, images)
        self._batch = 0

    def _judge(self, broken: dict[str, str]) -> None:
        """Stop if the broken pictures of this epoch are more than the policy allows."""
        if self.config.on_broken == "error":
            raise DataError(f"a picture cannot be read; `on_broken='skip'` would omit it:{list_broken(broken)}")
        refuse_broken(broken, len(self.source) // self.config.world_size, self.config.max_broken_rate)

    def _batches(self, order: Order, start: int) -> Iterator[tuple[int, list[Chunk], Tensor]]:
        """(number, chunks, memory) of this rank's batches from the given one on, some prepared in advance."""
        workers = self.num_workers
        waiting: deque[tuple[int, list[Future[Chunk]], Tensor]] = deque()

        def finish() -> tuple[int, list[Chunk], Tensor]:
            batch, futures, images = waiting.popleft()
            return batch, [future.result() for future in futures], images

        try:
            for batch in range(start, len(order)):
                positions = order.positions(batch, self.config.rank, self.config.world_size)
                if not len(positions):  # a last batch with fewer pictures than ranks
                    continue
                images = self._memory(len(positions))
                if not workers:
                    yield batch, [self._make(order, positions, images, self._epoch)], images
                    continue
                waiting.append((batch, self._submit(order, positions, images), images))
                del images  # or the memory of the batch would stay in use
                if len(waiting) > self._ahead:
                    yield finish()
            while waiting:
                yield finish()
        finally:
            for _, futures, _ in waiting:
                for future in futures:
                    future.cancel()

    @property
    def num_workers(self) -> int:
        """The number of worker threads: as configured, or what suits the source."""
        if self.config.workers is not None:
            return self.config.workers
        return 1 if isinstance(self.source, ArraySource) else min(os.cpu_count() or 1, 16)

    @property
    def _ahead(self) -> int:
        """How many batches are prepared in advance."""
        return 2 + self.num_workers * CHUNK * self.config.world_size // self.config.batch_size

    def _memory(self, count: int) -> Tensor:
        dtype = torch.float32 if self.config.output == "float" else torch.uint8
        return self._buffers.take((count, self.preprocess.channels, *self.preprocess.size), dtype)

    def _submit(self, order: Order, positions: Integers, images: Tensor) -> list[Future[Chunk]]:
        self._pool = self._pool or start_workers(self.num_workers)
        step = len(positions) if isinstance(self.source, ArraySource) else CHUNK
        return [
            self._pool.submit(self._make, order, positions[at : at + step], images[at : at + step], self._epoch)
            for at in range(0, len(positions), step)
        ]

    def _make(self, order: Order, positions: Integers, images: Tensor, epoch: int) -> Chunk:
        samples, repeats, augment = order.samples[positions], order.repeats[positions], self.augment
        if augment is None or not (augment.views or augment.fixed_views):
            versions, draws = repeats, Draws(self.config.seed, epoch, samples, repeats)
            chunk = self._maker.make(samples, draws, images, substitute=augment is not None)
        else:
            versions = (epoch * augment.repeats + repeats) % (augment.views or 1)
            chunk = self._make_view(versions, samples, images)
        return replace(chunk, indices=versions * len(self.source) + samples) if self.config.number_versions else chunk

    def view(self, version: int, samples: Integers) -> Tensor:
        """One fixed version of these samples, as training sees it: (B, C, H, W)."""
        images = torch.empty(len(samples), self.preprocess.channels, *self.preprocess.size)
        self._make_view(version, samples, images)
        return images

    def _make_view(self, versions: int | Integers, samples: Integers, images: Tensor) -> Chunk:
        return self._maker.make(samples, Draws(self.config.seed, versions, samples), images, substitute=True)


def _fingerprint(source: Source) -> str:
    """A hash of all labels and some names: other data of the same size must not pass as the same."""
    digest = hashlib.blake2b(source.labels.tobytes(), digest_size=8)
    for index in range(0, len(source), max(len(source) // 64, 1)):
        digest.update(source.key(index).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _check_batch_size(config: LoaderConfig, augment: Augment | None, num_samples: int) -> None:
    if augment is None:
        return
    size = config.batch_size
    if augment.pairs and size // config.world_size % 2:
        raise ConfigError(
            f"mixup, cutmix and outliers pair pictures, so each rank's batch must be even; got {size} in total."
        )
    if augment.mixes and config.output == "bytes":
        raise ConfigError("mixup and cutmix need `output='float'`.")
    if size % augment.repeats:
        raise ConfigError(f"batch_size must be a multiple of repeats {augment.repeats}; got {size}.")
    if num_samples < size and config.remainder == "drop":
        raise ConfigError(
            f"`batch_size={size}` is more than the {counted(num_samples, 'picture')}; lower it, or fill the batch up "
            "with `remainder='pad'`."
        )


def _join(chunks: list[Chunk], images: Tensor) -> Batch:
    """One batch; gaps left by omitted pictures are closed."""
    if sum(chunk.num_images for chunk in chunks) < len(images):
        parts: list[Tensor] = []
        start = 0
        for chunk in chunks:
            parts.append(images[start : start + chunk.num_images])
            start += CHUNK
        images = torch.cat(parts)
    targets = torch.cat([chunk.targets for chunk in chunks])
    return Batch(images, targets, torch.as_tensor(np.concatenate([chunk.indices for chunk in chunks])))

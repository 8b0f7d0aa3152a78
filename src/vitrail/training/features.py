"""Features computed once, handed out like batches of pictures: the head learns from them in seconds."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from vitrail.data import Batch
from vitrail.data.loader import draw_evenly
from vitrail.data.source import Source, refuse_broken
from vitrail.errors import ConfigError
from vitrail.prediction.predictor import Predictor
from vitrail.ranks import Ranks
from vitrail.rng import Integers, permutation
from vitrail.runtimes.runtime import Floats
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.training.budget import SHARE, pictures_at_the_end
from vitrail.training.feature_store import FOLDER, Features, FeatureStore, backbone_of, features_key, largest_call
from vitrail.training.listener import Listener
from vitrail.training.run_data import contents_key
from vitrail.training.setup import EVAL_BATCH, Setup, plain_loader
from vitrail.weights.checkpoint import Checkpoint
from vitrail.wording import counted

TOLERANCE = 1e-3  # of the summary of the features, which may be computed in other parts


@dataclass(kw_only=True)
class FeatureLoader:
    """Batches of (features, target), shuffled for training as `Loader` shuffles pictures."""

    stored: Features
    targets: Tensor
    batch_size: int
    seed: int
    ranks: Ranks
    shuffled: bool
    data: str  # identifies these pictures
    evenly: bool = False  # of all classes equally often, as with `Loader`
    _epoch: int = field(default=0, init=False)
    _batch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.features = features = self.stored.features
        if self.shuffled:
            check_batch_size(self.batch_size, len(features), self.ranks.world_size)
        # numbers that differ for other weights, but not for another number of ranks
        self.summary = [float(features.abs().mean()), float(features.std()), float(features[0].abs().max())]

    def __len__(self) -> int:
        count = len(self.features)
        return count // self.batch_size if self.shuffled else -(-count // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._batch = epoch, 0

    def __iter__(self) -> Iterator[Batch]:
        count = len(self.features)
        order = torch.as_tensor(self._shuffle(count)) if self.shuffled else torch.arange(count)
        start, self._batch = self._batch, 0
        for batch in range(start, len(self)):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            self._batch = batch + 1
            chosen = chosen.tensor_split(self.ranks.world_size)[self.ranks.rank]
            yield Batch(self.features[chosen], self.targets[chosen], chosen)
        self._batch = 0

    def _shuffle(self, count: int) -> Integers:
        if self.evenly:
            return draw_evenly(self.targets.numpy(), self.seed, self._epoch)
        return permutation(self.seed, self._epoch, count)

    def state_dict(self) -> dict[str, Any]:
        """Where we are in the epoch."""
        return {"epoch": self._epoch, "batch": self._batch, "data": self.data, "features": self.summary}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue there."""
        if state.get("data") != self.data:
            raise ConfigError("cannot resume: the pictures are not those of the run.")
        if not _are_close(state.get("features"), self.summary):
            raise ConfigError(
                "cannot resume: the features are not those of the run; are `weights=` and the pictures still the same?"
            )
        self._epoch, self._batch = state["epoch"], state["batch"]


def _are_close(summary: Any, own: list[float]) -> bool:
    """Whether a summary from a file is valid, and close to ours."""
    if not isinstance(summary, list) or len(cast("list[Any]", summary)) != len(own):
        return False
    pairs = zip(cast("list[Any]", summary), own, strict=True)
    return all(isinstance(theirs, float) and math.isclose(theirs, ours, rel_tol=TOLERANCE) for theirs, ours in pairs)


def check_batch_size(batch_size: int, pictures: int, world_size: int) -> None:
    """Refuse sizes that give no whole batch, or no equal parts of one."""
    if batch_size > pictures:
        raise ConfigError(f"batch_size {batch_size} is more than the {counted(pictures, 'picture')}; lower it.")
    if batch_size % world_size:
        raise ConfigError(f"batch_size must be a multiple of the {world_size} ranks; got {batch_size}.")


def compute_features(setup: Setup, split: str, ranks: Ranks, listener: Listener, folder: Path) -> Features:
    """The features of a split, those in the run folder and the others computed now."""
    source = setup.dataset.split(split)
    backbone = backbone_of(setup.model, setup.preprocess)
    key = ranks.from_first(lambda: features_key(backbone, source, contents_key(folder, source)))
    minutes = setup.config.schedule.minutes
    store = FeatureStore(folder=folder / FOLDER, split=split, key=key, count=len(source), spread=minutes is not None)
    kept = store.read_whole()
    if ranks.any(kept is None):
        deadline = _Deadline(setup) if minutes is not None and split == "train" else None
        kept, broken = _Computation(store, source, backbone, ranks, listener, deadline).run()
        refuse_broken(broken, len(source), setup.dataset.max_broken_rate)
        ranks.wait()
        ranks.from_first(lambda: store.join(kept))
    else:
        listener.said(f"the features of {counted(store.count, f'{store.split} picture')} are there already")
    assert kept is not None
    return kept


def feature_loader(setup: Setup, split: str, ranks: Ranks, listener: Listener, folder: Path) -> FeatureLoader:
    """The features of a split, shuffled if learned from; shared ones, or those of the run folder."""
    machine, source = setup.config.machine, setup.dataset.split(split)
    shared = None if setup.shared is None else setup.shared[split]
    kept = shared or compute_features(setup, split, ranks, listener, folder)
    assert isinstance(machine.batch_size, int)
    training = split == "train"
    batch = machine.batch_size if training else EVAL_BATCH * ranks.world_size
    data = plain_loader(setup, split, ranks).state_dict()["data"]
    return FeatureLoader(
        stored=kept,
        targets=torch.as_tensor(source.labels)[kept.indices],
        batch_size=batch,
        seed=machine.seed,
        ranks=ranks,
        shuffled=training,
        data=data,
        evenly=training and setup.config.optim.balance == "sample",
    )


class _Deadline:
    """When to stop computing features, so that all that comes after them fits into the time budget."""

    def __init__(self, setup: Setup) -> None:
        minutes, splits = setup.config.schedule.minutes, setup.dataset.splits
        assert minutes is not None
        self._end = setup.began + 60 * minutes * SHARE
        self._after = len(splits.get("val", ())) + pictures_at_the_end(splits, on_features=True)
        self._first: tuple[float, int] | None = None  # when the first part was done, and its pictures: it warms up

    def has_passed(self, done: int) -> bool:
        """Whether it is time to stop, given how many pictures are done."""
        now = time.monotonic()
        if self._first is None:
            self._first = now, done
        began, warm = self._first
        return now + self._after * (now - began) / max(done - warm, 1) > self._end


class _Computation(NamedTuple):
    """The features of a split that are not in the run folder yet: computed and stored, by each rank some parts."""

    store: FeatureStore
    source: Source
    backbone: Checkpoint
    ranks: Ranks
    listener: Listener
    deadline: _Deadline | None

    def run(self) -> tuple[Features, dict[str, str]]:
        """All features, of which those that are missing are computed; and the pictures that could not be read, now or
        before.

        If the deadline passes, the remaining parts are left out.
        """
        store, ranks = self.store, self.ranks
        missing = ranks.from_first(store.missing)
        count = self._count(missing)
        some = f"{count:,} of " if count < store.count else ""
        self.listener.said(f"computing the features of {some}{counted(store.count, f'{store.split} picture')}, once")
        own = missing[ranks.rank :: ranks.world_size]
        broken, done = self._compute(own) if own else ({}, 0)
        ranks.wait()
        left = {part for parts in ranks.gather(own[done:]) for part in parts}
        kept = store.read([part for part in store.parts if part not in left])
        if left:
            self.listener.ended()
            self.listener.said(
                f"no time is left for more features: training on {counted(len(kept.indices), 'picture')} of "
                f"{store.count:,}, of all classes"
            )
        reasons = {name: why for own_broken in ranks.gather(broken) for name, why in own_broken.items()}
        wanted = {index for part in store.parts if part not in left for index in store.pictures(part)}
        lost = [self.source.key(index) for index in sorted(wanted - set(kept.indices.tolist()))]
        return kept, {name: reasons.get(name, "cannot be read") for name in lost}

    def _count(self, parts: list[int]) -> int:
        return sum(len(self.store.pictures(part)) for part in parts)

    def _predictor(self, parts: list[int]) -> Predictor:
        """The fastest that is exact enough; of several ranks, each computes on its own device."""
        runtime = TorchRuntime(self.backbone.build().to(self.ranks.device))
        predictor = Predictor(runtime=runtime, **self.backbone.facts())
        if self.ranks.world_size > 1:
            return predictor
        some = self.source.stream(index for part in parts for index in self.store.pictures(part))
        pictures = (picture for _, picture in some)
        return predictor.on("auto", count=self._count(parts), pictures=pictures, say=self.listener.said)

    def _compute(self, parts: list[int]) -> tuple[dict[str, str], int]:
        """The features of all pictures of these parts, written part by part, until the deadline.

        The pictures that cannot be read, and why; and how many parts there was time for.
        """
        store, source = self.store, self.source
        predictor = self._predictor(parts)
        broken: dict[str, str] = {}
        total, done = self._count(parts) * self.ranks.world_size, 0
        named = source.stream(index for part in parts for index in store.pictures(part))
        outputs = predictor.features(named, largest_call(predictor.runtime.batch_size))
        for number, part in enumerate(parts, start=1):
            rows: dict[int, Floats] = {}
            for index, (name, value) in zip(store.pictures(part), outputs, strict=False):
                if isinstance(value, str):
                    broken[name] = value
                else:
                    rows[index] = value
            features = np.array(list(rows.values()), dtype=np.float32).reshape(len(rows), -1 if rows else 0)
            store.write(part, Features(torch.from_numpy(features), torch.tensor(list(rows), dtype=torch.long)))
            done += len(store.pictures(part))
            self.listener.prepared(f"{store.split} features", min(done * self.ranks.world_size, total), total)
            if self.deadline is not None and self.deadline.has_passed(done):
                return broken, number
        return broken, len(parts)

"""Features computed once, handed out like batches of pictures: the head learns from them in seconds."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vitrail.data import Batch
from vitrail.data.source import Source, refuse_broken
from vitrail.errors import ConfigError
from vitrail.prediction.predictor import Predictor
from vitrail.ranks import Ranks
from vitrail.rng import permutation
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


class FeatureLoader:
    """Batches of (features, target), shuffled for training as `Loader` shuffles pictures."""

    def __init__(
        self, features: Tensor, targets: Tensor, batch_size: int, seed: int, ranks: Ranks, *, shuffled: bool, data: str
    ) -> None:
        if shuffled:
            check_batch_size(batch_size, len(features), ranks.world_size)
        self.features = features
        self.data = data  # identifies these pictures
        # numbers that differ for other weights, but not for another number of ranks
        self.summary = [float(features.abs().mean()), float(features.std()), float(features[0].abs().max())]
        self.targets = targets
        self.batch_size = batch_size
        self.seed = seed
        self.ranks = ranks
        self.shuffled = shuffled
        self._epoch = 0
        self._batch = 0

    def __len__(self) -> int:
        count = len(self.features)
        return count // self.batch_size if self.shuffled else -(-count // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._batch = epoch, 0

    def __iter__(self) -> Iterator[Batch]:
        count = len(self.features)
        order = torch.as_tensor(permutation(self.seed, self._epoch, count)) if self.shuffled else torch.arange(count)
        start, self._batch = self._batch, 0
        for batch in range(start, len(self)):
            chosen = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            self._batch = batch + 1
            chosen = chosen.tensor_split(self.ranks.world_size)[self.ranks.rank]
            yield Batch(self.features[chosen], self.targets[chosen], chosen)
        self._batch = 0

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


def feature_loader(setup: Setup, split: str, ranks: Ranks, listener: Listener, folder: Path) -> FeatureLoader:
    """The features of a split, those in the run folder and the others computed now; shuffled if learned from."""
    machine, source = setup.config.machine, setup.dataset.split(split)
    backbone = backbone_of(setup.model, setup.preprocess)
    key = ranks.from_first(lambda: features_key(backbone, source, contents_key(folder, source)))
    minutes = setup.config.schedule.minutes
    store = FeatureStore(folder=folder / FOLDER, split=split, key=key, count=len(source), spread=minutes is not None)
    kept = store.read_whole()
    if ranks.any(kept is None):
        deadline = _Deadline(setup) if minutes is not None and split == "train" else None
        kept, broken = _compute(store, source, backbone, ranks, listener, deadline)
        refuse_broken(broken, len(source), setup.dataset.max_broken_rate)
        ranks.wait()
        ranks.from_first(lambda: store.join(kept))
    else:
        listener.said(f"the features of {counted(store.count, f'{store.split} picture')} are there already")
    assert kept is not None
    assert isinstance(machine.batch_size, int)
    training = split == "train"
    batch = machine.batch_size if training else EVAL_BATCH * ranks.world_size
    data = plain_loader(setup, split, ranks).state_dict()["data"]
    targets = torch.as_tensor(source.labels)[kept.indices]
    return FeatureLoader(kept.features, targets, batch, machine.seed, ranks, shuffled=training, data=data)


class _Deadline:
    """When to stop computing features, so that all that comes after them fits into the time budget."""

    def __init__(self, setup: Setup) -> None:
        minutes, splits = setup.config.schedule.minutes, setup.dataset.splits
        assert minutes is not None
        self._end = setup.began + 60 * minutes * SHARE
        self._after = len(splits.get("val", ())) + pictures_at_the_end(splits, on_features=True)
        self._first: tuple[float, int] | None = None  # when the first part was done, and its pictures: it warms up

    def has_passed(self, done: int) -> bool:
        """Whether it is time to stop, after so many pictures."""
        now = time.monotonic()
        if self._first is None:
            self._first = now, done
        began, warm = self._first
        return now + self._after * (now - began) / max(done - warm, 1) > self._end


def _compute(
    store: FeatureStore,
    source: Source,
    backbone: Checkpoint,
    ranks: Ranks,
    listener: Listener,
    deadline: _Deadline | None,
) -> tuple[Features, dict[str, str]]:
    """All features, of which those that are missing are computed and kept, by each rank some parts; and the pictures
    that could not be read, now or before.

    If the deadline passes, the parts that are left are done without.
    """
    missing = ranks.from_first(store.missing)
    count = sum(len(store.pictures(part)) for part in missing)
    some = f"{count:,} of " if count < store.count else ""
    listener.said(f"computing the features of {some}{counted(store.count, f'{store.split} picture')}, once")
    own = missing[ranks.rank :: ranks.world_size]
    broken: dict[str, str] = {}
    done = 0
    if own:
        predictor = _predictor(backbone, source, own, store, ranks, listener)
        broken, done = _stream(predictor, own, source, store, listener, ranks.world_size, deadline)
    ranks.wait()
    left = {part for parts in ranks.gather(own[done:]) for part in parts}
    kept = store.read([part for part in store.parts if part not in left])
    if left:
        listener.ended()
        listener.said(
            f"no time is left for more features: training on {counted(len(kept.indices), 'picture')} of "
            f"{store.count:,}, of all classes"
        )
    reasons = {name: why for own_broken in ranks.gather(broken) for name, why in own_broken.items()}
    wanted = {index for part in store.parts if part not in left for index in store.pictures(part)}
    lost = [source.key(index) for index in sorted(wanted - set(kept.indices.tolist()))]
    return kept, {name: reasons.get(name, "cannot be read") for name in lost}


def _predictor(
    backbone: Checkpoint, source: Source, parts: list[int], store: FeatureStore, ranks: Ranks, listener: Listener
) -> Predictor:
    """The fastest that is exact enough; of several ranks, each computes on its own device."""
    runtime = TorchRuntime(backbone.build().to(ranks.device))
    predictor = Predictor(runtime=runtime, **backbone.facts())
    if ranks.world_size > 1:
        return predictor
    pictures = (source.picture(index) for part in parts for index in store.pictures(part))
    count = sum(len(store.pictures(part)) for part in parts)
    return predictor.on("auto", count=count, pictures=pictures, say=listener.said)


def _stream(
    predictor: Predictor,
    parts: list[int],
    source: Source,
    store: FeatureStore,
    listener: Listener,
    world_size: int,
    deadline: _Deadline | None,
) -> tuple[dict[str, str], int]:
    """The features of all pictures of these parts, written part by part, until the deadline.

    The pictures that cannot be read, and why; and how many parts there was time for.
    """
    broken: dict[str, str] = {}
    total, done = sum(len(store.pictures(part)) for part in parts), 0
    named = ((source.key(index), source.picture(index)) for part in parts for index in store.pictures(part))
    outputs = predictor.features(named, largest_call(predictor.runtime.batch_size))
    for number, part in enumerate(parts, start=1):
        pictures = store.pictures(part)
        rows: dict[int, Floats] = {}
        for index, (name, value) in zip(pictures, outputs, strict=False):
            if isinstance(value, str):
                broken[name] = value
            else:
                rows[index] = value
        features = torch.from_numpy(np.array(list(rows.values()), dtype=np.float32)).view(len(rows), -1 if rows else 0)
        store.write(part, Features(features, torch.tensor(list(rows), dtype=torch.long)))
        done += len(pictures)
        listener.prepared(f"{store.split} features", min(done * world_size, total * world_size), total * world_size)
        if deadline is not None and deadline.has_passed(done):
            return broken, number
    return broken, len(parts)

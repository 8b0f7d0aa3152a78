"""Features computed once, handed out like batches of pictures: the head learns from them in seconds."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vitrail.data import Batch
from vitrail.data.source import Source, refuse_broken
from vitrail.draws import permutation
from vitrail.errors import ConfigError
from vitrail.prediction.predictor import Predictor
from vitrail.ranks import Ranks
from vitrail.runtimes.runtime import Floats
from vitrail.runtimes.torch_runtime import TorchRuntime
from vitrail.training.building import EVAL_BATCH, Setup, plain_loader
from vitrail.training.kept_features import FOLDER, Features, FeatureStore, backbone_of, features_key, largest_call
from vitrail.training.listener import Listener
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
            raise ConfigError("cannot resume: the features are not those of the run; are weights= still the same?")
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
    key = ranks.from_first(lambda: features_key(backbone, source))
    store = FeatureStore(folder=folder / FOLDER, split=split, key=key, count=len(source))
    missing = ranks.from_first(store.missing)
    broken = _compute(store, missing, source, backbone, ranks, listener)
    kept = store.read()
    _check_broken(kept, source, broken, setup.dataset.max_broken_rate)
    ranks.wait()
    ranks.from_first(lambda: store.join(kept))
    assert isinstance(machine.batch_size, int)
    training = split == "train"
    batch = machine.batch_size if training else EVAL_BATCH * ranks.world_size
    data = plain_loader(setup, split, ranks).state_dict()["data"]
    targets = torch.as_tensor(source.labels)[kept.indices]
    return FeatureLoader(kept.features, targets, batch, machine.seed, ranks, shuffled=training, data=data)


def _check_broken(kept: Features, source: Source, broken: dict[str, str], rate: float) -> None:
    """Refuse to learn from what is left if too many pictures could not be read, now or before."""
    lost = sorted(set(range(len(source))) - set(kept.indices.tolist()))
    names = [source.key(index) for index in lost]
    refuse_broken({name: broken.get(name, "cannot be read") for name in names}, len(source), rate)


def _compute(
    store: FeatureStore, missing: list[int], source: Source, backbone: Checkpoint, ranks: Ranks, listener: Listener
) -> dict[str, str]:
    """Compute and keep the parts that are missing, each rank some of them; the pictures that cannot be read."""
    count = sum(len(store.pictures(part)) for part in missing)
    if not count:
        listener.said(f"the features of {counted(store.count, f'{store.split} picture')} are there already")
        return {}
    some = f"{count:,} of " if count < store.count else ""
    listener.said(f"computing the features of {some}{counted(store.count, f'{store.split} picture')}, once")
    own = missing[ranks.rank :: ranks.world_size]
    broken: dict[str, str] = {}
    if own:
        predictor = _predictor(backbone, source, own, store, ranks, listener)
        broken = _stream(predictor, own, source, store, listener, ranks.world_size)
    ranks.wait()
    return {name: why for own_broken in ranks.gather(broken) for name, why in own_broken.items()}


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
    predictor: Predictor, parts: list[int], source: Source, store: FeatureStore, listener: Listener, world_size: int
) -> dict[str, str]:
    """The features of all pictures of these parts, written part by part; the pictures that cannot be read, and why."""
    broken: dict[str, str] = {}
    total, done = sum(len(store.pictures(part)) for part in parts), 0
    named = ((source.key(index), source.picture(index)) for part in parts for index in store.pictures(part))
    outputs = predictor.features(named, largest_call(predictor.runtime.batch_size))
    for part in parts:
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
    return broken

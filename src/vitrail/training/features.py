"""Features computed once, handed out like batches of pictures: the head learns from them in seconds."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from vitrail.data import Batch
from vitrail.data.loader import Loader
from vitrail.draws import permutation
from vitrail.errors import ConfigError
from vitrail.ranks import Ranks, current_ranks
from vitrail.training.building import EVAL_BATCH, Setup, plain_loader
from vitrail.training.listener import Listener
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


def compute_features(
    loader: Loader, features_of: Callable[[Tensor], Tensor], progress: Callable[[int, int], None]
) -> Batch:
    """The features and labels of a whole split in its order; each rank computes those of its own loader."""
    parts: list[Batch] = []
    for number, batch in enumerate(loader, start=1):
        with torch.no_grad():
            parts.append(Batch(features_of(batch.images).float().cpu(), batch.targets, batch.indices))
        progress(number, len(loader))
    everything = [part for own in current_ranks().gather(parts) for part in own]
    features, targets, indices = (torch.cat(tensors) for tensors in zip(*everything, strict=True))
    order = indices.argsort()
    return Batch(features[order], targets[order], indices[order])


def feature_loader(setup: Setup, split: str, ranks: Ranks, listener: Listener) -> FeatureLoader:
    """The features of a split, computed now, as batches; shuffled if they are to be learned from."""
    model, machine = setup.model.eval(), setup.config.machine

    def features_of(images: Tensor) -> Tensor:
        return model.features(images.to(ranks.device))

    listener.said(f"computing the features of {counted(len(setup.dataset.split(split)), f'{split} picture')}, once")
    loader = plain_loader(setup, split, ranks)
    computed = compute_features(loader, features_of, partial(listener.prepared, f"{split} features"))
    assert isinstance(machine.batch_size, int)
    training = split == "train"
    batch = machine.batch_size if training else EVAL_BATCH * ranks.world_size
    data = loader.state_dict()["data"]
    return FeatureLoader(computed.images, computed.targets, batch, machine.seed, ranks, shuffled=training, data=data)

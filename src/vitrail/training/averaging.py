"""A moving average of the weights, which is often better than the weights themselves."""

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Exponential moving average of all floating-point tensors of a model, shard by shard where it is spread."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._current = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
        self.tensors = {name: tensor.detach().clone() for name, tensor in self._current.items()}
        self._pairs = [(_local(mean), _local(self._current[name])) for name, mean in self.tensors.items()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the weights after the given step, counted from 0; the first steps count for more."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for mean, weight in self._pairs:
            mean.lerp_(weight, 1 - decay)

    @contextmanager
    def in_place(self) -> Generator[None]:
        """With the averaged weights in the model."""
        backup = {name: tensor.detach().clone() for name, tensor in self._current.items()}
        self._write(self.tensors)
        try:
            yield
        finally:
            self._write(backup)

    @torch.no_grad()
    def _write(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._current[name].copy_(tensor)


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()

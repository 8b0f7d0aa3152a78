"""Memory for batches, used again and again: fresh pages cost more than filling them."""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Buffers:
    """Hands out tensors, on memory that is no longer in use if there is any.

    Each tensor, and every view of it, keeps the numpy array below it alive; an array that only this list refers to
    is free. Pinned memory is left to torch, which has its own cache and tracks copies that still run.
    """

    def __init__(self, limit: int, *, pinned: bool = False) -> None:
        self._limit = limit  # arrays to keep
        self._pinned = pinned
        self._arrays: list[np.ndarray[Any, Any]] = [np.empty(0)]
        self._idle = sys.getrefcount(self._arrays[0])  # the count of an array that only the list refers to

    @torch.inference_mode(False)  # the workers, which have a mode of their own, must be able to fill it
    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor."""
        if self._pinned:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        kind = np.uint8 if dtype == torch.uint8 else np.float32
        free = [index for index in range(len(self._arrays)) if sys.getrefcount(self._arrays[index]) <= self._idle]
        for index in free:
            if self._arrays[index].shape == shape and self._arrays[index].dtype == kind:
                return torch.as_tensor(self._arrays[index])
        for index in reversed(free):  # of other shapes: the last batch of an epoch may be shorter
            del self._arrays[index]
        array = np.empty(shape, dtype=kind)
        if len(self._arrays) < self._limit:  # beyond that, the caller keeps its batches, and they are not reused
            self._arrays.append(array)
        return torch.as_tensor(array)

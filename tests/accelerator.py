"""A device that is not there: the CPU, pretending to be one without float64, as a Mac's GPU is.

`DEVICE` computes as the CPU does. Tensors that were moved to it carry a mark, which whatever is computed from them
inherits and `.cpu()` takes off. Under `pretending()`, marked tensors can neither be float64 nor become NumPy arrays.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cpu:0")  # not the same as "cpu", and just as good
HOST = torch.device("cpu")
_MARK = "_pretends"
_LEAVES = {Tensor.cpu, Tensor.tolist, Tensor.item}


def is_marked(value: Any) -> bool:
    return isinstance(value, Tensor) and getattr(value, _MARK, False)


def mark(value: Any) -> Any:
    for tensor in _tensors([value]):
        if tensor.dtype == torch.float64:
            raise TypeError("Cannot convert a Tensor to float64 dtype: the device has none.")
        setattr(tensor, _MARK, True)
    return value


def _tensors(values: Iterable[Any]) -> Generator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _asked_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.device):
            return value
        if isinstance(value, str) and value.startswith("cpu"):
            return torch.device(value)
    return None


class Pretence(TorchFunctionMode):
    """Hears every call of torch's Python functions."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0  # calls that worked on the device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        owner = getattr(func, "__self__", None)
        if name == "__get__" and owner is Tensor.device:
            return DEVICE if is_marked(args[0]) else HOST
        if name in ("__get__", "__set__", "__delete__") or "attr" in name:
            result = func(*args, **kwargs)
            return mark(result) if name == "__get__" and is_marked(args[0]) and owner in _ALIASES else result
        inputs = list(_tensors([args, kwargs]))
        on_device = any(is_marked(tensor) for tensor in inputs)
        if func is Tensor.numpy and on_device:
            raise TypeError("can't convert a device tensor to numpy; use Tensor.cpu() first.")
        asked = _asked_device(args, kwargs)
        if func in _LEAVES or (func is Tensor.to and asked == HOST):
            result = func(*args, **kwargs)
            return result.view_as(result) if result is args[0] else result
        if func is Tensor.to and on_device and isinstance(args[1] if len(args) > 1 else None, Tensor):
            asked = DEVICE if is_marked(args[1]) else HOST
        result = func(*args, **kwargs)
        if asked == DEVICE or (asked is None and on_device):
            self.seen += 1
            if func is Tensor.to and any(result is tensor and not is_marked(tensor) for tensor in inputs):
                result = result.view_as(result)
            mark(result)
        return result


_ALIASES = {Tensor.data, Tensor.grad, Tensor.T, Tensor.mT}


class NoFloat64(TorchDispatchMode):
    """Refuses every operation that makes a float64 tensor, wherever it comes from: for stretches of device work."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors([result]):
            if tensor.dtype == torch.float64:
                raise TypeError(f"{func} makes a float64 tensor, which this device does not have.")
        return result


@contextmanager
def pretending() -> Generator[Pretence]:
    """While it lasts, `DEVICE` is an accelerator without float64, in this thread."""
    to = nn.Module.to

    def move(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        moved = to(module, *args, **kwargs)
        if _asked_device(args, kwargs) == DEVICE:
            for tensor in (*moved.parameters(), *moved.buffers()):
                mark(tensor)
        return moved

    with patch.object(nn.Module, "to", move), Pretence() as pretence:
        yield pretence

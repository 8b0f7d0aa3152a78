"""Where to compute: the device that a name stands for."""

import os
from typing import TYPE_CHECKING

from vitrail.errors import ConfigError

if TYPE_CHECKING:
    import torch


def check_device(name: "str | torch.device") -> None:
    """Raise for a device that cannot be used. The names that always can load no torch."""
    if name not in ("auto", "cpu"):
        pick_device(name)


def pick_device(name: "str | torch.device") -> "torch.device":
    """`auto` is the best device there is. Under torchrun, `cuda` is the GPU with this process's local rank."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            name = "cuda"
        elif torch.backends.mps.is_available():
            name = "mps"
        else:
            name = "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # there and back: `meta` holds no numbers
    except (RuntimeError, AssertionError) as error:
        first_line = str(error).splitlines()[0]
        raise ConfigError(f'the device {str(name)!r} cannot be used: {first_line}; try device="cpu".') from error
    return device

"""Where to compute: the device that a name stands for."""

import os

import torch

from vitrail.errors import ConfigError


def pick_device(name: str | torch.device) -> torch.device:
    """`auto` is the best device there is. Under torchrun, `cuda` is the GPU with this process's local rank."""
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

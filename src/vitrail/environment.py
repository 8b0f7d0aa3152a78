"""The versions, the machine and the command behind a result."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from vitrail import __version__


def environment() -> dict[str, Any]:
    """Everything needed to understand the numbers later."""
    packages: dict[str, str] = {}
    for name in ("torch", "numpy", "pillow", "safetensors", "scikit-learn"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "?"
    return {
        "vitrail": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": packages,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "local_world_size": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "command": sys.argv,
    }

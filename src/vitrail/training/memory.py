"""How much memory there is and was needed, on different systems."""

import ctypes
import os
import sys
from typing import Any, cast

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None

UNKNOWN = 4 * 2**30  # bytes that are assumed if the system does not report its memory


def peak_memory(device: torch.device) -> int:
    """The peak memory of this process in bytes; 0 if the system does not count it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def total_memory(device: torch.device) -> int:
    """The memory of the device in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if sys.platform == "win32":
        return _windows_memory()
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN


def _windows_memory() -> int:
    kilobytes = ctypes.c_ulonglong()
    kernel: Any = cast("Any", ctypes).windll.kernel32
    known = kernel.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
    return kilobytes.value * 1024 if known else UNKNOWN

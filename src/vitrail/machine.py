"""The machine that computes: its processor, its memory, what is installed, and the device that a name stands for.

`import vitrail` loads this file: torch, and everything else that is slow to import, is imported where it is needed.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vitrail.errors import ConfigError
from vitrail.wording import first_line

if TYPE_CHECKING:
    import torch

CPUINFO = Path("/proc/cpuinfo")
AMX_LEAF = 0x1D  # where CPUID describes the tiles of AMX
ONEDNN_LIMIT = "ONEDNN_MAX_CPU_ISA"
# Settings of the C library's malloc, by their numbers in malloc.h; and values to go back to: of the thresholds, which
# malloc no longer adapts once one of them is set, the highest that it would have chosen.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
NEVER, TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, 64 * 2**20, 32 * 2**20, 65_536
BF16 = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # the flags that Linux gives x86 and Arm processors with bf16


def processor_name() -> str:
    """The name that its maker gave it, where the system tells."""
    return _fact("model name") or platform.processor() or platform.machine()


def computes_bf16() -> bool:
    """Whether it multiplies in bf16 itself; emulated, as on all others, bf16 is never faster than float32."""
    return bool(BF16 & set((_fact("flags") or _fact("Features")).split()))


def is_amd_with_avx512() -> bool:
    """Whether it is one of AMD's with registers of 512 bits, half of which MKL leaves unused."""
    return _fact("vendor_id") == "AuthenticAMD" and "avx512f" in _fact("flags").split()


def has_unusable_amx() -> bool:
    """Whether it claims AMX's matrix units without describing their tiles, as some virtual machines do.

    oneDNN, inside torch and OpenVINO, then sets up no tiles, and the next bf16 or int8 product kills the process.
    """
    level = _fact("cpuid level")
    return "amx_tile" in _fact("flags").split() and level.isdecimal() and int(level) < AMX_LEAF


def avoid_unusable_amx() -> None:
    """Let oneDNN do without AMX where it cannot work, unless the user has set a limit; it asks when first used."""
    if has_unusable_amx():
        os.environ.setdefault(ONEDNN_LIMIT, "AVX512_CORE_FP16")


def _fact(name: str) -> str:
    return _first_core().get(name, "")


@cache
def _first_core() -> dict[str, str]:
    """What Linux says about the first core, by its headings; nothing elsewhere."""
    try:
        with CPUINFO.open(encoding="utf-8") as file:
            pairs = [line.partition(":") for line in takewhile(str.strip, file)]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in pairs}


def main_memory() -> int | None:
    """The main memory in bytes, if the system reports it."""
    if sys.platform == "win32":
        kilobytes = ctypes.c_ulonglong()
        known = cast("Any", ctypes).windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return kilobytes.value * 1024 if known else None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


@contextmanager
def freed_memory_kept() -> Generator[None]:
    """Keep the memory that is freed for what is needed next, instead of returning it to the system each time.

    A step of training on a CPU frees and takes the same large arrays again and again. Linux hands out each of their
    pages anew, filled with zeros, which takes an eighth of the time. Only where the C library is GNU's; what is left is
    returned at the end.
    """
    library = _c_library()
    if library is None:
        yield
        return
    library.mallopt(M_MMAP_MAX, 0)
    library.mallopt(M_TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        library.mallopt(M_MMAP_MAX, MMAP_MAX)
        library.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD)
        library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        library.malloc_trim(0)


def _c_library() -> Any:
    """GNU's C library, if this process uses it."""
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)


def installed_version(package: str) -> str | None:
    """The version of an installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """The versions, the machine and the command behind a result: everything needed to understand the numbers later."""
    import torch

    from vitrail import __version__

    packages = ("torch", "numpy", "pillow", "safetensors", "scikit-learn")
    return {
        "vitrail": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: installed_version(name) or "?" for name in packages},
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "local_world_size": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "command": sys.argv,
    }


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
        why = first_line(error)
        raise ConfigError(f'the device {str(name)!r} cannot be used: {why}; try `device="cpu"`.') from error
    return device

"""The machine that computes: its processor, and the device that a name stands for. Loads torch only to try a device."""

import os
import platform
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.errors import ConfigError

if TYPE_CHECKING:
    import torch


CPUINFO = Path("/proc/cpuinfo")
AMX_LEAF = 0x1D  # where CPUID describes the tiles of AMX
ONEDNN_LIMIT = "ONEDNN_MAX_CPU_ISA"
BF16 = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # the flags that Linux gives x86 and Arm processors with bf16


def processor_name() -> str:
    """The name that its maker gave it, where the system tells."""
    return _fact("model name") or platform.processor() or platform.machine()


def computes_bf16() -> bool:
    """Whether it multiplies in bf16 itself; emulated, as on all others, bf16 is never faster than float32."""
    return bool(BF16 & set((_fact("flags") or _fact("Features")).split()))


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
        raise ConfigError(f'the device {str(name)!r} cannot be used: {first_line}; try `device="cpu"`.') from error
    return device

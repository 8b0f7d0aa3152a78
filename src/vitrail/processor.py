"""The processor that this machine computes with: its name, and what it can do. Needs no torch."""

import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
BF16 = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}  # the flags that Linux gives x86 and Arm processors with bf16


def processor_name() -> str:
    """The name that its maker gave it, where the system tells."""
    return _line("model name") or platform.processor() or platform.machine()


def computes_bf16() -> bool:
    """Whether it multiplies in bf16 itself; emulated, as on all others, bf16 is never faster than float32."""
    return bool(BF16 & set((_line("flags") or _line("Features")).split()))


@cache
def _line(name: str) -> str:
    """What Linux says under a heading about the first core; "" elsewhere."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    values = [line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name]
    return values[0] if values else ""

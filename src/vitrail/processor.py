"""The processor that this machine computes with: its name, and what it can do."""

import platform
from pathlib import Path


def processor_name() -> str:
    """The name that its maker gave it, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def computes_bf16() -> bool:
    """Whether it multiplies in bf16 itself; emulated, as on all others, bf16 is never faster than float32."""
    import torch

    ask = getattr(torch.cpu, "get_capabilities", None)  # of torch 2.10 and later
    return ask is not None and any(bool(has) and name.endswith("bf16") for name, has in ask().items())

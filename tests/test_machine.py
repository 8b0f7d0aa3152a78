"""A processor's name and flags as Linux writes them."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vitrail import machine as processor
from vitrail.errors import ConfigError
from vitrail.machine import pick_device

Say = Callable[[str], None]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Lets Linux say something about the processor; "" for a system that says nothing."""

    def write(text: str) -> None:
        (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(processor, "CPUINFO", tmp_path / ("cpuinfo" if text else "missing"))
        processor._first_core.cache_clear()

    yield write
    processor._first_core.cache_clear()


@pytest.mark.parametrize(
    ("text", "name", "bf16"),
    [
        ("processor\t: 0\nmodel name\t: Xeon 1\nflags\t\t: fpu avx512f avx512_bf16\n", "Xeon 1", True),
        ("model name\t: Xeon 2\nflags\t\t: fpu avx512f avx512_vnni\n\nmodel name\t: Xeon 2\n", "Xeon 2", False),
        ("processor\t: 0\nFeatures\t: fp asimd i8mm bf16\n", None, True),
        ("", None, False),
    ],
)
def test_what_linux_says_about_the_processor(text: str, name: str | None, bf16: bool, say: Say) -> None:
    say(text)
    assert processor.computes_bf16() is bf16
    assert processor.processor_name() == name or (name is None and processor.processor_name())


@pytest.mark.parametrize(
    ("text", "unusable"),
    [
        ("cpuid level\t: 28\nflags\t\t: fpu amx_bf16 amx_tile\n", True),  # a virtual machine that hides leaf 29
        ("cpuid level\t: 32\nflags\t\t: fpu amx_bf16 amx_tile\n", False),
        ("cpuid level\t: 28\nflags\t\t: fpu avx512_bf16\n", False),
        ("flags\t\t: fpu amx_tile\n", False),
        ("", False),
    ],
)
def test_amx_that_would_kill_the_process_is_avoided(
    text: str, unusable: bool, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(processor.ONEDNN_LIMIT, "")
    monkeypatch.delenv(processor.ONEDNN_LIMIT)
    say(text)
    processor.avoid_unusable_amx()
    assert (processor.ONEDNN_LIMIT in os.environ) is processor.has_unusable_amx() is unusable


def test_a_limit_that_the_user_has_set_stays(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(processor.ONEDNN_LIMIT, "AVX2")
    say("cpuid level\t: 28\nflags\t\t: amx_tile\n")
    processor.avoid_unusable_amx()
    assert os.environ[processor.ONEDNN_LIMIT] == "AVX2"


def test_bf16_products_do_not_kill_the_process_here() -> None:
    """The product is in a process of its own, which it would kill where AMX is claimed and cannot work."""
    program = "import vitrail, torch; m = torch.ones(64, 64).bfloat16(); print((m @ m).sum().item())"
    environment = {key: value for key, value in os.environ.items() if key != processor.ONEDNN_LIMIT}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{64**3:.1f}\n"


def test_auto_is_the_processor_where_there_is_nothing_else() -> None:
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert pick_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:99", "toaster"])
def test_device_that_is_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match=f'the device .{name}. cannot be used.*try device="cpu"'):
        pick_device(name)


def test_ranks_of_one_machine_take_their_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda count, device: asked.append(device) or empty(count))
    assert pick_device("auto") == torch.device("cuda", 3)
    assert pick_device("cuda:1") == torch.device("cuda", 1)  # who names one has it
    assert asked == [torch.device("cuda", 3), torch.device("cuda", 1)]


# New pages that ten large arrays, one after another, get from the system; and what the process holds.
COUNTING = """
import ctypes, resource
from pathlib import Path
from vitrail.machine import freed_memory_kept

c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        array = c.malloc(2**25)
        ctypes.memset(array, 1, 2**25)
        c.free(ctypes.c_void_p(array))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

print(new_pages())
with freed_memory_kept():
    new_pages()
    print(new_pages(), held())
print(held(), new_pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only GNU's C library is told to keep memory")
def test_freed_memory_serves_again_and_is_returned_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", COUNTING], check=True, capture_output=True, text=True)
    usual, kept, full, left, again = map(int, done.stdout.split())
    assert kept < usual / 10
    assert left < full - 2**24
    assert again > usual / 2

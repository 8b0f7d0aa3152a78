"""Systems that lack what Linux has: no resource, fcntl, sysconf or SIGHUP, and folders that cannot be opened."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fuzzing import in_fuzz_only
from vitrail.training import cost as memory
from vitrail.training import gradients

# A Windows as far as the standard library goes; then everything is imported, and a run trained and resumed.
WINDOWS = """
import importlib, os, pkgutil, signal, sys
sys.modules["resource"] = sys.modules["fcntl"] = None
del os.sysconf, os.O_DIRECTORY, signal.SIGHUP
plain_open = os.open

def open_files_only(path, flags, *arguments, **options):
    if os.path.isdir(path) and sys._getframe(1).f_globals["__name__"].startswith("vitrail"):
        raise PermissionError(13, "Permission denied", str(path))
    return plain_open(path, flags, *arguments, **options)

os.open = open_files_only
import vitrail
for module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

from dataclasses import replace
from vitrail.training import recipe, train
config = recipe("digits")
config = replace(config, schedule=replace(config.schedule, epochs=1))
train(config, sys.argv[1])
assert train(config, sys.argv[1]).epochs == 1
print("trained")
"""


@in_fuzz_only
def test_a_windows_trains_and_resumes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WINDOWS, str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip().endswith("trained")


def test_memory_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert memory.total_memory(cpu) > 2**28
    assert memory.peak_memory(cpu) > 2**24
    monkeypatch.setattr(memory, "resource", None)
    monkeypatch.delattr("os.sysconf")
    assert memory.total_memory(cpu) == memory.UNKNOWN
    assert memory.peak_memory(cpu) == 0


def test_emulated_bf16_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch answers on a GPU older than Ampere: yes, unless emulation is left out."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert gradients.pick_precision("auto", torch.device("cuda")) == "float32"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert gradients.pick_precision("auto", torch.device("cuda")) == "bf16"
    assert gradients.pick_precision("auto", torch.device("cpu")) == "float32"

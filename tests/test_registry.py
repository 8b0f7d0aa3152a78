"""A new runtime is one file: `tests/runtimes/toy_runtime.py`. The library and the command know it from then on."""

import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from tests.prediction.conftest import CLASSES, write_tiny

import vitrail
from vitrail.errors import ConfigError
from vitrail.registry import EXPORTS, RUNTIMES
from vitrail.runtimes.auto import Converter, Way, list_ways

TOY = "tests.runtimes.toy_runtime"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is registered as long as the test runs."""
    monkeypatch.setitem(RUNTIMES, "toy", None)  # pyright: ignore
    monkeypatch.setitem(EXPORTS, ".toy", None)  # pyright: ignore
    monkeypatch.delitem(sys.modules, TOY, raising=False)
    import_module(TOY)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.safetensors", depth=1)


@pytest.mark.usefixtures("toy")
def test_a_toy_runtime_is_exported_to_loaded_chosen_and_measured(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vitrail.load(checkpoint)
    images = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)

    export = vitrail.export(checkpoint, tmp_path / "model.toy")
    assert (export.target, export.agreement.top1) == ("toy", 1.0)
    loaded = vitrail.load(tmp_path / "model.toy")
    assert (loaded.runtime.name, loaded.classes) == ("a toy", CLASSES)
    np.testing.assert_allclose(loaded.runtime.logits(images), model.runtime.logits(images), atol=1e-4)
    with pytest.raises(ConfigError, match="is an export for a toy and runs there"):
        vitrail.load(tmp_path / "model.toy", runtime="onnx")
    with pytest.raises(ConfigError, match="a toy computes in float32: precision='bf16' goes with torch and openvino"):
        vitrail.load(checkpoint, runtime="toy", precision="bf16")

    def copy(_: object, draft: Path) -> None:  # tracing the same graph again would take seconds
        shutil.copy(tmp_path / "model.toy", draft)

    monkeypatch.setattr("vitrail.runtimes.onnx_runtime.write_export", copy)
    converter = Converter(model._torch(), model.checkpoint())  # pyright: ignore[reportPrivateUsage]
    assert Way("toy", "float32") in list_ways(converter, "auto", "float32")
    assert model.on("toy").runtime.name == "a toy"

    comparison = vitrail.benchmark(
        model, runtimes=["toy"], exports=[tmp_path / "model.toy"], batch=(1,), threads=(1,), seconds=0.01
    )
    measured, exported = comparison.rows
    assert [row.contestant.runtime for row in comparison.rows] == ["toy", "toy"]
    assert measured.same_class == exported.same_class == 1.0


def test_the_command_offers_it_without_torch() -> None:
    code = (
        f"import sys, {TOY}; from vitrail.cli.main import main\n"
        "for verb in ('predict', 'export', 'benchmark', 'serve'):\n"
        "    try: main([verb, '--help'])\n"
        "    except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    helps = re.split(r"(?m)^Usage:", done.stdout)[1:]
    assert len(helps) == 4
    assert all("toy" in text for text in helps), [text[:40] for text in helps if "toy" not in text]


def test_what_is_not_registered_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="must be one of auto, torch, onnx, openvino; got 'toy'"):
        vitrail.load(checkpoint, runtime="toy")

"""`vitrail.export`: what it writes, what it refuses, and that it leaves nothing half-written."""

import resource
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.verbs.conftest import inside, photos, save_model  # noqa: F401

import vitrail
from vitrail.cli.main import main
from vitrail.errors import ConfigError, WeightsError
from vitrail.runtimes import onnx_runtime
from vitrail.runtimes.exporter import check_exportable


@contextmanager
def full_disk(size: int = 20_000) -> Generator[None]:
    """No file can grow beyond this size, whoever writes it: Python, torch or OpenVINO."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_travels_inside(exports: Path) -> None:
    model = vitrail.load(exports / "tiny.safetensors")
    for name, runtime in (("tiny.onnx", "ONNX Runtime"), ("tiny", "OpenVINO")):
        loaded = vitrail.load(exports / name)
        assert loaded.runtime.name == runtime
        assert (loaded.classes, loaded.preprocess) == (model.classes, model.preprocess)
        images = torch.randn(5, 3, 32, 32).numpy()
        np.testing.assert_allclose(loaded.runtime.logits(images), model.runtime.logits(images), atol=1e-5)
        np.testing.assert_allclose(loaded.runtime.features(images), model.runtime.features(images), atol=1e-5)


def test_what_exists_is_kept(exports: Path, inside: Path, save_model: Callable[..., str]) -> None:  # noqa: F811
    name = save_model()
    target = inside / "model.onnx"
    target.write_bytes(b"old")
    with pytest.raises(WeightsError, match="exists already; pass overwrite=True"):
        vitrail.export(name, target)
    other = inside / "others"
    other.mkdir()
    (other / "diary.txt").touch()
    with pytest.raises(WeightsError, match=r"holds other things, which we will not delete: diary\.txt"):
        vitrail.export(name, other, to="openvino", overwrite=True)
    (inside / "others.onnx").mkdir()
    with pytest.raises(WeightsError, match=r"others\.onnx is a folder"):
        vitrail.export(name, inside / "others.onnx", overwrite=True)
    assert target.read_bytes() == b"old"


@pytest.mark.parametrize(("path", "to"), [("model.onnx", None), ("folder", "openvino"), ("model.pt2", None)])
def test_a_full_disk_leaves_nothing(
    path: str,
    to: str,
    inside: Path,  # noqa: F811
    save_model: Callable[..., str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = save_model(width=64, depth=1)
    before = sorted(inside.iterdir())
    if to == "openvino":  # which gets its graph from ONNX: let that file be, so that OpenVINO meets the limit
        write = onnx_runtime.write_export
        monkeypatch.setattr(onnx_runtime, "write_export", lambda *arguments: unlimited(write, *arguments))
    with (
        full_disk(),
        pytest.raises(WeightsError, match=rf"{path} cannot be written: file too large|cannot write|damaged"),
    ):
        vitrail.export(name, path, to=to)  # pyright: ignore
    assert sorted(inside.iterdir()) == before


def unlimited(write: Callable[..., None], *arguments: object) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    write(*arguments)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_targets_that_cannot_be_written(inside: Path, save_model: Callable[..., str], capsys) -> None:  # noqa: F811
    name = save_model()
    (inside / "file").touch()
    assert main(["export", name, "file/model.onnx"]) == 2
    assert "file/model.onnx cannot be written: " in capsys.readouterr().err
    for path, to, message in (
        ("model.xyz", None, r"an export ends in \.pt2 or \.onnx"),
        ("model.onnx", "openvino", "writes a folder; got model.onnx"),
        ("folder", "onnx", r"writes a file that ends in \.onnx; got folder"),
        ("folder", "tensorrt", "to= must be one of torch, onnx, openvino; got 'tensorrt'"),
    ):
        with pytest.raises(ConfigError, match=message):
            vitrail.export(name, path, to=to)  # pyright: ignore
    assert sorted(item.name for item in inside.iterdir()) == ["file", name]


def test_a_program_of_torch_is_written_and_never_loaded(inside: Path, save_model: Callable[..., str]) -> None:  # noqa: F811
    name = save_model(depth=1)
    result = vitrail.export(name, "model.pt2")
    assert result.target == "torch"
    assert result.agreement.top1 == 1.0
    with pytest.raises(WeightsError, match=r"a program of torch\.export, and reading one can run code"):
        vitrail.load("model.pt2")
    assert main(["predict", "model.pt2", "x.jpg"]) == 2


COLD = """
import sys
from vitrail.cli.main import main
code = main(["predict", sys.argv[1], sys.argv[2]])
heavy = {"torch", "sklearn", "matplotlib", "scipy", "onnx"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else code)
"""


@pytest.mark.parametrize("name", ["tiny.onnx", "tiny"])
def test_predicting_with_an_export_loads_no_torch(name: str, exports: Path, photos: list[str]) -> None:  # noqa: F811
    command = [sys.executable, "-c", COLD, str(exports / name), photos[0]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    best = vitrail.load(exports / "tiny.safetensors").predict(photos[0]).label
    assert best in done.stdout  # pyright: ignore[reportOperatorIssue]


def test_a_missing_temporary_folder_is_told_before_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(ConfigError, match="exporting needs a temporary folder; set TMPDIR"):
        check_exportable("onnx")

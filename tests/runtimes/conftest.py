"""The tiny checkpoint and the pictures of the predictor's tests, and one export of it for each runtime."""

import shutil
from pathlib import Path

import pytest
from tests.prediction.conftest import checkpoint_file, photos, predictor, write_tiny

import vitrail

__all__ = ["checkpoint_file", "photos", "predictor"]


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny.safetensors, tiny.onnx and the OpenVINO folder `tiny`; nobody changes anything in it."""
    folder = tmp_path_factory.mktemp("exports")
    checkpoint = write_tiny(folder / "tiny.safetensors", depth=1)
    vitrail.export(checkpoint, folder / "tiny.onnx")
    vitrail.export(checkpoint, folder / "tiny", to="openvino")
    return folder


@pytest.fixture
def onnx_file(exports: Path, tmp_path: Path) -> Path:
    """An export of one's own, to do anything with."""
    return shutil.copy(exports / "tiny.onnx", tmp_path / "model.onnx")  # pyright: ignore[reportReturnType]


@pytest.fixture
def openvino_folder(exports: Path, tmp_path: Path) -> Path:
    return shutil.copytree(exports / "tiny", tmp_path / "model")

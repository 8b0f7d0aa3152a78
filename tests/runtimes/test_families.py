"""Every family's model in ONNX Runtime and OpenVINO; `export` itself proves that the outputs are those of torch."""

from pathlib import Path

import pytest

import vitrail
from families import FAMILIES, write_family
from fuzzing import in_fuzz_only

USUAL = ("dinov3", "beit")  # a rotation, a bias


def check_exports(folder: Path, name: str, depth: int) -> None:
    source = write_family(folder / "model.safetensors", name, depth=depth)
    for target, runtime in (("model.onnx", "onnx"), ("openvino", "openvino")):
        export = vitrail.export(source, folder / target, to=runtime)
        assert export.agreement.relative < 1e-5


@pytest.mark.parametrize("name", USUAL)
def test_options_are_exported(tmp_path: Path, name: str) -> None:
    check_exports(tmp_path, name, depth=1)


@in_fuzz_only
def test_merged_patches_keep_their_places_in_batches_of_any_size(tmp_path: Path) -> None:
    source = write_family(tmp_path / "model.safetensors", "dinov3", depth=2)
    assert vitrail.export(source, tmp_path / "merged.onnx", merge=(4, 0)).agreement.relative < 1e-5


@in_fuzz_only
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_exported(tmp_path: Path, name: str) -> None:
    check_exports(tmp_path, name, depth=3)
    source, target = tmp_path / "model.safetensors", tmp_path / "sizes.onnx"
    assert vitrail.export(source, target, dynamic_size=True).agreement.relative < 1e-5
    merged = vitrail.export(source, tmp_path / "merged.onnx", merge=(4, 2, 0))
    assert merged.agreement.relative < 1e-5

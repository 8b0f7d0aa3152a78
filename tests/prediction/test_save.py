"""`Predictor.save`: what was loaded is written with everything that belongs to it, or nothing is."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from tests.prediction.conftest import CLASSES
from tests.prediction.test_predictor import Upside
from torch import nn

import vitrail
from vitrail.errors import InputError, WeightsError
from vitrail.prediction import Predictor
from vitrail.weights.read import read_checkpoint

FIXTURES = Path(__file__).parents[1] / "weights" / "fixtures"


def test_a_file_of_ours_is_written_again_byte_for_byte(checkpoint_file: Path, tmp_path: Path) -> None:
    written = vitrail.load(checkpoint_file).save(tmp_path / "again.safetensors")
    assert written.read_bytes() == checkpoint_file.read_bytes()


def test_changed_weights_are_what_is_saved(predictor: Predictor, photos: list[Path], tmp_path: Path) -> None:
    with torch.no_grad():
        cast("nn.Linear", predictor.model.head).bias[2] += 100
    predictor.save(str(tmp_path / "new.safetensors"))
    again = vitrail.load(tmp_path / "new.safetensors")
    assert again.predict(photos[0]).scores == pytest.approx(predictor.predict(photos[0]).scores)
    assert again.predict(photos[0]).label == CLASSES[2]
    assert again.preprocess == predictor.preprocess


def test_a_folder_of_another_format(predictor: Predictor, photos: list[Path], tmp_path: Path) -> None:
    predictor.save(tmp_path / "folder", format="hf")
    again = read_checkpoint(tmp_path / "folder")
    assert (again.file_format, again.classes) == ("hf", CLASSES)
    for name, tensor in predictor.model.state_dict().items():
        assert torch.equal(again.tensors[name], tensor), name


def test_notes_origin_and_unread_tensors_come_along(tmp_path: Path) -> None:
    with pytest.warns(vitrail.AssumptionWarning):
        loaded = vitrail.load(FIXTURES / "google_token.npz")
    loaded = replace(loaded, runtime=type(loaded.runtime)(loaded.model, {"mask_token": torch.ones(1, 32)}))  # pyright: ignore
    loaded.save(tmp_path / "a.safetensors")
    again = read_checkpoint(tmp_path / "a.safetensors")
    assert (again.notes, again.remarks, again.origin) == (loaded.notes, loaded.remarks, loaded.origin)
    assert again.notes
    assert again.origin.format == "google"
    assert torch.equal(again.extras["mask_token"], torch.ones(1, 32))


def test_mistakes_write_nothing(predictor: Predictor, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="a folder can be timm or hf or tintn; choose with format="):
        predictor.save(tmp_path / "folder")
    with pytest.raises(WeightsError, match=r"ends in .npz can be google or big_vision or tips; choose with format="):
        predictor.save(tmp_path / "a.npz")
    with pytest.raises(WeightsError, match=r"must end in .*\.safetensors, or be a folder; got .*a\.onnx"):
        predictor.save(tmp_path / "a.onnx")
    with pytest.raises(WeightsError, match="unknown format 'tim'; did you mean timm"):
        predictor.save(tmp_path / "a.pth", format="tim")  # pyright: ignore
    with pytest.raises(WeightsError, match="google cannot hold this model: its GELU"):
        predictor.save(tmp_path / "a.npz", format="google")
    with pytest.raises(
        InputError, match="runs on Upside, which can predict and embed but has no torch model; load the checkpoint"
    ):
        replace(predictor, runtime=Upside()).save(tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []

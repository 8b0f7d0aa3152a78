"""What a calibration found goes with the checkpoint, or is dropped where it no longer holds."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tests.prediction.conftest import make_predictor
from tests.trusting import make_trust
from tests.weights.test_native import edit_facts

from vitrail.errors import WeightsError
from vitrail.tasks.one import OneTrust
from vitrail.weights.adapt import adapt
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import BEFORE_TASKS, VERSION, read_native, save_checkpoint
from vitrail.weights.write import convert

ONE = {"shape": [1, 1], "scale": 1.0, "base64": "ADw="}  # a single 1
NARROW = {"centres": ONE, "directions": ONE, "variances": [1.0]}


@pytest.fixture(scope="module")
def trust() -> OneTrust:
    return make_trust(make_predictor())


@pytest.fixture
def checkpoint(make_checkpoint: Callable[..., Checkpoint], trust: OneTrust) -> Checkpoint:
    return replace(make_checkpoint(), trust=trust, classes=tuple("abcdefg"))


def test_it_comes_back_from_the_file(tmp_path: Path, checkpoint: Checkpoint, trust: OneTrust) -> None:
    path = tmp_path / "a.safetensors"
    save_checkpoint(checkpoint, path)
    assert read_native(path).trust == trust
    assert read_native(path).rounded(torch.float16).trust == trust
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["vitrail"])
    assert facts["version"] == BEFORE_TASKS == 1  # readers from before ignore it, and compute the same logits
    unsure = replace(checkpoint, trust=make_trust(make_predictor(), unsure=True))
    save_checkpoint(unsure, path)
    assert read_native(path).trust == unsure.trust
    assert read_native(path).is_unsure
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["vitrail"])["version"] == VERSION  # readers from before are told to upgrade
    save_checkpoint(replace(checkpoint, trust=None), path)
    with safe_open(path, framework="pt") as file:
        assert "trust" not in json.loads(file.metadata()["vitrail"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trust: trust.update(temperature=0), "temperature must be above 0"),
        (lambda trust: trust.update(temperature=float("nan")), "temperature must be above 0"),
        (lambda trust: trust.update(smoothing=1.0), "share of the probability must be from 0"),
        (lambda trust: trust.update(temprature=1), "no field 'temprature'"),
        (lambda trust: trust.pop("data"), "trust.data is missing"),
        (lambda trust: trust["sets"]["levels"].reverse(), "must ascend"),
        (lambda trust: trust["sets"]["thresholds"].pop(), "a threshold for each level"),
        (lambda trust: trust["familiarity"]["variances"].pop(), "must fit each other"),
        (lambda trust: trust["familiarity"].update(rest=-1.0), "variances of the features must be above 0"),
        (lambda trust: trust["familiarity"]["centres"].update(base64="AAAA"), "must have as many numbers"),
        (lambda trust: trust["familiarity"]["centres"].update(base64="?"), "damaged"),
        (lambda trust: trust["familiarity"]["centres"].update(shape=[-2, -32]), "must have as many numbers"),
        (lambda trust: trust["familiarity"]["quantiles"].reverse(), "quantiles of familiarity must ascend"),
        (lambda trust: trust["familiarity"].update(NARROW), "features of width 1; the model has 32"),
    ],
)
def test_damaged_facts(tmp_path: Path, checkpoint: Checkpoint, change: Callable[[Any], Any], message: str) -> None:
    path = tmp_path / "a.safetensors"
    save_checkpoint(checkpoint, path)
    edit_facts(path, lambda facts: change(facts["trust"]))
    with pytest.raises(WeightsError, match=f"is damaged.*{message}|{message}"):
        read_native(path)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_classes": 3}, "the head is new"),
        ({"classes": tuple("tuvwxyz")}, "the head is new"),
        ({"image_size": 64}, "the size of the pictures has changed"),
        ({"channels": 1}, "the channels have changed"),
    ],
)
def test_another_model_drops_it(checkpoint: Checkpoint, changes: dict[str, Any], why: str) -> None:
    adapted = adapt(checkpoint, **changes)
    assert adapted.trust is None
    assert adapted.remarks[-1] == f"{why}, so what the calibration on noise, val found was dropped; calibrate it again"
    assert adapt(replace(checkpoint, trust=None), **changes).remarks == checkpoint.remarks


@pytest.mark.parametrize("changes", [{"classes": tuple("gfedcba")}, {"image_size": 32}, {"channels": 3}, {}])
def test_the_same_model_keeps_it(checkpoint: Checkpoint, changes: dict[str, Any], trust: OneTrust) -> None:
    assert adapt(checkpoint, **changes).trust == trust


def test_other_formats_say_that_they_lose_it(tmp_path: Path, checkpoint: Checkpoint, trust: OneTrust) -> None:
    source = tmp_path / "a.safetensors"
    save_checkpoint(checkpoint, source)
    convert(source, tmp_path / "b.safetensors")
    assert read_native(tmp_path / "b.safetensors").trust == trust
    notes = convert(source, tmp_path / "hf", "hf").notes
    assert any("does not keep what the calibration found" in note for note in notes)

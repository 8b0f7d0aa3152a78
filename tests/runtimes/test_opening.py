"""`load` finds what runs a source in one table; what belongs to the model reaches the predictor without tensors."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.prediction.conftest import CLASSES
from tests.prediction.test_predictor import Upside

import vitrail
from vitrail.errors import WeightsError
from vitrail.runtimes import opening
from vitrail.runtimes.opening import LoadOptions, RuntimeKind, open_runtime
from vitrail.runtimes.runtime import Runtime
from vitrail.weights.facts import Facts
from vitrail.weights.locate import Located, locate


def test_torch_runs_checkpoints(checkpoint_file: Path) -> None:
    runtime, facts = open_runtime(locate(checkpoint_file), LoadOptions())
    assert (runtime.num_classes, facts.classes) == (7, CLASSES)
    assert type(facts) is Facts
    assert not any(isinstance(value, torch.Tensor) for value in facts.facts().values())
    assert vitrail.load(checkpoint_file).facts() == facts.facts()


def test_a_new_runtime_is_one_entry(
    checkpoint_file: Path, photos: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, facts = open_runtime(locate(checkpoint_file), LoadOptions())

    def open_upside(located: Located, options: LoadOptions) -> tuple[Runtime, Facts]:
        return Upside(), Facts(preprocess=facts.preprocess, classes=("r", "g", "b"))

    (tmp_path / "a.upside").touch()
    located = Located(name="a.upside", path=tmp_path / "a.upside")
    with pytest.raises(
        WeightsError,
        match=r"a.upside ends in .upside, which no runtime of this version opens \(torch, ONNX Runtime, OpenVINO\)",
    ):
        open_runtime(located, LoadOptions())
    kind = RuntimeKind(key="upside", name="upside", suffixes=frozenset({".upside"}), module="upside")
    monkeypatch.setitem(sys.modules, "upside", SimpleNamespace(open_source=open_upside))
    monkeypatch.setattr(opening, "RUNTIMES", (*opening.RUNTIMES, kind))
    monkeypatch.setattr("vitrail.prediction.predictor.locate", lambda source, allow_export: located)
    loaded = vitrail.load("a.upside")
    assert loaded.num_classes == 3
    assert loaded.predict(photos[0]).label in ("r", "g", "b")

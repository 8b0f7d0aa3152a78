"""`load` finds what runs a source in one table; what belongs to the model reaches the predictor without tensors."""

from pathlib import Path

import pytest
import torch
from tests.prediction.conftest import CLASSES
from tests.prediction.test_predictor import Upside

import vitrail
from vitrail.errors import WeightsError
from vitrail.prediction import runtimes
from vitrail.prediction.runtime import Runtime
from vitrail.prediction.runtimes import LoadOptions, RuntimeKind, open_runtime
from vitrail.weights.checkpoint import Facts
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
        WeightsError, match=r"a.upside ends in .upside, which no runtime of this version opens \(torch\)"
    ):
        open_runtime(located, LoadOptions())
    kind = RuntimeKind(name="upside", suffixes=frozenset({".upside"}), open=open_upside)
    monkeypatch.setattr(runtimes, "RUNTIMES", (*runtimes.RUNTIMES, kind))
    monkeypatch.setattr("vitrail.prediction.predictor.locate", lambda source: located)
    loaded = vitrail.load("a.upside")
    assert loaded.num_classes == 3
    assert loaded.predict(photos[0]).label in ("r", "g", "b")

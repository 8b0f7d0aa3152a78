"""What a calibration found goes into exports, and they answer as the checkpoint does."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.prediction.conftest import make_predictor
from tests.runtimes.test_damaged import edit_manifest, put
from tests.trusting import make_trust, with_trust
from tests.weights.test_trust import NARROW

import vitrail
from fuzzing import in_fuzz_only
from vitrail.errors import WeightsError
from vitrail.prediction import Predictor
from vitrail.runtimes.graph import Graph, GraphOptions
from vitrail.runtimes.manifest import KEY, VERSION
from vitrail.runtimes.onnx_runtime import read_onnx_facts
from vitrail.tasks.one import probabilities


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictor, Path]:
    calibrated = with_trust(make_predictor(depth=1))
    path = tmp_path_factory.mktemp("trusted") / "tiny.onnx"
    vitrail.export(calibrated, path)
    return calibrated, path


def test_an_export_answers_as_the_checkpoint_does(exported: tuple[Predictor, Path], photos: list[Path]) -> None:
    calibrated, path = exported
    export = vitrail.load(path)
    assert export.trust == calibrated.trust
    for ours, theirs in zip(*(model.predict(photos, coverage=0.9) for model in (calibrated, export)), strict=True):
        assert (theirs.labels, theirs.label_set, theirs.familiar) == (ours.labels, ours.label_set, ours.familiar)
        np.testing.assert_allclose(theirs.scores, ours.scores, atol=1e-4)
        assert theirs.error or theirs.familiarity == pytest.approx(ours.familiarity, abs=1e-3)


@in_fuzz_only
def test_an_export_that_prepares_its_pictures_is_calibrated_once(photos: list[Path], tmp_path: Path) -> None:
    """Its familiarity is judged by the probabilities that it gives, where logits count."""
    calibrated = with_trust(make_predictor(depth=1), unsure=True)
    vitrail.export(calibrated, tmp_path / "whole.onnx", with_preprocess=True)
    assert json.loads(read_onnx_facts(tmp_path / "whole.onnx").metadata[KEY])["version"] == VERSION
    export = vitrail.load(tmp_path / "whole.onnx")
    assert export.trust == calibrated.trust
    for ours, theirs in zip(*(model.predict(photos, coverage=0.9) for model in (calibrated, export)), strict=True):
        assert (theirs.label, theirs.label_set) == (ours.label, ours.label_set)
        np.testing.assert_allclose(theirs.scores, ours.scores, atol=5e-3)
        assert theirs.error or theirs.familiarity == pytest.approx(ours.familiarity, abs=0.05)


def test_older_readers_are_told_to_upgrade(exported: tuple[Predictor, Path], onnx_file: Path, tmp_path: Path) -> None:
    _, path = exported
    assert json.loads(read_onnx_facts(path).metadata[KEY])["version"] == 2
    plain = json.loads(read_onnx_facts(onnx_file).metadata[KEY])  # an export of a model that was not calibrated
    assert plain["version"] == 1
    assert "trust" not in plain["facts"]
    damaged = tmp_path / "damaged.onnx"
    for key, value, message in (
        ("temperature", -1, "temperature must be above 0"),
        ("familiarity", NARROW | {"rest": 1.0, "quantiles": [0, 1]}, "features of width 1"),
    ):
        damaged.write_bytes(path.read_bytes())
        with pytest.raises(WeightsError, match=f"damaged.*{message}"):
            vitrail.load(edit_manifest(damaged, put("facts", "trust", key, value=value)))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_graph_with_preprocessing_gives_calibrated_probabilities(smoothing: float) -> None:
    predictor = make_predictor()
    trust = make_trust(predictor, smoothing=smoothing)
    facts = replace(predictor, trust=trust)
    graph = Graph(predictor.model, facts, GraphOptions(with_preprocess=True)).eval()
    images = torch.randint(0, 256, (3, 40, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        shares, features = graph(images)
        logits = predictor.model.classify(features).numpy()
    np.testing.assert_allclose(shares.numpy(), probabilities(logits, trust), atol=1e-6)
    assert not np.allclose(shares.numpy(), probabilities(logits), atol=1e-3)

"""Models of several labels and of values, exported: the graphs answer as the checkpoint does."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from tests.data.conftest import picture
from tests.task_models import KINDS, LABELS, MEAN, OFFSETS, SLOPES, STD, THRESHOLDS, make_checkpoint_of, write_model_of

import vitrail
from fuzzing import FUZZ
from vitrail.errors import DataError
from vitrail.runtimes.exporter import prepare_export, share_of_same
from vitrail.runtimes.graph import GraphOptions
from vitrail.runtimes.int8_trials import ByteImages, Goal, check_telling
from vitrail.runtimes.manifest import KEY, Manifest, read_manifest
from vitrail.runtimes.onnx_runtime import make_session
from vitrail.tasks.number import Number
from vitrail.tasks.several import Several

pytestmark = [*FUZZ]

PLAIN = {"several": "several", "number": "number.onnx"}
PICTURES = [picture(seed, (48, 40)) for seed in range(4)]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each task: a plain graph, for either runtime, and a repository, whose graph ends in answers."""
    root = tmp_path_factory.mktemp("task_exports")
    for kind in KINDS:
        path = write_model_of(kind, root)
        vitrail.export(path, root / PLAIN[kind], to="openvino" if kind == "several" else "onnx")
        vitrail.export(path, repository=root / "repository", name=kind)
    return root


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_plain", [True, False])
def test_an_export_answers_as_the_checkpoint_does(kind: str, is_plain: bool, exports: Path) -> None:
    name = PLAIN[kind] if is_plain else f"repository/{kind}/1/model.onnx"
    model, exported = vitrail.load(exports / f"{kind}.safetensors"), vitrail.load(exports / name)
    assert (exported.task, exported.trust, exported.classes) == (model.task, model.trust, model.classes)
    for image in PICTURES:
        ours, theirs = (each.predict(image, coverage=0.9) for each in (model, exported))
        assert (theirs.labels, theirs.label_set) == (ours.labels, ours.label_set)
        assert theirs.scores == pytest.approx(ours.scores, abs=1e-3)
        np.testing.assert_allclose(theirs.values, ours.values, rtol=1e-3)
        assert theirs.familiar == ours.familiar


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_with_preprocessing_ends_in_what_the_outputs_mean(kind: str, exports: Path) -> None:
    folder = exports / "repository" / kind
    session = make_session(folder / "1" / "model.onnx", 1)
    output = "probabilities" if kind == "several" else "values"
    names = [port.name for port in session.get_outputs()]
    assert names == [output, "features"]
    pixels = np.asarray(PICTURES[0])[None]
    answer, features = session.run(names, {session.get_inputs()[0].name: pixels})
    head = vitrail.load(exports / f"{kind}.safetensors").model.head
    assert head is not None
    logits = features.astype(np.float64) @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    expected = expit(logits * SLOPES + OFFSETS) if kind == "several" else logits * STD + MEAN
    np.testing.assert_allclose(answer, expected, rtol=1e-4)
    config = (folder / "config.pbtxt").read_text()
    assert f'name: "{output}"' in config
    assert 'label_filename: "labels.txt"' in config


def test_older_readers_refuse_them(exports: Path) -> None:
    session = make_session(exports / "number.onnx", 1)
    text = session.get_modelmeta().custom_metadata_map[KEY]
    assert json.loads(text)["version"] == 3
    assert read_manifest(text, exports).facts.task == Number(mean=MEAN, std=STD)
    plain = replace(make_checkpoint_of("several"), task=vitrail.load().task, trust=None, classes=LABELS)
    assert json.loads(prepare_export(plain, GraphOptions()).manifest.to_json())["version"] == 1


def manifest_of(kind: str, outputs: tuple[str, ...]) -> Manifest:
    return replace(prepare_export(make_checkpoint_of(kind), GraphOptions()).manifest, outputs=outputs)


def test_the_same_labels_are_counted() -> None:
    rng = np.random.default_rng(0)
    ours = rng.normal(size=(50, 4))
    theirs = ours + rng.normal(scale=0.3, size=ours.shape)
    shares = [expit(rows * SLOPES + OFFSETS) for rows in (ours, theirs)]
    same = float(((shares[0] > THRESHOLDS) == (shares[1] > THRESHOLDS)).all(axis=1).mean())
    assert 0.2 < same < 1
    assert share_of_same(manifest_of("several", ("logits",)), ours, theirs) == same
    assert share_of_same(manifest_of("several", ("probabilities",)), *shares) == same


def test_nearly_the_same_values_are_counted() -> None:
    ours = np.random.default_rng(0).normal(size=(4, 2))
    theirs = ours + np.array([[0, 0.04], [0.06, 0], [-0.01, 0.01], [0, -1]])
    assert share_of_same(manifest_of("number", ("logits",)), ours, theirs) == 0.5
    assert share_of_same(manifest_of("number", ("values",)), ours * STD + MEAN, theirs * STD + MEAN) == 0.5
    near = np.abs(ours - theirs) <= 0.05 * ours.std(axis=0)  # without a mean and std, relative to their own spread
    np.testing.assert_array_equal(Number().same_answers(ours * 100, theirs * 100, None), near.all(axis=1))


def test_one_answer_for_all_would_prove_nothing() -> None:
    spec = make_checkpoint_of("several").preprocess
    ramp = np.linspace(0, 255, 32 * 32 * 3).reshape(3, 32, 32).astype(np.uint8)
    held_out = ByteImages(pixels=np.repeat(ramp[None], 10, axis=0), spec=spec)
    varied = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    for task, noun in ((Several(), "the same labels"), (Number(), "nearly the same values")):
        facts = replace(make_checkpoint_of("several"), task=task, trust=None)
        check_telling(held_out, varied, Goal(), facts)
        with pytest.raises(DataError, match=f"gives {noun} to 100.0% of 10 held-out pictures"):
            check_telling(held_out, np.repeat(varied[:1], 10, axis=0), Goal(), facts)

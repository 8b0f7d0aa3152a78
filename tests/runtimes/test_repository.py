"""`vitrail.export(repository=)`: what Triton and OpenVINO Model Server read, read back by other people's software.

Triton's settings are parsed with Triton's own definition of them, the listing of OpenVINO Model Server is compared with
the shape that its schema prescribes, and the graph is run by both runtimes as the servers would run it.
"""

import json
import os
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnxruntime
import openvino
import pytest
from google.protobuf import text_format
from PIL import Image
from tests.data.conftest import picture
from tests.prediction.conftest import CLASSES, write_tiny

import vitrail
from vitrail.cli.main import main
from vitrail.errors import ConfigError, WeightsError
from vitrail.runtimes import openvino_runtime, repository
from vitrail.runtimes.repository import choose_name
from vitrail.runtimes.runtime import Run

TRITON_TYPES = {"TYPE_UINT8": "tensor(uint8)", "TYPE_FP32": "tensor(float)"}
# What OpenVINO Model Server's schema of config.json prescribes for the keys that we write; it forbids all others.
TEXT = {"type": "string"}
MODEL_CONFIG = {
    "type": "object",
    "required": ["name", "base_path"],
    "properties": {"name": TEXT, "base_path": TEXT, "target_device": TEXT},
    "additionalProperties": False,
}
LISTING_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["model_config_list"],
    "properties": {
        "model_config_list": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["config"],
                "properties": {"config": MODEL_CONFIG},
                "additionalProperties": False,
            },
        }
    },
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny.safetensors, and the repository `models` that has it as `animals`; nobody changes anything."""
    folder = tmp_path_factory.mktemp("repository")
    write_tiny(folder / "tiny.safetensors", depth=1)
    vitrail.export(folder / "tiny.safetensors", repository=folder / "models", name="animals")
    return folder


@pytest.fixture
def models(kept: Path, tmp_path: Path) -> Path:
    """A repository of one's own."""
    return shutil.copytree(kept / "models", tmp_path / "models")


@pytest.fixture
def quick(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing the graph takes seconds: copy what was written for the same weights; all the rest happens as usual."""
    written = kept / "models" / "animals" / "1" / "model.onnx"
    monkeypatch.setattr("vitrail.runtimes.onnx_runtime.write_export", lambda _, draft: shutil.copy(written, draft))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_triton_reads_its_settings(kept: Path) -> None:
    triton: Any = import_module("tritonclient.grpc.model_config_pb2")
    folder = kept / "models" / "animals"
    config: Any = text_format.Parse(
        (folder / "config.pbtxt").read_text(encoding="utf-8"), triton.ModelConfig()
    )  # refuses unknown fields
    session: Any = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"))
    for ours, theirs in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [port.name for port in ours] == [port.name for port in theirs]
        for port, actual in zip(ours, theirs, strict=True):
            assert TRITON_TYPES[triton.DataType.Name(port.data_type)] == actual.type
            assert list(port.dims) == [side if isinstance(side, int) else -1 for side in actual.shape[1:]]
            assert isinstance(actual.shape[0], str), "Triton needs a free batch where max_batch_size is not 0"
    assert config.name == folder.name  # or Triton refuses to load it
    assert config.backend == "onnxruntime"
    assert config.max_batch_size >= 1
    (labelled,) = [port for port in config.output if port.label_filename]
    assert labelled.name == "probabilities"
    labels = (folder / labelled.label_filename).read_text(encoding="utf-8").splitlines()
    assert labels == list(CLASSES)
    assert labelled.dims == [len(labels)]
    assert [(group.kind, group.count) for group in config.instance_group] == [(triton.ModelInstanceGroup.KIND_CPU, 1)]
    assert config.dynamic_batching.default_queue_policy.max_queue_size > 0
    warm = config.model_warmup[0].inputs["images"]
    zeros = np.zeros((config.model_warmup[0].batch_size, *warm.dims), dtype=np.uint8)
    assert session.run(None, {"images": zeros})[0].shape == (1, len(labels))


def test_openvino_model_server_reads_its_listing(kept: Path) -> None:
    listing = json.loads((kept / "models" / "config.json").read_text(encoding="utf-8"))
    jsonschema.validate(listing, LISTING_SCHEMA)
    (entry,) = listing["model_config_list"]
    versions = sorted((kept / "models" / entry["config"]["base_path"]).glob("[0-9]*"))
    assert [version.name for version in versions] == ["1"]
    assert [file.name for file in versions[0].iterdir()] == ["model.onnx"]


def test_both_runtimes_answer_as_vitrail_does(kept: Path, tmp_path: Path) -> None:
    """From the bytes of a picture to its labels, in batches of one size as the servers make them."""
    file = kept / "models" / "animals" / "1" / "model.onnx"
    session: Any = onnxruntime.InferenceSession(str(file))
    compiled: Any = openvino.Core().compile_model(openvino.Core().read_model(file), "CPU")
    model = vitrail.load(kept / "tiny.safetensors")
    for number, size in enumerate(((70, 50), (33, 90))):
        paths = [tmp_path / f"{number}-{index}.png" for index in range(3)]
        for index, path in enumerate(paths):
            picture(10 * number + index, size).save(path)
        pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
        expected = list(model.predict(paths, top_k=len(CLASSES)))
        for scores in (session.run(["probabilities"], {"images": pixels})[0], compiled(pixels)["probabilities"]):
            assert [CLASSES[index] for index in scores.argmax(axis=1)] == [row.label for row in expected]
            for row, answer in zip(scores, expected, strict=True):
                np.testing.assert_allclose(row[list(answer.indices)], answer.scores, atol=0.02)


@pytest.mark.usefixtures("quick")
def test_a_second_model_joins_the_first(kept: Path, models: Path) -> None:
    before = content(models)
    result = vitrail.export(kept / "tiny.safetensors", repository=models, name="more")
    assert result.path == models / "more"
    assert result.agreement.top1 == 1.0
    after = content(models)
    listing = json.loads(after.pop("config.json"))
    jsonschema.validate(listing, LISTING_SCHEMA)
    assert [entry["config"]["name"] for entry in listing["model_config_list"]] == ["animals", "more"]
    assert {name: data for name, data in after.items() if name.startswith("animals")} == {
        name: data for name, data in before.items() if name.startswith("animals")
    }
    with pytest.raises(WeightsError, match=r"animals exists already; pass overwrite=True to replace it, or another"):
        vitrail.export(kept / "tiny.safetensors", repository=models, name="animals")


@pytest.mark.usefixtures("quick")
def test_a_model_is_replaced_only_when_asked(kept: Path, models: Path) -> None:
    (models / "animals" / "labels.txt").write_text("stale")
    assert main(["export", str(kept / "tiny.safetensors"), "--repository", str(models), "--name", "animals"]) == 2
    vitrail.export(kept / "tiny.safetensors", repository=models, name="animals", overwrite=True)
    assert content(models).keys() == content(kept / "models").keys()
    assert (models / "animals" / "labels.txt").read_text(encoding="utf-8").split() == list(CLASSES)
    assert (models / "config.json").read_text() == (kept / "models" / "config.json").read_text()
    (models / "animals" / "diary.txt").touch()
    with pytest.raises(WeightsError, match=r"holds other things, which we will not delete: diary\.txt"):
        vitrail.export(kept / "tiny.safetensors", repository=models, name="animals", overwrite=True)


@pytest.mark.usefixtures("quick")
def test_without_class_names_there_are_no_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path / "tiny.safetensors", None, depth=1)
    assert main(["export", str(tmp_path / "tiny.safetensors"), "--repository", str(tmp_path / "models")]) == 0
    assert "this model has no class names" in capsys.readouterr().out
    assert sorted(content(tmp_path / "models")) == ["config.json", "tiny/1/model.onnx", "tiny/config.pbtxt"]
    assert "label_filename" not in (tmp_path / "models/tiny/config.pbtxt").read_text(encoding="utf-8")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("existing", [False, True])
def test_a_failed_proof_changes_nothing(
    existing: bool, kept: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO's proof comes last, when everything else is there already."""
    target = models if existing else models.parent / "new"
    before = sorted(path.name for path in models.parent.iterdir()), content(models)
    right = openvino_runtime.open_draft

    def wrong(draft: Path) -> Run:
        run = right(draft)
        return lambda batch: [output + 1 for output in run(batch)]

    monkeypatch.setattr(openvino_runtime, "open_draft", wrong)
    with pytest.raises(WeightsError, match="run by openvino, gives different probabilities"):
        vitrail.export(kept / "tiny.safetensors", repository=target, name="more")
    assert (sorted(path.name for path in models.parent.iterdir()), content(models)) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "openvino"], "--to cannot be used with --repository"),
        (["--dynamic-size"], "--dynamic-size cannot be used with --repository"),
        (["--precision", "int8", "--calibrate", "digits"], "--calibrate cannot be used with --repository"),
        (["--precision", "int8"], "--precision int8 cannot be used with --repository"),
        (["--name", "../up"], "--name is part of addresses and must have 1 to 64 letters"),
        (["--name", ""], "--name is part of addresses"),
    ],
)
def test_mistakes_come_first(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitrail.verbs.export.checkpoint_of", None)  # nothing expensive may start
    assert main(["export", "cifar10", "--repository", str(tmp_path / "models"), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_places_that_are_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.verbs.export.checkpoint_of", None)
    (tmp_path / "file").touch()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "vit"}')
    for place, message in (
        ("file", "repository= must be a folder; .*file is a file"),
        ("file/models", "repository= must be a folder; .*file is a file"),
        ("photos", r"is not a model repository: it has no config\.json and holds cat\.jpg"),
        ("other", "is not a configuration of OpenVINO Model Server"),
    ):
        with pytest.raises((ConfigError, WeightsError), match=message):
            vitrail.export("cifar10", repository=tmp_path / place)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="is not writable; choose another folder with repository="):
        vitrail.export("cifar10", repository=tmp_path / "new")


def test_a_path_or_a_repository(tmp_path: Path) -> None:
    for arguments, message in (
        ({}, "an export needs a path= or a repository="),
        ({"path": "a.onnx", "name": "a"}, "name= goes with repository="),
        ({"path": "a.onnx", "repository": tmp_path / "models"}, "path= cannot be used with repository="),
    ):
        with pytest.raises(ConfigError, match=message):
            vitrail.export("cifar10", **arguments)


def test_a_model_whose_preprocessing_has_no_graph(tmp_path: Path) -> None:
    from tests.prediction.conftest import make_predictor

    with pytest.raises(ConfigError, match="can be exported for RGB pictures; this model has 1 channel"):
        vitrail.export(make_predictor(channels=1), repository=tmp_path / "models")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("runs/train-1", "train-1"),
        ("hf://google/vit-base-patch16-224", "vit-base-patch16-224"),
        ("B_16 (copy).npz", "B_16-copy"),
        ("/", "model"),
    ],
)
def test_names_come_from_the_source(source: str, expected: str) -> None:
    assert choose_name(None, source) == expected
    assert repository.NAME.fullmatch(expected)

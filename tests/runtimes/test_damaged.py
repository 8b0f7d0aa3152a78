"""Exports that are damaged, forged or somebody else's: a clear error, or what the user says about them."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.data.conftest import picture

import vitrail
from vitrail.cli.main import main
from vitrail.data.preprocess import preset
from vitrail.data.transform import prepare
from vitrail.errors import ConfigError, VitrailError, WeightsError
from vitrail.runtimes.manifest import KEY, VERSION


def edit(path: Path, change: Callable[[Any], None]) -> Path:
    """Change an ONNX file as its owner could."""
    model = onnx.load(str(path), load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def edit_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    def apply(model: Any) -> None:
        (entry,) = (entry for entry in model.metadata_props if entry.key == KEY)
        facts = json.loads(entry.value)
        change(facts)
        entry.value = json.dumps(facts)

    return edit(path, apply)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_onnx_file(onnx_file: Path, share: float) -> None:
    whole = onnx_file.read_bytes()
    onnx_file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(WeightsError, match=r"model\.onnx is damaged, or not an ONNX model"):
        vitrail.load(onnx_file)


def test_a_flipped_byte_in_the_weights(onnx_file: Path, openvino_folder: Path) -> None:
    largest = max(onnx.load(str(onnx_file)).graph.initializer, key=lambda tensor: len(tensor.raw_data)).raw_data
    whole = onnx_file.read_bytes()
    for path, place in (
        (onnx_file, whole.index(largest) + len(largest) // 2),
        (openvino_folder / "model.bin", 5000),
    ):
        content = bytearray(path.read_bytes())
        content[place] ^= 4
        path.write_bytes(content)
        source = onnx_file if path == onnx_file else openvino_folder
        with pytest.raises(WeightsError, match="is damaged: the checksum of its weights does not match"):
            vitrail.load(source)
        assert vitrail.load(source, verify=False).num_classes == 7, "who trusts a file may skip the check"


def test_files_of_openvino_that_are_not_whole(openvino_folder: Path) -> None:
    xml, weights = openvino_folder / "model.xml", openvino_folder / "model.bin"
    text, numbers = xml.read_bytes(), weights.read_bytes()
    for length in (0, 100, len(text) // 2, len(text) - 20):
        xml.write_bytes(text[:length])
        with pytest.raises(
            WeightsError, match=r"model\.xml cannot be read by OpenVINO|model\.xml is damaged"
        ) as raised:
            vitrail.load(openvino_folder)
        assert ".cpp" not in str(raised.value)
    xml.write_bytes(text)
    for length in (0, len(numbers) // 2, len(numbers) - 1):
        weights.write_bytes(numbers[:length])
        with pytest.raises(WeightsError, match="cannot be read by OpenVINO|is damaged"):
            vitrail.load(openvino_folder)
    weights.unlink()
    with pytest.raises(WeightsError, match=r"keeps its weights in model\.bin, which must lie beside it"):
        vitrail.load(openvino_folder)
    weights.symlink_to(xml)
    with pytest.raises(WeightsError, match="as a plain file"):
        vitrail.load(openvino_folder)


def test_stripped_metadata(onnx_file: Path, openvino_folder: Path) -> None:
    edit(onnx_file, lambda model: model.ClearField("metadata_props"))
    with pytest.raises(
        WeightsError, match=r"metadata was stripped; .* must give one row .* this gives logits, features"
    ):
        vitrail.load(onnx_file)
    xml = openvino_folder / "model.xml"
    text = xml.read_text(encoding="utf-8")
    begin, end = text.index("<rt_info>", text.rindex("</edges>")), text.rindex("</rt_info>")
    xml.write_text(text[:begin] + text[end + len("</rt_info>") :], encoding="utf-8")
    with pytest.raises(WeightsError, match="is not an export of vitrail, or its metadata was stripped"):
        vitrail.load(openvino_folder)


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(facts: dict[str, Any]) -> None:
        for key in keys[:-1]:
            facts = facts[key]
        facts[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("version", value=VERSION + 1), "exported by a newer vitrail"),
        (lambda facts: facts.pop("version"), "what it says about itself cannot be read"),
        (put("num_classes", value=8), "class names do not fit"),
        (put("num_classes", value=-1), "class names do not fit"),
        (put("facts", "preprocess", "std", value=[0, 0, 0]), "std above 0"),
        (put("facts", "preprocess", "size", value="x"), "is damaged"),
        (put("facts", "classes", value=5), "is damaged"),
        (put("outputs", value=3), "is damaged"),
        (put("tokens", value=None), "is damaged"),
        (put("precision", value="int3"), "is damaged"),
        (put("colour", value="red"), "is damaged"),
    ],
)
def test_edited_manifests_are_refused(onnx_file: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        vitrail.load(edit_manifest(onnx_file, change))


def test_a_graph_with_other_outputs_than_it_says(onnx_file: Path) -> None:
    model = vitrail.load(edit_manifest(onnx_file, put("outputs", value=["logits"])))
    with pytest.raises(WeightsError, match="should take pictures and give logits; its graph .* gives logits, features"):
        model.predict(picture(0))


def test_a_graph_with_other_inputs(onnx_file: Path) -> None:
    extra = helper.make_tensor_value_info("more", TensorProto.FLOAT, [1])
    model = vitrail.load(edit(onnx_file, lambda model: model.graph.input.append(extra)))
    with pytest.raises(WeightsError, match="its graph takes images, more"):
        model.predict(picture(0))


def point_elsewhere(path: Path, location: str) -> Path:
    """Move the weights of a file's first tensor into another file, at least by name."""

    def change(model: Any) -> None:
        tensor = model.graph.initializer[0]
        onnx.external_data_helper.set_external_data(tensor, location)  # pyright: ignore[reportAttributeAccessIssue]
        tensor.ClearField("raw_data")

    return edit(path, change)


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "deeper/x.bin", "..", "", ".hidden"])
def test_external_data_outside_of_the_folder(onnx_file: Path, location: str) -> None:
    (onnx_file.parent.parent / "secret.bin").write_bytes(b"secret")
    with pytest.raises(WeightsError, match="points outside its own folder"):
        vitrail.load(point_elsewhere(onnx_file, location))


def test_external_data_must_be_a_plain_file_beside_it(onnx_file: Path) -> None:
    point_elsewhere(onnx_file, "weights.bin")
    with pytest.raises(WeightsError, match=r"keeps its weights in weights\.bin, which must lie beside it"):
        vitrail.load(onnx_file)
    (onnx_file.parent / "weights.bin").symlink_to("/etc/passwd")
    with pytest.raises(WeightsError, match="as a plain file"):
        vitrail.load(onnx_file)


def test_options_that_would_change_a_finished_graph(onnx_file: Path, openvino_folder: Path) -> None:
    for source in (onnx_file, openvino_folder):
        with pytest.raises(ConfigError, match="image_size=, num_classes= cannot change .*, which is an export"):
            vitrail.load(source, image_size=64, num_classes=3)
        with pytest.raises(WeightsError, match="preprocess= cannot change"):
            vitrail.load(source, preprocess="timm")
        with pytest.raises(ConfigError, match='device must be "auto" or "cpu"'):
            vitrail.load(source, device="cuda")
    with pytest.raises(ConfigError, match="is an ONNX file and runs in its own number format"):
        vitrail.load(onnx_file, precision="bf16")


def write_foreign(path: Path, batch: int | str = "batch", height: int | str = 16) -> np.ndarray:
    """Somebody else's classifier: the means of the channels, times a matrix."""
    weight = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("GlobalAveragePool", ["pixels"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "foreign",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, [batch, 3, height, 16])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 3])],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return weight


@pytest.mark.parametrize("batch", ["batch", 2])
def test_a_foreign_graph_with_what_the_user_says(tmp_path: Path, batch: int | str) -> None:
    path, names = tmp_path / "foreign.onnx", ["red", "green", "blue"]
    weight = write_foreign(path, batch)
    spec = preset("hf", 16)
    model = vitrail.load(path, preprocess="hf", class_names=names)
    pictures = [picture(number, (20, 24)) for number in range(5)]
    expected = np.stack([prepare(each, spec).numpy().mean(axis=(1, 2)) for each in pictures]) @ weight
    rows = list(model.predict(pictures, batch_size=3))
    assert [row.label for row in rows] == [names[best] for best in expected.argmax(axis=1)]
    images = np.stack([prepare(each, spec).numpy() for each in pictures])
    np.testing.assert_allclose(model.runtime.logits(images), expected, atol=1e-5)
    assert model.predict(pictures[0]).label == rows[0].label
    with pytest.raises(VitrailError, match="no output 'features', only logits"):
        model.embed(pictures[0])


def test_a_foreign_graph_from_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, names, photo = tmp_path / "foreign.onnx", tmp_path / "names.txt", tmp_path / "photo.png"
    write_foreign(path)
    names.write_text("red\ngreen\nblue\n", encoding="utf-8")
    picture(0, (20, 24)).save(photo)
    assert main(["predict", str(path), str(photo)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "Pass --preprocess (google, timm," in error
    assert "the class names with --class-names" in error
    command = ["predict", str(path), str(photo), "--preprocess", "hf", "--class-names", str(names), "--format", "jsonl"]
    assert main(command) == 0
    expected = vitrail.load(path, preprocess="hf", class_names=names).predict(photo, top_k=3)
    assert json.loads(capsys.readouterr().out)["labels"] == list(expected.labels)
    assert vitrail.predict(path, photo, preprocess="hf", class_names=names) == replace(expected, picture=str(photo))
    assert main([*command[:3], "--preprocess", "himm"]) == 2
    assert "unknown preprocessing 'himm'" in capsys.readouterr().err


def test_a_foreign_graph_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "foreign.onnx"
    write_foreign(path)
    with pytest.raises(WeightsError, match=r"does not say how its pictures are prepared.*Pass preprocess="):
        vitrail.load(path)
    with pytest.raises(VitrailError, match="it has 2 names, and the head of the checkpoint has 3 classes"):
        vitrail.load(path, preprocess="hf", class_names=["a", "b"])
    with pytest.raises(WeightsError, match="takes pictures of 16×16 with 3 channels; preprocess= makes 32×32 with 3"):
        vitrail.load(path, preprocess=preset("hf", 32))
    write_foreign(path, height="height")
    with pytest.raises(WeightsError, match="must have a fixed picture size and number of classes"):
        vitrail.load(path, preprocess="hf")


def test_a_file_that_is_not_what_its_name_says(tmp_path: Path, exports: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello")
    shutil.copy(exports / "tiny.safetensors", tmp_path / "weights.onnx")
    for name in ("text.onnx", "weights.onnx"):
        with pytest.raises(WeightsError, match="is damaged, or not an ONNX model"):
            vitrail.load(tmp_path / name)

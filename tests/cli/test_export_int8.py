"""`vitrail export` in int8: mistakes before anything expensive, and the table at the end."""

import json
from pathlib import Path

import pytest
from PIL import Image
from tests.runtimes.test_int8 import draw, make_checkpoint

from vitrail.cli.main import main
from vitrail.errors import MissingExtraError
from vitrail.runtimes import exporter
from vitrail.runtimes.exporter import check_exportable
from vitrail.weights.native import save_checkpoint

INT8 = ["--precision", "int8"]


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing expensive may start."""

    def fail(*_: object) -> None:
        raise AssertionError("the model was opened")

    monkeypatch.setattr("vitrail.verbs.export.checkpoint_of", fail)


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("a.onnx", INT8, "--precision int8 needs pictures to calibrate with: a data set or a folder in --calibrate"),
        ("a.onnx", ["--calibrate", "digits"], "--calibrate goes with --precision int8"),
        ("a.onnx", ["--agreement", "0.9", "--max-loss", "1"], "--agreement and --max-loss go with --precision int8"),
        ("a.pt2", [*INT8, "--calibrate", "digits"], "--precision int8 is for --to onnx and --to openvino"),
        ("a.onnx", [*INT8, "--calibrate", "digits", "--with-preprocess"], "--with-preprocess cannot be used with"),
        ("a.onnx", [*INT8, "--calibrate", "digits", "--dynamic-size"], "--dynamic-size cannot be used with"),
        ("a.onnx", [*INT8, "--calibrate", "digits", "--agreement", "99"], "--agreement is a share of pictures"),
        ("a.onnx", [*INT8, "--calibrate", "digits", "--max-loss", "-1"], "--max-loss is in percentage points"),
        ("a.onnx", [*INT8, "--calibrate", "nowhere"], "nowhere: no such file or folder"),
        ("a.onnx", ["--precision", "int4"], "int4"),
    ],
)
def test_mistakes_come_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, arguments: list[str], message: str
) -> None:
    assert main(["export", "cifar10", str(tmp_path / path), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_missing_nncf_prints_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "find_spec", lambda name: None if name == "nncf" else object())
    check_exportable("openvino")
    with pytest.raises(MissingExtraError, match=r'int8 needs .* pip install "vitrail\[export\]"'):
        check_exportable("openvino", "int8")


def test_the_table_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a folder of pictures without labels to a file that predicts."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, pixels in enumerate(draw(36, 8)[0]):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(folder / f"{number}.png")
    model, target = str(tmp_path / "tiny.safetensors"), str(tmp_path / "int8.onnx")
    save_checkpoint(make_checkpoint(), model)
    assert main(["export", model, target, *INT8, "--calibrate", str(folder), "--agreement", "0.9"]) == 0
    printed = capsys.readouterr().out
    assert "calibrated on 18 pictures, chosen on 9 others, accepted on 9 others again" in printed
    assert "method" in printed
    assert "9 for accepting" in printed
    assert "beside float32: largest difference" in printed
    assert "of 9 pictures" in printed
    assert "Statistics" not in printed
    assert main(["predict", target, str(folder / "1.png"), "--format", "jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["error"] is None

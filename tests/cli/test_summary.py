import json
from pathlib import Path

import pytest
from tests.prediction.conftest import write_tiny

from vitrail.cli.main import main


def test_the_table_shows_the_five_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "vit-b16"]) == 0
    printed = capsys.readouterr().out
    for fact in ("3×224×224", "196×768", "197×768", "12×197×64", "[cls] + positions", "86,567,656", "17,563.8 M"):
        assert fact in printed


def test_another_size_and_head(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "cifar-tiny", "--image-size", "32x64", "--num-classes", "5", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["config"]["image_size"] == [32, 64]
    assert facts["steps"][-1] == {"name": "head", "shape": [5], "note": "logits", "parameters": 245, "macs": 240}


def test_a_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(
        "image_size: 64\npatch_size: 8\nwidth: 64\nheads: 4\nstem:\n  kind: conv\n  widths: [16]\n  strides: [2]\n"
    )
    assert main(["summary", str(path)]) == 0
    assert "conv stem" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width: [1", "cannot read the config file"),
        ("widht: 3", "no field 'widht'; did you mean width"),
        ("- 1", "must be a mapping"),
        ("heads: 5", "heads must divide width 768"),
    ],
)
def test_a_bad_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    assert main(["summary", str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing.yaml"],
        ["vit-b16", "--image-size", "big"],
        ["vit-b16", "--image-size", "100"],
        ["vit-b16", "--num-classes", "-3"],
    ],
)
def test_bad_arguments_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", *arguments]) == 2
    assert "error:" in capsys.readouterr().err


def test_a_checkpoint_and_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path / "run" / "weights" / "best.safetensors")
    for source in (tmp_path / "run", tmp_path / "run" / "weights" / "best.safetensors"):
        assert main(["summary", str(source), "--num-classes", "3", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)["config"]
        assert (facts["width"], facts["depth"], facts["num_classes"]) == (32, 3, 3)
    assert main(["summary", str(tmp_path / "runn")]) == 2
    assert f"did you mean {tmp_path / 'run'}?" in capsys.readouterr().err

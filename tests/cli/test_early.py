"""Cheap mistakes are told before a picture is looked for, and before weights are read unless they are the mistake."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.prediction.conftest import checkpoint_file, photos, write_tiny  # noqa: F401

from vitrail.cli.main import main
from vitrail.data import datasets as opening
from vitrail.prediction import inputs as predict_pictures
from vitrail.weights import read as reader


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos: list[Path], checkpoint_file: Path) -> Path:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "runs" / "train-1" / "weights" / "best.safetensors")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.yaml").touch()
    (tmp_path / "twice.txt").write_text("a\na\n")
    (tmp_path / "a-file").touch()
    (tmp_path / "a.pth").touch()

    def scan(*_: Any, **__: Any) -> Any:
        raise AssertionError("pictures were looked for")

    monkeypatch.setattr(opening, "_open", scan)
    monkeypatch.setattr(opening, "_open_path", scan)
    monkeypatch.setattr(predict_pictures, "stream_names", scan)
    monkeypatch.setattr(reader, "read_files", scan)
    return tmp_path


TRAIN = ["train", "photos"]
READ_FILES = reader.read_files


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TRAIN, "--model", "vit-b17"], "unknown model 'vit-b17'; did you mean vit-b16"),
        ([*TRAIN, "--recipe", "finetun"], "unknown recipe 'finetun'; did you mean finetune"),
        ([*TRAIN, "--recipe", "finetune", "--weights", "none"], "the recipe 'finetune' starts from pretrained weights"),
        ([*TRAIN, "--recipe", "linear", "--weights", "none"], "needs pretrained weights"),
        ([*TRAIN, "--train", "head", "--weights", "none"], "needs pretrained weights"),
        ([*TRAIN, "--weights", "gone.safetensors"], "there is no checkpoint gone.safetensors"),
        ([*TRAIN, "--weights", "runs/train-l"], "did you mean runs/train-1?"),
        ([*TRAIN, "--weights", "hf://nobody"], "hf://owner/name"),
        ([*TRAIN, "--weights", "a.pth"], "is a pickle"),
        ([*TRAIN, "--weights", "tiny.safetensors", "--classes", "gone.txt"], "no file of class names gone.txt"),
        ([*TRAIN, "--weights", "tiny.safetensors", "--classes", "twice.txt"], "are both called 'a'"),
        ([*TRAIN, "--classes", "twice.txt"], "--classes names the classes of the weights"),
        ([*TRAIN, "--epochs", "0"], "--epochs must be between 1"),
        ([*TRAIN, "--device", "abacus"], "device 'abacus' cannot be used"),
        ([*TRAIN, "--out", "old"], "old holds a run already"),
        ([*TRAIN, "--out", "a-file"], "a-file must be a folder"),
        ([*TRAIN, "--image-size", "33", "--model", "vit-b16"], "image_size must be a multiple of 16"),
        (["train", "phots"], "phots: no such file or folder, and not the name of a data set; did you mean photos?"),
        (["eval", "runs/train-l", "photos"], "did you mean runs/train-1?"),
        (["eval", "runs/train-1", "phots"], "did you mean photos?"),
        (["eval", "runs/train-1", "photos", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["eval", "runs/train-1", "photos", "--classes", "twice.txt"], "are both called 'a'"),
        (["eval", "runs/train-1", "photos", "--out", "a-file"], "a-file must be a folder"),
        (["embed", "runs/train-l", "--data", "photos"], "did you mean runs/train-1?"),
        (["embed", "runs/train-1", "--data", "phots"], "did you mean photos?"),
        (["embed", "runs/train-1", "photos", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["predict", "runs/train-l", "photos"], "did you mean runs/train-1?"),
        (["predict", "runs/train-1", "phots"], "did you mean photos?"),
        (["predict", "runs/train-1", "photos", "--classes", "twice.txt"], "are both called 'a'"),
        (["predict", "runs/train-1", "photos", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["predict", "photos", "runs/train-1"], "runs/train-1 is a checkpoint, not a picture"),
        (["predict", "runs/train-1", "--list", "gone.txt"], "no such list of pictures"),
        (["explain", "runs/train-l", "photos"], "did you mean runs/train-1?"),
        (["explain", "runs/train-1", "photos", "--layers", "one"], "layers must be whole numbers"),
        (["figures", "runs/train-l"], "did you mean runs/train-1?"),
    ],
)
def test_cheap_mistakes_come_first(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = {str(path) for path in Path().rglob("*")}
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert {str(path) for path in Path().rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--weights", "other.safetensors"], "are those of no ViT that we know"),
        (["--weights", "broken.safetensors"], "broken.safetensors cannot be read as a safetensors file"),
        (["--weights", "tiny.safetensors", "--classes", "one.txt"], "one.txt"),
        (["--weights", "tiny.safetensors", "--image-size", "33"], "image_size must be a multiple of 8"),
    ],
)
def test_weights_that_cannot_be_used_are_told_of_before_the_pictures(
    arguments: list[str],
    message: str,
    inside: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(reader, "read_files", READ_FILES)
    save_file({"a.weight": torch.zeros(2, 2)}, inside / "other.safetensors")
    (inside / "broken.safetensors").write_bytes(b"no weights")
    (inside / "one.txt").write_text("cat\n")
    assert main([*TRAIN, *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--epochs", "0"], ["--lr", "-1"], ["--dropout", "2", "--recipe", "digits"]])
def test_impossible_values_are_told_before_torch_is_loaded(
    flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("vitrail.verbs.runs", "vitrail.data.check.findings"):  # which load torch
        monkeypatch.setitem(sys.modules, module, None)  # an import of it would be an ImportError
    for module in ("vitrail.verbs.terminal", "vitrail.training.display", "vitrail.training.listener"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert main([*TRAIN, *flags]) == 2
    assert f"{flags[0][2:]} must be between" in capsys.readouterr().err

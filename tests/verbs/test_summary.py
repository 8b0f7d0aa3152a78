"""`vitrail.summary` and `vitrail summary` are the same thing through two doors."""

import json
import re
from pathlib import Path

import pytest
from tests.prediction.conftest import write_tiny

import vitrail
from vitrail.cli.main import main
from vitrail.errors import ConfigError
from vitrail.verbs.inspect import summary


def test_both_doors_count_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_tiny(tmp_path / "tiny.safetensors")
    (tmp_path / "model.yaml").write_text("image_size: 64\npatch_size: 8\nwidth: 64\nheads: 4\n")
    for source in ("cifar-tiny", path, tmp_path / "model.yaml"):
        assert main(["summary", str(source), "--image-size", "64x32", "--num-classes", "5", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        counted = summary(source, image_size="64x32", num_classes=5)
        assert json.loads(json.dumps(counted.to_dict())) == printed
        assert counted == summary(source, image_size=(64, 32), num_classes=5)
    assert counted.config.image_size == (64, 32)
    assert main(["summary"]) == 0
    words = capsys.readouterr().out.split()
    for cells in (*summary().rows, summary().total):
        text = " ".join(cells).split()
        assert any(words[place : place + len(text)] == text for place in range(len(words)))


def test_a_model_that_is_there_already(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.safetensors")
    model = vitrail.load(path)
    for given in (model, model.model, model.model.config):
        assert summary(given) == summary(path)
        assert summary(given, num_classes=0).steps[-1].name != "head"
    assert summary(model)._repr_markdown_() in model._repr_markdown_()


def test_a_size_that_is_none() -> None:
    with pytest.raises(ConfigError, match=re.escape("image_size must be one number or HEIGHTxWIDTH")):
        summary("vit-b16", image_size="big")

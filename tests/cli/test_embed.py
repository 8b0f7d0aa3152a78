"""`vitrail embed`: what it refuses, what it passes on, and pictures of which no map can be drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_eval import as_arguments
from tests.data.conftest import picture
from tests.prediction.conftest import write_tiny

from vitrail.cli.main import main
from vitrail.prediction import Predictor


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "digits", "--batch-size", "-5"], "batch_size= must be at least 1; got -5"),
        (["photos", "--data-dir", "x", "--val-rate", "0.3"], "data_dir=, val_rate= go with data="),
        (["photos", "--split", "test", "--split-seed", "3"], "split=, split_seed= go with data="),
        (["photos", "--columns.label", "x"], "columns= goes with data="),
        (["photos", "--out", "file"], "file must be a folder; it is a file"),
    ],
)
def test_options_are_checked_before_anything_is_opened(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").touch()
    assert main(["embed", "--model", "nowhere.safetensors", *options]) == 2
    assert message in as_arguments(capsys.readouterr().err)


def test_the_batch_size_holds_for_data_too(monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(Path("tiny.safetensors"))
    seen: list[Any] = []
    real = Predictor.features

    def features(self: Predictor, pictures: Any, batch_size: int | None = None) -> Any:
        seen.append(batch_size)
        return real(self, pictures, batch_size)

    monkeypatch.setattr(Predictor, "features", features)
    arguments = ["--data", "digits", "--split", "val", "--batch-size", "7", "--map", "none"]
    assert main(["embed", "tiny.safetensors", *arguments]) == 0
    assert seen == [7]


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_equal_pictures_have_features_and_no_map(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(Path("my tiny.safetensors"))
    Path("photos").mkdir()
    for number in range(4):
        picture(0).save(Path("photos", f"{number}.png"))
    assert main(["embed", "my tiny.safetensors", "photos", "--map", method, "--out", "x"]) == 0
    printed = capsys.readouterr().out
    assert "no map: a map needs pictures that differ" in printed
    assert "next: vitrail eval 'my tiny.safetensors' DATA --probe knn,linear" in printed
    assert [path.name for path in Path("x").iterdir()] == ["features.npz"]
    assert np.load("x/features.npz")["features"].shape == (4, 32)

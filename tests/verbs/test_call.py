"""Which argument is the model; what is neither model nor picture nor data is an error before anything is read."""

from pathlib import Path

import pytest
from tests.prediction.conftest import write_tiny

from vitrail.data.config import DataConfig
from vitrail.errors import VitrailError
from vitrail.verbs.call import resolve_data, resolve_model, resolve_pictures, tell_pictures
from vitrail.weights import resolve as resolving


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resolving, "BUNDLED_FOLDER", tmp_path)
    write_tiny(tmp_path / "cifar10.safetensors")
    write_tiny(tmp_path / "runs" / "train-1" / "weights" / "best.safetensors")
    for name in ("runs/train-1/results.png", "photos/a.jpg", "photos/b.jpg", "runs/explain-1/sheet.png", "vit.onnx"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "runs" / "train-2" / "weights").mkdir(parents=True)  # begun, and not an epoch old
    for number in (1, 2):
        (tmp_path / "runs" / f"train-{number}" / "config.yaml").touch()
    return tmp_path


def resolve(arguments: list[str], model: str | None) -> tuple[str, tuple[object, ...]]:
    """What a verb makes of the arguments of its command."""
    source, pictures = tell_pictures(arguments, model)
    return resolve_model(source).source, tuple(resolve_pictures(pictures).given)


def tell_data(first: str, second: str | None) -> tuple[str, object]:
    model, data = resolve_data(first, second, DataConfig())
    return model.source, data.where


@pytest.mark.parametrize(
    ("arguments", "model", "expected"),
    [
        (["photos"], None, ("cifar10", ("photos",))),
        (["runs/train-1", "photos", "photos/*.jpg"], None, ("runs/train-1", ("photos", "photos/*.jpg"))),
        (["photos/a.jpg", "-"], "runs/train-1", ("runs/train-1", ("photos/a.jpg", "-"))),
        (["runs/explain-1"], None, ("cifar10", ("runs/explain-1",))),
        (["hf://a/b", "photos"], None, ("hf://a/b", ("photos",))),
    ],
)
def test_the_model_and_the_pictures(
    arguments: list[str], model: str | None, expected: tuple[str, tuple[str, ...]]
) -> None:
    assert resolve(arguments, model) == expected


@pytest.mark.parametrize(
    ("arguments", "model", "message"),
    [
        (["runs/train-l", "photos"], None, "no such picture, folder or checkpoint; did you mean runs/train-1"),
        (["train-1", "photos"], None, "did you mean runs/train-1"),
        (["photo", "photos"], None, "did you mean photos?"),
        (["cifar10.safetensor", "photos"], None, "did you mean cifar10.safetensors?"),
        (["cifar1.safetensors", "photos"], None, "no checkpoint cifar1.safetensors; did you mean cifar10.safetensors?"),
        (["photos", "runs/train-1"], None, "runs/train-1 is a training run, not a picture; the model comes first"),
        (["photos", "cifar10.safetensors"], None, "cifar10.safetensors is a checkpoint, not a picture"),
        (["photos", "hf://a/b"], None, "hf://a/b is a checkpoint, not a picture"),
        (["photos", "vit.onnx"], None, "vit.onnx is a checkpoint, not a picture"),
        (["runs/train-1", "runs/train-2"], None, "runs/train-2 is a training run, not a picture"),
        (["photos", "runs/train-1"], "cifar10", "runs/train-1 is a training run, not a picture"),
        (["runs/train-2", "photos"], None, "the training run runs/train-2 has no weights yet"),
        (["photos"], "runs/train-9", "there is no checkpoint runs/train-9; did you mean runs/train-"),
        (["photos"], "photos", "photos must hold one checkpoint"),
        (["hf://a", "photos"], None, "a model on the hub is hf://owner/name"),
        (["google://Z_99", "photos"], None, "not a release that the hub mirrors"),
        (["owner/name", "photos"], None, "owner/name: there is no such picture"),
        (["photos"], "photos/a.jpg", "photos/a.jpg must end in .safetensors"),
    ],
)
def test_what_is_neither(arguments: list[str], model: str | None, message: str) -> None:
    with pytest.raises(VitrailError) as caught:
        resolve(arguments, model)
    assert message in str(caught.value)


def test_the_model_and_the_data() -> None:
    assert tell_data("photos", None) == ("cifar10", "photos")
    assert tell_data("cifar10", None) == ("cifar10", "cifar10")
    assert tell_data("runs/train-1", "photos") == ("runs/train-1", "photos")
    assert tell_data("runs/train-1", "shards/t-{000..009}.tar") == ("runs/train-1", "shards/t-{000..009}.tar")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("runs/train-1", None, "runs/train-1 is a model; also name the data to use it on"),
        ("runs/train-l", "photos", "there is no checkpoint runs/train-l; did you mean runs/train-1"),
        ("photos", "runs/train-1", "the model comes first, then the data"),
        ("runs/train-1", "cifar10.safetensors", "cifar10.safetensors is a model, not data"),
        (
            "runs/train-1",
            "phots",
            "phots: no such file or folder, and not the name of a data set; did you mean photos?",
        ),
        ("runs/train-1", "digit", "did you mean digits"),
        ("phots", None, "phots: no such file or folder"),
    ],
)
def test_no_model_or_no_data(first: str, second: str | None, message: str) -> None:
    with pytest.raises(VitrailError) as caught:
        tell_data(first, second)
    assert message in str(caught.value)

"""What can be set, and the names of models."""

from pathlib import Path

import pytest

from vitrail.errors import ConfigError
from vitrail.serving.settings import ServeSettings, cores_here, name_models, name_of_source, share_cores
from vitrail.threads import num_cores


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert ServeSettings(host=host).is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_other_machines_need_one(host: str) -> None:
    with pytest.raises(ConfigError, match="requires a token; pass token="):
        ServeSettings(host=host)
    assert not ServeSettings(host=host, token="long-enough").is_local


@pytest.mark.parametrize("token", ["short", "with space", "näher dran", "x" * 300, ""])
def test_tokens_can_be_sent_in_a_header(token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        ServeSettings(host="0.0.0.0", token=token)


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70000},
        {"max_batch": 0},
        {"timeout": 0},
        {"max_pixels": 10**9},
        {"queue_size": 8},
        {"threads": "2"},
        {"max_queue_pixels": 300_000_000},
    ],
)
def test_limits_of_the_limits(wrong: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ServeSettings(**wrong)


def test_a_container_may_have_part_of_the_cores(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    assert cores_here(limit) == num_cores()
    for text, cores in (("max 100000\n", num_cores()), ("50000 100000\n", 1), ("100001 100000", min(2, num_cores()))):
        limit.write_text(text)
        assert cores_here(limit) == cores


def test_models_share_the_cores() -> None:
    assert share_cores(ServeSettings(), 2, 5).threads == 2
    assert share_cores(ServeSettings(), 3, 2).threads == 1
    assert share_cores(ServeSettings(threads=4), 3, 2).threads == 4


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("cifar10", "cifar10"),
        ("runs/train-1", "train-1"),
        ("runs/train-1/weights/best.safetensors", "train-1"),
        ("model.onnx", "model"),
        ("./cats/model.onnx", "cats"),
        ("hf://google/vit-base-patch16-224@main", "vit-base-patch16-224"),
        ("google://B_16-i21k", "B_16-i21k"),
        ("/tmp/my model (2).safetensors", "my-model-2"),
        ("/", "model"),
    ],
)
def test_names_come_from_the_source(source: str, name: str) -> None:
    assert name_of_source(source) == name


def test_models_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.onnx").touch()
    assert name_models(None) == {"cifar10": "cifar10"}
    assert name_models(("x=cifar10", "runs/y")) == {"x": "cifar10", "y": "runs/y"}
    assert name_models({"x": Path("z")}) == {"x": "z"}
    assert name_models("a=b.onnx") == {"a-b": "a=b.onnx"}  # a file that exists
    with pytest.raises(ConfigError, match="two models are called y: y and runs/y"):
        name_models(["y", "runs/y"])
    with pytest.raises(ConfigError, match="a model's name has"):
        name_models({"a/b": "cifar10"})

"""`vitrail serve`: flags, and mistakes that are found before anything is loaded."""

import dataclasses
import socket

import pytest

from vitrail.cli.main import main
from vitrail.serving.settings import ServeSettings


def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    for field in dataclasses.fields(ServeSettings):
        assert f"--{field.name.replace('_', '-')}" in text
    assert "recipe" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "requires a token; pass --token, or set VITRAIL_TOKEN"),
        (["--token", "short"], "--token must have 8 to 200"),
        (["--max-batch", "0"], "--max-batch must be from 1 to 1,024; got 0"),
        (["missing.onnx"], "there is no checkpoint missing.onnx"),
        (["a=cifar10", "a=cifar10"], "two models are called a"),
        (["hf://owner/name", "--reload"], "--reload watches files"),
        (["--prot", "80"], "vitrail serve has no option --prot; did you mean --port?"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.delenv("VITRAIL_TOKEN", raising=False)
    assert main(["serve", *arguments]) == 2
    assert message.lower() in " ".join(capsys.readouterr().err.split()).lower()


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use" in capsys.readouterr().err


def test_the_token_may_come_from_the_environment(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("VITRAIL_TOKEN", "short")
    assert main(["serve", "--host", "0.0.0.0"]) == 2
    assert "--token must have 8" in capsys.readouterr().err

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vitrail.cli.main import main
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import write_checkpoint

FIXTURE = Path(__file__).parents[1] / "weights" / "fixtures" / "google_token.npz"


def test_the_table_and_the_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURE)]) == 0
    printed = capsys.readouterr().out
    for fact in ("google", "3 blocks, width 32, 4 heads, MLP 64", "gelu_tanh", "17: [cls] + patches", "32,679"):
        assert fact in printed
    assert "warning: the 7 classes have no names" in printed


def test_an_attention_scale_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(FIXTURE), "--attention-scale", "0.3"]) == 0
    assert "attention scale 0.3" in capsys.readouterr().out
    assert main(["inspect", str(FIXTURE), "--attention-scale", "-1"]) == 2
    assert "attention_scale must be positive" in " ".join(capsys.readouterr().err.split())


def test_a_useless_checkpoint_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = read_checkpoint(FIXTURE)
    tensors = {**checkpoint.tensors, "norm.bias": torch.full((32,), torch.nan)}
    write_checkpoint(replace(checkpoint, tensors=tensors), tmp_path / "a.safetensors")
    assert main(["inspect", str(tmp_path / "a.safetensors")]) == 1
    assert "error: NaN or infinite numbers in norm.bias" in capsys.readouterr().out


def test_a_damaged_file_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.npz").write_bytes(FIXTURE.read_bytes()[:5000])
    assert main(["inspect", str(tmp_path / "a.npz")]) == 2
    assert "it is damaged or something else" in " ".join(capsys.readouterr().err.split())

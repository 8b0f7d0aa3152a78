"""Every verb that uses a checkpoint says on the error stream what was assumed about it, plainly and once."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import TINY, randomize
from vitrail.cli.main import main
from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, ViT
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.native import read_native
from vitrail.weights.write import write_checkpoint

NOTE = "note: the file does not state the shape of its grid of 16 patches: assumed square, pictures of 32×32"
VERBS = {
    "predict": ["predict", "tiny.npz", "pictures/red/0.png"],
    "embed": ["embed", "tiny.npz", "pictures/red", "--out", "embeddings"],
    "eval": ["eval", "tiny.npz", "pictures", "--by-position"],
    "explain": ["explain", "tiny.npz", "pictures/red/0.png", "--method", "rollout"],
    "figures": ["figures", "tiny.npz", "pictures/red/0.png"],
    "convert": ["convert", "tiny.npz", "ours.safetensors"],
    "train": ["train", "pictures", "--weights=tiny.npz", "--epochs=1", "--batch-size=8", "--no-check", "--no-probe"],
}


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign checkpoint of two classes that leaves its grid open, and pictures of them."""
    monkeypatch.chdir(tmp_path)
    model = randomize(ViT(replace(TINY, num_classes=2, block=BlockConfig(activation="gelu_tanh"))))
    checkpoint = Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=preset("google", 32))
    write_checkpoint(checkpoint, "tiny.npz", "google")
    rng = np.random.default_rng(0)
    for name in ("blue", "red"):
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True)
        for index in range(12):
            Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(folder / f"{index}.png")


@pytest.mark.parametrize("verb", VERBS)
def test_the_note_is_one_plain_line_on_the_error_stream(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(VERBS[verb]) == 0
    captured = capsys.readouterr()
    assert captured.err.count(NOTE) == 1
    assert "Warning" not in captured.err
    assert "note: the file does not state" not in captured.out


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "tiny.npz", "--json"]) == 0
    captured = capsys.readouterr()
    messages = [finding["message"] for finding in json.loads(captured.out)["warnings"]]
    assert any(NOTE.removeprefix("note: ") in message for message in messages)
    assert captured.err == ""


def test_inspect_says_it_once_among_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "tiny.npz"]) == 0
    captured = capsys.readouterr()
    assert " ".join(captured.out.split()).count(NOTE.removeprefix("note: ")) == 1
    assert captured.err == ""


def test_our_own_file_keeps_the_notes_and_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "tiny.npz", "ours.safetensors", "--json"]) == 0
    assert NOTE.removeprefix("note: ") in json.loads(capsys.readouterr().out)["assumed"][0]
    assert main(["predict", "ours.safetensors", "pictures/red/0.png"]) == 0
    assert "note:" not in capsys.readouterr().err
    assert main(["inspect", "ours.safetensors"]) == 0
    assert f"warning: {NOTE.removeprefix('note: ')}" in capsys.readouterr().out


def test_only_the_first_rank_speaks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main(VERBS["convert"]) == 0
    assert capsys.readouterr().err == ""


def test_a_flag_settles_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*VERBS["convert"], "--image-size", "32"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["inspect", "tiny.npz", "--image-size", "32"]) == 0
    assert NOTE.removeprefix("note: ") not in " ".join(capsys.readouterr().out.split())


def test_the_average_is_chosen_by_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = randomize(ViT(TINY))
    plain = Checkpoint(config=TINY, tensors=model.state_dict(), preprocess=preset("timm", 32))
    write_checkpoint(plain, "plain.pth", "timm")
    state = torch.load("plain.pth", weights_only=True)
    torch.save({"model": state, "model_ema": {name: tensor + 1 for name, tensor in state.items()}}, "both.pth")
    for flags, told in (([], True), (["--ema"], False), (["--no-ema"], False)):
        target = f"{len(flags)}{'n' if '--no-ema' in flags else ''}.safetensors"
        assert main(["convert", "both.pth", target, "--heads", "4", *flags]) == 0
        assert ("note: the file holds model and model_ema: model_ema is used" in capsys.readouterr().err) == told
    means = [read_native(Path(name)).tensors["norm.bias"].mean() for name in ("0.safetensors", "1.safetensors")]
    assert means[0] == means[1] == read_native(Path("1n.safetensors")).tensors["norm.bias"].add(1).mean()


def test_what_is_printed_names_flags_and_not_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a file of ours, which keeps the notes of the file that it was made from."""
    model = randomize(ViT(replace(TINY, num_classes=2)))
    checkpoint = Checkpoint(config=model.config, tensors=model.state_dict(), preprocess=preset("timm", 32))
    write_checkpoint(checkpoint, "tiny.pth", "timm")
    assert main(["convert", "tiny.pth", "ours.safetensors", "--heads", "4"]) == 0
    capsys.readouterr()
    for command in (["inspect", "tiny.pth", "--heads", "4"], ["convert", "ours.safetensors", "theirs", "--to", "hf"]):
        assert main(command) == 0
        printed = capsys.readouterr().out
        assert "assumed 1e-06; --norm-eps changes that" in printed
        assert "norm_eps=" not in printed

"""Files and folders that hold something else are named, with what to do, by every verb that would open them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.peers import timm
from PIL import Image

import vitrail
from vitrail.cli.main import main
from vitrail.errors import WeightsError

FILES = {
    "a.gguf": "a GGUF file, quantised weights for llama.cpp, which we do not read; name the PyTorch or safetensors",
    "a.h5": "Keras weights (HDF5)",
    "a.keras": "Keras weights (HDF5)",
    "a.pdparams": "PaddlePaddle weights",
    "a.msgpack": "Flax weights",
    "a.pb": "a TensorFlow graph",
    "a.tflite": "a TensorFlow Lite model",
    "a.engine": "a TensorRT engine",
    "a.distcp": "a checkpoint of torch.distributed in shards, which we do not read; join them: python -m torch",
    "a.pkl": "a pickle that may hold anything, which we do not read; if torch.save wrote it, give it the suffix .pth",
    "model.ckpt.index": "a TensorFlow checkpoint",
    "model.ckpt.data-00000-of-00001": "a TensorFlow checkpoint",
    "model.safetensors.index.json": "the files of a checkpoint; name the folder with all of them",
}


@pytest.mark.parametrize("name", FILES)
def test_files_by_their_suffix(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"anything")
    for opened in (vitrail.inspect, vitrail.load):
        with pytest.raises(WeightsError) as caught:
            opened(tmp_path / name)
        assert FILES[name] in str(caught.value)


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"GGUF\x03\x00\x00\x00", "a GGUF file"),
        (b"\x89HDF\r\n\x1a\n\x00", "Keras weights"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS, not the file itself"),
        (b"<!DOCTYPE html>", "a web page, not the file itself"),
    ],
)
@pytest.mark.parametrize("name", ["pytorch_model.bin", "a.safetensors", "a.npz"])
def test_files_by_their_first_bytes(tmp_path: Path, start: bytes, what: str, name: str) -> None:
    (tmp_path / name).write_bytes(start)
    with pytest.raises(WeightsError) as caught:
        vitrail.inspect(tmp_path / name)
    assert f"{name} is {what}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("saved_model.pb", "a TensorFlow SavedModel"),
        ("tf_model.h5", "Keras weights"),
        ("flax_model.msgpack", "Flax weights"),
        ("__0_0.distcp", "a checkpoint of torch.distributed in shards"),
        ("zero_to_fp32.py", "a checkpoint of DeepSpeed in shards"),
        ("default/manifest.ocdbt", "an Orbax checkpoint of JAX"),
        ("adapter_model.bin", "a LoRA adapter of PEFT"),
        ("optimizer.bin", "the state of a training run without its model's weights"),
    ],
)
def test_folders_by_what_they_hold(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(WeightsError) as caught:
        vitrail.load(tmp_path)
    assert f"{tmp_path} is {what}" in str(caught.value)


def test_such_a_file_is_a_model_and_never_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.gguf").write_bytes(b"GGUF")
    Image.new("RGB", (9, 9)).save("cat.jpg")
    assert main(["predict", "a.gguf", "cat.jpg"]) == 2
    assert "a.gguf is a GGUF file" in capsys.readouterr().err


@pytest.mark.parametrize("legacy", [False, True])
def test_a_whole_model_is_refused_with_the_lines_that_export_it(tmp_path: Path, legacy: bool) -> None:
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 12, "num_heads": 3, "num_classes": 3}
    model = timm.create_model("vit_base_patch16_224", **sizes)
    path = tmp_path / "whole.pth"
    torch.save(model, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(WeightsError) as caught:
        vitrail.inspect(path)
    message, _, lines = str(caught.value).partition("\n")
    assert "it holds a whole model, an object of timm.models.vision_transformer.VisionTransformer" in message
    assert "if you trust the file, save its weights by themselves:" in message
    _run(lines, tmp_path)
    assert vitrail.inspect(tmp_path / "weights.pth").config.num_classes == 3


def _run(lines: str, folder: Path) -> None:
    """The lines of a message, as their reader would run them in the file's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec("\n".join(line.strip() for line in lines.splitlines()), {"torch": torch})


@pytest.mark.parametrize(
    ("contents", "what"),
    [
        ({"model": torch.nn.Linear(2, 2), "epoch": 3}, "a dictionary with a whole model in it"),
        (torch.nn.Linear(2, 2), "a whole model, an object of torch.nn.modules.linear.Linear"),
        (Path("a"), "an object of pathlib"),
        ({"path": Path("a")}, "Python objects"),
    ],
)
def test_other_objects(tmp_path: Path, contents: Any, what: str) -> None:
    for protocol in (2, 4):
        torch.save(contents, tmp_path / "a.pth", pickle_protocol=protocol)
        with pytest.raises(WeightsError) as caught:
            vitrail.inspect(tmp_path / "a.pth")
        assert what in str(caught.value)


def test_an_optimizer_by_itself(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    for contents in (optimizer.state_dict(), {"optimizer": optimizer.state_dict(), "epoch": 3}):
        torch.save(contents, tmp_path / "a.bin")
        with pytest.raises(
            WeightsError, match="holds the state of an optimiser and no weights; name the file of the mod"
        ):
            vitrail.inspect(tmp_path / "a.bin")

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from vitrail.errors import WeightsError
from vitrail.model import ConvStem, Rates
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.metadata import Origin
from vitrail.weights.native import fingerprint, read_native, save_checkpoint
from vitrail.weights.read import read_checkpoint


def test_everything_comes_back(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = replace(
        make_checkpoint(stem=ConvStem(widths=(8,), strides=(2,)), patch_size=4, rates=Rates(path=0.1)),
        classes=("chat", "chien", "été", "日本", 'with "quotes"', "a\nb", ""),
        origin=Origin(format="google", dialect={"prefix": "params/"}, source="x.npz", sha256={"x.npz": "00"}),
        extras={"mask_token": torch.randn(1, 32)},
        notes=("something",),
    )
    save_checkpoint(checkpoint, tmp_path / "a.safetensors")
    again = read_native(tmp_path / "a.safetensors")
    assert replace(again, tensors=checkpoint.tensors, extras=checkpoint.extras) == checkpoint
    for name, tensor in checkpoint.tensors.items():
        assert torch.equal(again.tensors[name], tensor)
    assert torch.equal(again.extras["mask_token"], checkpoint.extras["mask_token"])


def test_other_software_reads_the_file(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint()
    tensors = {
        name: tensor.to(torch.bfloat16) if "head" in name else tensor for name, tensor in checkpoint.tensors.items()
    }
    save_checkpoint(replace(checkpoint, tensors=tensors), tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["vitrail"])["config"]["width"] == 32
        for name in file.keys():  # noqa: SIM118
            assert torch.equal(file.get_tensor(name), tensors[name])


def test_half_precision_files_load_as_float32(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint()
    half = {name: tensor.half() for name, tensor in checkpoint.tensors.items()}
    save_checkpoint(replace(checkpoint, tensors=half), tmp_path / "a.safetensors")
    model = read_native(tmp_path / "a.safetensors").build()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    kept = read_native(tmp_path / "a.safetensors").build(dtype=None)
    assert {parameter.dtype for parameter in kept.parameters()} == {torch.float16}


def test_a_failed_write_keeps_the_old_file(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    save_checkpoint(make_checkpoint(), path)
    before = path.read_bytes()

    def full_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitrail.weights.tensor_files.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(make_checkpoint(width=64), path)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["a.safetensors"]


def edit_facts(path: Path, change: Callable[[dict[str, Any]], None], fix_checksum: bool = True) -> None:
    """Rewrite the metadata of a file, as somebody with a text editor or a newer version would."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    facts = json.loads(header["__metadata__"]["vitrail"])
    change(facts)
    text = json.dumps(facts)
    header["__metadata__"]["vitrail"] = text
    if fix_checksum:
        header["__metadata__"]["vitrail.crc32"] = str(zlib.crc32(text.encode()))
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + raw[8 + size :])


@pytest.mark.parametrize(
    ("change", "fix", "message"),
    [
        (lambda facts: facts.update(version=99), True, "format version 99; this vitrail reads up to 2; upgrade"),
        (lambda facts: facts.update(version="x"), True, "damaged"),
        (lambda facts: facts.pop("version"), True, "metadata cannot be read"),
        (lambda facts: facts["config"].update(depth=2), False, "checksum of its metadata does not match"),
        (lambda facts: facts["config"].update(depth=2), True, "unknown blocks.2"),
        (lambda facts: facts["config"].update(depth=4), True, "missing blocks.3"),
        (lambda facts: facts["config"].update(mlp_width=65), True, "must have shape"),
        (lambda facts: facts["config"].update(depht=2), True, "no field 'depht'; did you mean depth"),
        (lambda facts: facts["config"].update(heads=5), True, "heads must divide width"),
        (lambda facts: facts.pop("config"), True, "config must be a mapping"),
        (lambda facts: facts.update(classes=["a"]), True, "1 name and a head for 7 classes"),
        (lambda facts: facts.update(classes=5), True, "damaged"),
        (lambda facts: facts.update(notes=3), True, "damaged"),
        (lambda facts: facts["config"].update(stem=["x"]), True, "damaged"),
        (lambda facts: facts["config"].update(image_size=10**9), True, "must be at most"),
        (lambda facts: facts["crc32"].update({"norm.weight": 1}), True, "checksums of its tensors do not match"),
    ],
)
def test_edited_files_are_refused(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], change: Any, fix: bool, message: str
) -> None:
    path = tmp_path / "a.safetensors"
    save_checkpoint(make_checkpoint(), path)
    edit_facts(path, change, fix)
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(path)


def test_our_suffix_is_required(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    with pytest.raises(WeightsError, match=r"end in \.safetensors"):
        save_checkpoint(make_checkpoint(), tmp_path / "a.pth")


def test_weights_have_the_same_fingerprint_in_their_file_and_in_float32() -> None:
    half = {"a": torch.randn(3, generator=torch.Generator().manual_seed(0)).half(), "b": torch.arange(2)}
    whole = {name: tensor.float() if name == "a" else tensor for name, tensor in half.items()}
    assert fingerprint(half) == fingerprint(whole)
    assert fingerprint({**whole, "a": whole["a"] + 1e-3}) != fingerprint(whole)

"""Files that we do not trust: malicious ones, bombs, and any damage to honest ones."""

import argparse
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fuzzing import attack, cases, damaged
from vitrail.errors import VitrailError, WeightsError
from vitrail.files import atomic_path
from vitrail.model import PositionConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import Hints
from vitrail.weights.read import FORMATS, read_checkpoint
from vitrail.weights.resolve import FormatName, find_files
from vitrail.weights.tensor_files import write_pickle
from vitrail.weights.write import write_checkpoint
from weights_fixtures import FITTING

CASES = cases(20)


class Evil:
    """What a pickle would run when loaded."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {os.environ['VITRAIL_TRAP']}",)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sprung"
    monkeypatch.setenv("VITRAIL_TRAP", str(path))
    return path


@pytest.mark.parametrize("protocol", ["torch", "legacy", "plain"])
@pytest.mark.parametrize("suffix", [".pth", ".bin"])
def test_a_malicious_pickle_never_runs(tmp_path: Path, trap: Path, protocol: str, suffix: str) -> None:
    path = tmp_path / f"evil{suffix}"
    if protocol == "plain":
        path.write_bytes(pickle.dumps({"weight": Evil()}))
    else:
        torch.save({"weight": Evil()}, path, _use_new_zipfile_serialization=protocol == "torch")
    with pytest.raises(WeightsError, match="cannot be read as a torch checkpoint of only tensors"):
        read_checkpoint(path, allow_pickle=True)
    assert not trap.exists()


def test_a_compressed_pth_is_read_right(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]) -> None:
    checkpoint = make_checkpoint(**FITTING["timm"])
    write_checkpoint(checkpoint, tmp_path / "a.pth", "timm")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as source,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
    read = read_checkpoint(tmp_path / "b.pth", hints=Hints(heads=4), allow_pickle=True)
    assert all(torch.equal(read.tensors[name], tensor) for name, tensor in checkpoint.tensors.items())


def test_settings_of_a_training_script_do_not_hinder(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint]
) -> None:
    write_checkpoint(make_checkpoint(**FITTING["timm"]), tmp_path / "a.pth", "timm")
    state = torch.load(tmp_path / "a.pth", weights_only=True)
    torch.save({"model": state, "args": argparse.Namespace(lr=0.1)}, tmp_path / "b.pth")
    assert read_checkpoint(tmp_path / "b.pth", hints=Hints(heads=4), allow_pickle=True).config.width == 32


def test_two_members_of_one_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", npy_header((1,)) + bytes(4))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("embedding/kernel.npy", npy_header((1,)) + bytes(4))
    with pytest.raises(WeightsError, match="two members with the same name"):
        read_checkpoint(tmp_path / "a.npz")


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.float8_e4m3fn, torch.uint8])
def test_numbers_that_are_no_weights(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], dtype: torch.dtype
) -> None:
    write_checkpoint(make_checkpoint(**FITTING["timm"]), tmp_path / "a.pth", "timm")
    state = torch.load(tmp_path / "a.pth", weights_only=True)
    torch.save({name: tensor.to(dtype) for name, tensor in state.items()}, tmp_path / "b.pth")
    with pytest.raises(WeightsError, match="must hold float32, float16, bfloat16, float64; got"):
        read_checkpoint(tmp_path / "b.pth", hints=Hints(heads=4), allow_pickle=True)


def test_pickles_are_refused_outside_of_convert(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.pth")
    with pytest.raises(WeightsError, match=r"is a pickle.* vitrail convert .*a\.pth .*a\.safetensors"):
        read_checkpoint(tmp_path / "a.pth")


def test_an_npz_with_objects_is_refused(tmp_path: Path, trap: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"embedding/kernel": np.array([Evil()], dtype=object)})
    with pytest.raises(WeightsError, match="holds Python objects"):
        read_checkpoint(tmp_path / "a.npz")
    assert not trap.exists()


def npy_header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_a_zip_bomb_is_refused_before_it_unpacks(tmp_path: Path) -> None:
    size, piece = 3 * 2**30, 2**24
    packer = zlib.compressobj(wbits=-15)
    header = npy_header((size // 4,))
    start = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(bytes(piece)) + packer.flush(zlib.Z_FULL_FLUSH)  # stands for itself, however often
    packed = start + zeros * (size // piece) + packer.flush()
    name, total = b"embedding/kernel.npy", len(header) + size
    facts = struct.pack("<HHHIII", 8, 0, 0, 0, len(packed), total) + struct.pack("<H", len(name))
    local = b"PK\3\4" + struct.pack("<HH", 20, 0) + facts + struct.pack("<H", 0) + name
    central = b"PK\1\2" + struct.pack("<HHH", 20, 20, 0) + facts + struct.pack("<HHHHII", 0, 0, 0, 0, 0, 0) + name
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local) + len(packed), 0)
    (tmp_path / "a.npz").write_bytes(local + packed + central + b"PK\5\6" + end)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive, archive.open("embedding/kernel.npy") as member:
        assert member.read(len(header)) == header
        assert member.read(2 * piece) == bytes(2 * piece), "a bomb that goes off"
    assert (tmp_path / "a.npz").stat().st_size < 2**23
    with pytest.raises(WeightsError, match="unpacks to 3.0 GiB, too much for its size"):
        read_checkpoint(tmp_path / "a.npz")


@pytest.mark.parametrize("shape", [(10**12,), (2**62, 4), (5,)])
def test_an_array_larger_than_its_bytes_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", npy_header(shape) + bytes(16))
    with pytest.raises(WeightsError, match="does not have the size in its header"):
        read_checkpoint(tmp_path / "a.npz")


@pytest.mark.parametrize("length", [2**63, 2**40, 10**9, 3])
def test_absurd_header_lengths(tmp_path: Path, length: int) -> None:
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", length) + b'{"a": 1}' * 10)
    with pytest.raises(WeightsError, match="cannot be read as a safetensors file"):
        read_checkpoint(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "..", ".hidden.safetensors"]
)
def test_a_sharded_index_cannot_point_elsewhere(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(WeightsError, match="points outside its own folder"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not valid JSON"), ("[]", "must hold a JSON object"), ("[" * 10**5, "not valid JSON"), ("{}", "weight_map")],
)
def test_a_bad_index(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match=message):
        read_checkpoint(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="there is no file"):
        read_checkpoint(tmp_path / "a.npz")
    with pytest.raises(WeightsError, match="must hold one checkpoint .* found none"):
        read_checkpoint(tmp_path)
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(WeightsError, match=r"must end in \.safetensors"):
        read_checkpoint(tmp_path / "a.txt")


@pytest.mark.parametrize("wrap", ["state_dict", "model", "teacher"])
def test_training_scripts_wrappers_are_opened(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], wrap: str
) -> None:
    write_checkpoint(make_checkpoint(**FITTING["timm"]), tmp_path / "a.pth", "timm")
    state = torch.load(tmp_path / "a.pth", weights_only=True)
    torch.save({wrap: {f"module.{name}": value for name, value in state.items()}, "epoch": 3}, tmp_path / "b.pth")
    read = read_checkpoint(tmp_path / "b.pth", hints=Hints(heads=4), allow_pickle=True)
    assert torch.equal(read.tensors["norm.bias"], state["norm.bias"])


ABSURD = [None, "abc", [1], {}, -1, 0, 10**9, 10**400, 1e308, True]


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: str(value)[:12])
def test_absurd_values_in_hf_config(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], value: Any) -> None:
    tower = {**FITTING["clip"], "positions": PositionConfig(resample="hf")}
    for folder, fields in {"vit": FITTING["hf"], "clip": tower}.items():
        file = tmp_path / folder / "config.json"
        write_checkpoint(make_checkpoint(**fields), tmp_path / folder, "hf")
        honest = json.loads(file.read_text())
        for name in honest:
            file.write_text(json.dumps({**honest, name: value}))
            with suppress(VitrailError):
                read_checkpoint(tmp_path / folder)


@pytest.mark.parametrize(
    ("format_name", "key"),
    [
        ("hf", "vit.embeddings.position_embeddings"),
        ("hf", "vit.encoder.layer.0.attention.attention.query.weight"),
        ("timm", "pos_embed"),
    ],
)
def test_a_number_in_place_of_a_tensor(
    tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], format_name: FormatName, key: str
) -> None:
    write_checkpoint(make_checkpoint(**FITTING[format_name]), tmp_path / "model", format_name)
    (file,) = find_files(tmp_path / "model")
    save_file({**load_file(file), key: torch.tensor(1.0)}, tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match="must have|not those|shape"):
        read_checkpoint(tmp_path / "a.safetensors", hints=Hints(heads=4))


@pytest.mark.parametrize("value", ABSURD, ids=lambda value: str(value)[:12])
def test_absurd_values_in_timm_config(tmp_path: Path, make_checkpoint: Callable[..., Checkpoint], value: Any) -> None:
    write_checkpoint(make_checkpoint(**FITTING["timm"]), tmp_path / "model", "timm")
    honest = json.loads((tmp_path / "model" / "config.json").read_text())
    for part in ("model_args", "pretrained_cfg"):
        for name in honest[part]:
            changed = {**honest, part: {**honest[part], name: value}}
            (tmp_path / "model" / "config.json").write_text(json.dumps(changed))
            with suppress(VitrailError):
                read_checkpoint(tmp_path / "model")


# --- Any damage to any file: a clear error or the same model, never a crash, a hang or another model. ---


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Checkpoint, Path]]:
    """One honest file of every format."""
    from conftest import TINY, randomize
    from vitrail.data.preprocess import preset
    from vitrail.model import ViT

    folder = tmp_path_factory.mktemp("honest")
    made: dict[str, tuple[Checkpoint, Path]] = {}
    for name, fields in FITTING.items():
        config = replace(TINY, depth=1, **fields)
        tensors = randomize(ViT(config)).state_dict()
        checkpoint = Checkpoint(config=config, tensors=tensors, preprocess=preset("google", config.image_size))
        path = folder / f"{name}{FORMATS[name].suffixes[0]}"
        write_checkpoint(checkpoint, path, name)
        made[name] = checkpoint, path
    return made


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FITTING)
def test_damage_is_an_error_or_harmless(honest: dict[str, tuple[Checkpoint, Path]], tmp_path: Path, name: str) -> None:
    checkpoint, path = honest[name]
    (file, *_) = find_files(path)
    copy = tmp_path / file.name
    if path.is_dir():
        (tmp_path / "config.json").write_bytes((path / "config.json").read_bytes())

    def read(data: bytes) -> None:
        copy.write_bytes(data)
        tensors = read_checkpoint(copy, hints=Hints(heads=4, image_size=(32, 32)), allow_pickle=True).tensors
        # Formats with checksums (ours, npz, torch's zip) must have noticed; a bare safetensors file has none, so damage
        # within its numbers cannot be seen by anyone, but nothing else may have changed.
        assert tensors.keys() == checkpoint.tensors.keys()
        if name not in ("timm", "hf", "aimv2"):
            for key, tensor in checkpoint.tensors.items():
                assert torch.equal(tensors[key], tensor), f"it went unnoticed in {key}"

    assert attack(read, damaged([file.read_bytes()]), CASES)["refused"] > CASES / 4


@pytest.mark.fuzz
@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_damaged_sidecars(honest: dict[str, tuple[Checkpoint, Path]], tmp_path: Path, name: str) -> None:
    _, path = honest["hf"]
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)

    def read(data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        read_checkpoint(tmp_path)

    assert attack(read, damaged([(path / name).read_bytes()]), CASES)["refused"] > CASES / 10


def test_a_pickle_of_a_view_does_not_bring_the_whole_along(tmp_path: Path) -> None:
    whole = torch.randn(30, 4)
    write_pickle(tmp_path / "a.pth", {"part": whole[:10], "own": whole[20:].clone()})
    state = torch.load(tmp_path / "a.pth", weights_only=True)
    assert torch.equal(state["part"], whole[:10])
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in state.values())


def test_a_file_never_takes_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "precious.txt").write_text("x")
    with pytest.raises(IsADirectoryError), atomic_path(tmp_path / "keep") as draft:
        draft.write_text("new")
    assert (tmp_path / "keep" / "precious.txt").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["keep"]

"""Foreign files, read without trusting them, and written so that a crash never leaves half a file.

Nothing here executes a file's contents: npz members are checked against their headers and sizes before they are read,
pickles are read with `weights_only=True` and only where the caller allows pickles at all.
"""

import argparse
import json
import os
import pickle
import struct
import warnings
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.weights import torch_script
from vitrail.weights.filetypes import describe_pickle, refuse_start
from vitrail.weights.resolve import PICKLES, check_suffix
from vitrail.weights.wrappers import check_no_choice, unwrap
from vitrail.wording import first_line

# torch's dtype → its name in safetensors.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
BOMB_SIZE, BOMB_RATIO = 2**30, 20  # an archive that unpacks to more than both is not a checkpoint


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a weight file holds: tensors by name, the metadata of a safetensors file, and what had to be chosen."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()


def read_contents(path: Path, allow_pickle: bool, ema: bool | None = None) -> Contents:
    """One file of any kind; `ema` chooses between the weights and their average where a torch file has both."""
    if not path.is_file():
        raise WeightsError(f"there is no file {path}.")
    check_suffix(path, allow_pickle)
    refuse_start(path)
    if path.suffix in PICKLES:
        tensors, notes = unwrap(read_pickle(path), path, ema)
        if hollow := [name for name, tensor in tensors.items() if tensor.is_meta]:
            raise WeightsError(
                f"{path} has no numbers for {', '.join(hollow[:5])}: only shapes were saved (the device was 'meta'); "
                "save the model once its weights are loaded."
            )
        return Contents(tensors=tensors, notes=notes)
    check_no_choice(path, ema)
    tensors, metadata = read_safetensors(path) if path.suffix == ".safetensors" else (read_npz(path), {})
    return Contents(tensors=tensors, metadata=metadata)


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors (memory-mapped, so that only what is used is read) and metadata."""
    with _clear_errors(path, "safetensors"), safe_open(path, framework="pt") as file:
        opened = cast("Any", file)
        return {name: opened.get_tensor(name) for name in opened.keys()}, dict(opened.metadata() or {})  # noqa: SIM118


def read_npz(path: Path) -> dict[str, Tensor]:
    """The arrays of an npz file; no pickles, no bombs."""
    with _clear_errors(path, "npz"), zipfile.ZipFile(path) as archive:
        members = _check_archive(archive, path)
        return {member.filename.removesuffix(".npy"): _read_member(archive, member, path) for member in members}


def _check_archive(archive: zipfile.ZipFile, path: Path) -> list[zipfile.ZipInfo]:
    """The members of an archive that is neither a bomb nor ambiguous."""
    members = archive.infolist()
    total = sum(member.file_size for member in members)
    if total > max(BOMB_SIZE, BOMB_RATIO * path.stat().st_size):
        raise WeightsError(f"{path} unpacks to {total / 2**30:.1f} GiB, too much for its size; it is not a checkpoint.")
    names = [member.filename for member in members]
    if len(set(names)) != len(names):
        raise WeightsError(f"{path} has two members with the same name; it is damaged or malicious.")
    return members


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Tensor:
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(stream)
        if dtype.hasobject:
            raise WeightsError(f"{path}: {member.filename} holds Python objects, which we never read.")
        size = dtype.itemsize * int(np.prod([*shape, 1], dtype=object))
        if min([*shape, 0]) < 0 or size != member.file_size - stream.tell():
            raise WeightsError(f"{path}: {member.filename} does not have the size in its header.")
    with archive.open(member) as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
        if stream.read(1):  # reading to the end is what checks the member's CRC
            raise WeightsError(f"{path}: {member.filename} has bytes after its array.")
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:  # NumPy has no bfloat16: JAX saves it as two raw bytes
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))


def read_pickle(path: Path) -> Any:
    """What a torch file holds; only tensors and plain containers are ever unpickled."""
    with _clear_errors(path, "torch checkpoint"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = _check_archive(archive, path)
                if folder := torch_script.folder_of([member.filename for member in members]):
                    return torch_script.read_weights(path, archive, folder)
                if broken := archive.testzip():
                    raise WeightsError(f"{path} is damaged: the checksum of {broken} does not match.")
            plain = all(member.compress_type == zipfile.ZIP_STORED for member in members)  # so that they can be mapped
        else:
            plain = False
        with torch.serialization.safe_globals([argparse.Namespace]):  # the settings that training scripts add
            return _load_weights(path, plain)


def _load_weights(path: Path, plain: bool) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unusual pickles, which load or fail anyway
            return torch.load(path, map_location="cpu", weights_only=True, mmap=plain)
    except (pickle.UnpicklingError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "weights_only" not in str(error):
            raise
        raise WeightsError(
            f"{path} cannot be read as a torch checkpoint of only tensors: {describe_pickle(path)}"
        ) from error


@contextmanager
def _clear_errors(path: Path, kind: str) -> Generator[None]:
    """Whatever a parser raises on a damaged file becomes one clear error."""
    try:
        yield
    except WeightsError:
        raise
    except (SafetensorError, Exception) as error:
        raise WeightsError(
            f"{path} cannot be read as a {kind} file; it is damaged or something else: {first_line(error)}"
        ) from error


@contextmanager
def _synced(path: Path) -> Generator[IO[bytes]]:
    """A new file, which is on the disk at the end."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_npz(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """An npz file as `np.savez` writes it."""
    arrays = {name: _as_array(tensor) for name, tensor in tensors.items()}
    with _synced(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def _as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("V2")
    return tensor.numpy()


def write_pickle(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A state dict as `torch.save` writes it, for the libraries that expect one."""
    with _synced(path) as file:
        torch.save({name: _own_storage(tensor) for name, tensor in tensors.items()}, file)


def _own_storage(tensor: Tensor) -> Tensor:
    """The tensor, copied only if it is part of a larger block of memory, which torch would save as a whole."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def bytes_of(tensor: Tensor) -> memoryview:
    """A tensor's numbers as they are in memory."""
    return cast("Any", tensor.detach().contiguous().flatten().view(torch.uint8).numpy()).data


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensor after tensor, so that no second copy of the weights is ever in memory."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # wide types first: aligned
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with _synced(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(bytes_of(tensors[name]))

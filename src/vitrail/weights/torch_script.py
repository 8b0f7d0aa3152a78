"""The weights of a TorchScript archive, such as OpenAI's CLIP, without running the program that it is.

An archive is a zip: code, which is never looked at; a pickle of the tree of modules; and one file of numbers for each
storage. The pickle names classes of the program and functions of torch. None of them is imported: modules become plain
objects that hold what is stored in them, and the few functions that make tensors and lists have stand-ins here.
"""

import io
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from vitrail.errors import WeightsError

# Members of the archive, in its one folder.
CONSTANTS, TREE, NUMBERS, ORDER = "constants.pkl", "data.pkl", "data", "byteorder"
MAX_TREE, MAX_DEPTH = 64 * 2**20, 64
# torch's names of the types of storages.
STORAGES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class Module:
    """A module of the program: what is stored in it, by name."""

    def __init__(self, *_: Any) -> None:
        self.parts: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.parts = cast("dict[str, Any]", state)


def folder_of(names: list[str]) -> str | None:
    """The folder in the archive, if these are the members of TorchScript's."""
    folders = [name.removesuffix(CONSTANTS) for name in names if name.endswith(f"/{CONSTANTS}")]
    return next((folder for folder in folders if folder + TREE in names), None)


def read_weights(path: Path, archive: zipfile.ZipFile, folder: str) -> dict[str, Tensor]:
    """Every tensor of the program's modules by its name, as their `state_dict` has it."""
    if archive.getinfo(folder + TREE).file_size > MAX_TREE:
        raise WeightsError(f"{path} has a tree of modules of more than {MAX_TREE // 2**20} MiB; it is not a model.")
    if folder + ORDER in archive.namelist() and archive.read(folder + ORDER) != b"little":
        raise WeightsError(f"{path} has numbers whose first byte is the largest; save it on a usual machine.")
    data = archive.read(folder + TREE)
    for operation, argument, _ in pickletools.genops(data):
        if "PUT" in operation.name and cast("int", argument) > len(data):  # Python would make room for all before it
            raise WeightsError(f"{path} is damaged or malicious: it names memory that it cannot need.")
    root = Unpickler(data, _numbers(archive, folder)).load()
    if not isinstance(root, Module):
        raise WeightsError(f"{path} must hold a tree of modules; got {type(root).__name__}.")
    return dict(_tensors(root, "", 0))


def _tensors(module: Module, prefix: str, depth: int) -> Iterator[tuple[str, Tensor]]:
    if depth > MAX_DEPTH:
        raise WeightsError(f"modules must not be more than {MAX_DEPTH} deep in each other.")
    for name, part in module.parts.items():
        if isinstance(part, Tensor):
            yield prefix + name, part
        elif isinstance(part, Module):
            yield from _tensors(part, f"{prefix}{name}.", depth + 1)


def _numbers(archive: zipfile.ZipFile, folder: str) -> Callable[[str, torch.dtype], Tensor]:
    """The numbers of a storage, each read once."""
    seen: dict[str, Tensor] = {}

    def read(key: str, dtype: torch.dtype) -> Tensor:
        if key not in seen:
            seen[key] = torch.frombuffer(bytearray(archive.read(f"{folder}{NUMBERS}/{key}")), dtype=dtype)
        return seen[key]

    return read


class Unpickler(pickle.Unpickler):
    """Knows the stand-ins, and nothing else."""

    def __init__(self, data: bytes, numbers: Callable[[str, torch.dtype], Tensor]) -> None:
        super().__init__(io.BytesIO(data))
        self.numbers = numbers

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name.split(".")[0] == "__torch__":
            return Module
        if module_name == "torch" and global_name in STORAGES:
            return STORAGES[global_name]
        known: dict[tuple[str, str], Any] = {
            ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
            ("collections", "OrderedDict"): OrderedDict,
            **{("torch.jit._pickle", f"build_{kind}list"): list for kind in ("int", "double", "bool", "tensor")},
            ("torch.jit._pickle", "restore_type_tag"): untagged,
        }
        if (module_name, global_name) not in known:
            raise WeightsError(
                f"a TorchScript archive of a model needs no {module_name}.{global_name}; it was not run."
            )
        return known[module_name, global_name]

    def persistent_load(self, pid: Any, /) -> Tensor:
        _, dtype, key, _, _ = pid
        return self.numbers(str(key), dtype)


def untagged(value: Any, tag: Any) -> Any:
    """A list or dictionary, whose type the program declares."""
    return value


def rebuild_tensor(numbers: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    """A tensor of a storage's numbers; torch checks that it has as many."""
    if len(size) != len(stride) or (prod(size) and min(stride, default=0) < 0):
        raise WeightsError(f"a tensor must have a stride for each of its dimensions; got {size} and {stride}.")
    return numbers.as_strided(size, stride, offset)

"""Our own format: one self-describing safetensors file.

The header's metadata holds `vitrail`, JSON text with the format version, model config, preprocessing, class names,
origin, the task, what a calibration found, and a checksum per tensor; and `vitrail.crc32`, the checksum of that text.
Reading checks all of them, so a damaged file is an error and never a slightly different model.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError, WeightsError
from vitrail.files import atomic_path
from vitrail.model import ViTConfig
from vitrail.schema import from_dict, to_dict
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import Format
from vitrail.weights.metadata import Metadata
from vitrail.weights.tensor_files import DTYPES, bytes_of, read_safetensors, write_safetensors

VERSION = 2
BEFORE_TASKS = 1  # what a model of one class per picture still is, so that older readers read it
EXTRA = "extra."  # prefix of the names of `Checkpoint.extras` in the file


def save_checkpoint(checkpoint: Checkpoint, path: str | Path, beside: Mapping[str, str] | None = None) -> None:
    """Write one self-describing file, atomically; `beside` are metadata that are not the model's."""
    target = Path(path)
    if target.suffix != ".safetensors":
        raise WeightsError(f"our checkpoints end in .safetensors; got {target}.")
    with atomic_path(target) as draft:
        write(checkpoint, draft, beside)


def write(checkpoint: Checkpoint, path: Path, beside: Mapping[str, str] | None = None) -> None:
    """Write to a path directly."""
    tensors = {**checkpoint.tensors, **{EXTRA + name: tensor for name, tensor in checkpoint.extras.items()}}
    metadata = to_dict(Metadata(**checkpoint.facts()))
    del metadata["file_format"]  # which is this one
    version = BEFORE_TASKS if checkpoint.suits_older_readers else VERSION
    facts = {"version": version, "config": to_dict(checkpoint.config), **metadata, "crc32": checksums(tensors)}
    text = json.dumps(facts, ensure_ascii=False)
    header = {"vitrail": text, "vitrail.crc32": str(zlib.crc32(text.encode()))}
    write_safetensors(path, tensors, {**header, **(beside or {})})


def read_native(path: Path) -> Checkpoint:
    """Read one of our files, checking version, checksums, completeness and shapes."""
    tensors, metadata = read_safetensors(path)
    return parse_native(path, tensors, metadata)


def parse_native(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], verify: bool = True
) -> Checkpoint:
    """The checkpoint that a file's tensors and metadata describe; `verify` reads every tensor for its checksum."""
    facts = _read_facts(path, metadata)
    if verify and checksums(tensors) != facts.get("crc32"):
        raise WeightsError(f"{path} is damaged: the checksums of its tensors do not match; get a fresh copy.")
    known = {each.name: facts[each.name] for each in fields(Metadata) if each.name in facts}  # newer ones may say more
    try:
        return Checkpoint(
            config=from_dict(ViTConfig, facts.get("config"), "config"),
            **from_dict(Metadata, known, "metadata").facts(),
            tensors={name: tensor for name, tensor in tensors.items() if not name.startswith(EXTRA)},
            extras={name.removeprefix(EXTRA): tensors[name] for name in tensors if name.startswith(EXTRA)},
        )
    except (VitrailError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
        raise WeightsError(f"{path} is damaged: {error}") from error


def _read_facts(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    text = metadata.get("vitrail", "")
    if not text:
        raise WeightsError(f"{path} is not one of our checkpoints: its header has no vitrail metadata.")
    try:
        facts: Any = json.loads(text)
        version = facts["version"]
    except (json.JSONDecodeError, RecursionError, KeyError, TypeError) as error:
        raise WeightsError(f"{path} is damaged: its metadata cannot be read.") from error
    if isinstance(version, int) and version > VERSION:
        raise WeightsError(
            f"{path} has format version {version}; this vitrail reads up to {VERSION}; upgrade: pip install -U vitrail"
        )
    if version not in (BEFORE_TASKS, VERSION) or metadata.get("vitrail.crc32") != str(zlib.crc32(text.encode())):
        raise WeightsError(f"{path} is damaged: the checksum of its metadata does not match; get a fresh copy.")
    return facts


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """CRC-32 of each tensor's type and bytes."""

    def checksum(tensor: Tensor) -> int:
        return zlib.crc32(bytes_of(tensor), zlib.crc32(DTYPES[tensor.dtype].encode()))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(tensors, pool.map(checksum, tensors.values()), strict=True))


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of all the weights with their names, types and shapes: the same for the same weights in any file.

    Half-precision numbers count as float32, in which they are computed: a loaded model is its file.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        tensor = tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
        digest.update(f"{name} {DTYPES[tensor.dtype]} {tuple(tensor.shape)}\n".encode())
        digest.update(bytes_of(tensor))
    return digest.hexdigest()


FORMAT = Format(
    name="vitrail",
    suffixes=(".safetensors",),
    holds=None,
    write=write,
    how_to_load=lambda checkpoint, path: f'vitrail.load("{path}")',
    self_describing=(".safetensors",),
)

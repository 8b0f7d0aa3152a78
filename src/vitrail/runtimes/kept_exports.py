"""Checkpoints as ONNX files in the user's cache: converting one takes longer than many jobs do."""

import atexit
import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from vitrail import __version__
from vitrail.cache import cache_folder, make_room, mark_used
from vitrail.errors import WeightsError
from vitrail.files import atomic_path
from vitrail.runtimes.exporting import GRAPH_FORM, OPSET, prepare_export, write_onnx
from vitrail.runtimes.graph import GraphOptions
from vitrail.runtimes.manifest import KEY, Manifest, read_manifest
from vitrail.runtimes.onnx_file import read_onnx_facts
from vitrail.schema import to_dict
from vitrail.weights.checkpoint import Checkpoint

MOST_BYTES = 4 * 2**30  # of all exports that are kept
MOST_EXPORTS = 100
GRAPH = "graph.onnx"


@dataclass(frozen=True, kw_only=True)
class KeptExport:
    """An ONNX file, and what it says about itself."""

    path: Path
    manifest: Manifest


def exports_folder() -> Path:
    return cache_folder() / "exports"


def find_export(checkpoint: Checkpoint, sha256: str) -> KeptExport | None:
    """The export of a checkpoint whose weights have this fingerprint, if one is kept and whole."""
    path = exports_folder() / _name(checkpoint, sha256) / GRAPH
    try:
        facts = read_onnx_facts(path)
        manifest = read_manifest(facts.metadata.get(KEY, ""), path)
    except (WeightsError, OSError):
        return None
    same = manifest.weights_sha256 == sha256 and manifest.config == json.dumps(to_dict(checkpoint.config))
    if not same or manifest.graph_crc32 != facts.crc32:
        return None
    mark_used(path.parent)
    return KeptExport(path=path, manifest=manifest)


def make_export(checkpoint: Checkpoint, sha256: str) -> KeptExport:
    """Convert a checkpoint, and keep the result where the cache has room for it; elsewhere it lasts until the end."""
    exported = prepare_export(checkpoint, GraphOptions(), sha256)
    folder = exports_folder()
    size = sum(tensor.numel() * 4 for tensor in checkpoint.tensors.values())
    if not _has_room(folder, size):
        folder = Path(tempfile.mkdtemp(prefix="vitrail-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    else:
        make_room(folder, MOST_BYTES - size, MOST_EXPORTS - 1)
    target = folder / _name(checkpoint, sha256)
    with atomic_path(target) as draft:
        draft.mkdir()
        write_onnx(exported, draft / GRAPH)
    return KeptExport(path=target / GRAPH, manifest=exported.manifest)


def _has_room(folder: Path, size: int) -> bool:
    """Whether an export of this size may and can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder):
            return size <= MOST_BYTES and shutil.disk_usage(folder).free > 3 * size
    except OSError:
        return False


def _name(checkpoint: Checkpoint, sha256: str) -> str:
    """Of the folder of an export: the weights, and whatever else decides about the graph."""
    rest = [to_dict(checkpoint.config), GRAPH_FORM, OPSET, version("torch"), __version__]
    return f"{sha256[:32]}-{hashlib.sha256(json.dumps(rest).encode()).hexdigest()[:12]}"

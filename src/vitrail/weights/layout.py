"""Which files of a path are the checkpoint or the export, by their names only. Needs no torch."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from vitrail.errors import WeightsError
from vitrail.files import sha256_of

MAX_SIDECAR = 10 * 2**20
PICKLES = {".pth", ".pt", ".bin", ".ckpt"}
CHECKPOINT_SUFFIXES = frozenset({".safetensors", ".npz"} | PICKLES)
# Exports hold a computation instead of weights: they can be used, and neither converted nor trained.
EXPORTS = {".onnx": "an ONNX model", ".xml": "an OpenVINO model", ".pt2": "a program of torch.export"}
EXPORT_IN_FOLDER = "model.xml"  # OpenVINO's files come in twos, and so in a folder
WEIGHTS_IN_FOLDERS = ("model.safetensors", "pytorch_model.bin", "weights/best.safetensors")


def find_files(source: Path) -> list[Path]:
    """The weight files of a path: itself, or what a folder (of a run, or of the hub) holds."""
    if not source.is_dir():
        if re.search(r"-\d{5}-of-(?!00001)\d{5}\.\w+$", source.name):
            raise WeightsError(
                f"{source} is one of several files of a checkpoint; name the folder with all of them and their index "
                f"(…index.json): {source.parent}"
            )
        return [source]
    for name in WEIGHTS_IN_FOLDERS:
        if (source / name).is_file():
            return [source / name]
        index = source / f"{name}.index.json"
        if index.is_file():
            return _read_index(index)
    arrays = sorted(source.glob("*.npz")) or sorted(source.glob("*.safetensors"))
    if len(arrays) == 1:
        return arrays
    count = f"{len(arrays)} of them" if arrays else "none"
    raise WeightsError(f"{source} must hold one checkpoint ({', '.join(WEIGHTS_IN_FOLDERS)}); found {count}.")


def _read_index(index: Path) -> list[Path]:
    """The files of a sharded checkpoint, all of which must be beside their index."""
    facts = read_json(index)
    weights: Any = facts.get("weight_map")
    if not isinstance(weights, Mapping) or not weights:
        raise WeightsError(f"{index} must have a weight_map from tensor names to files.")
    names = sorted({str(name) for name in cast("Mapping[Any, Any]", weights).values()})
    for name in names:
        if Path(name).name != name or name.startswith("."):
            raise WeightsError(f"{index} points outside its own folder: {name!r}; we do not follow that.")
    return [index.parent / name for name in names]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that we do not trust."""
    if path.stat().st_size > MAX_SIDECAR:
        raise WeightsError(f"{path} is larger than {MAX_SIDECAR // 2**20} MiB, too large for a configuration.")
    try:
        facts: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(facts, dict):
        raise WeightsError(f"{path} must hold a JSON object; got {type(facts).__name__}.")
    return cast("dict[str, Any]", facts)


def checksums_of(path: str | Path) -> dict[str, str]:
    """File name → sha256 of the weight files of a path."""
    return {file.name: sha256_of(file) for file in find_files(Path(path))}


def find_export(source: Path) -> Path | None:
    """The export that a path means: itself by its suffix, or the one that a folder holds."""
    if source.is_dir():
        return source / EXPORT_IN_FOLDER if (source / EXPORT_IN_FOLDER).is_file() else None
    return source if source.suffix.lower() in EXPORTS else None


def files_of(path: Path) -> list[Path]:
    """The files of a checkpoint or an export that decide its answers."""
    export = find_export(path)
    if export is None:
        return find_files(path)
    return [export, export.with_suffix(".bin")] if export.suffix.lower() == ".xml" else [export]


def stamps_of(path: Path) -> tuple[tuple[str, int, int, int, int], ...]:
    """When those files last changed; whoever writes to one changes this."""
    stats = [(str(file), file.stat()) for file in files_of(path)]
    return tuple((name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino) for name, stat in stats)


def check_suffix(path: Path, allow_pickle: bool) -> None:
    """Raise unless the name is that of a checkpoint which may be read."""
    if path.suffix in (".safetensors", ".npz"):
        return
    if path.suffix.lower() in EXPORTS:
        raise WeightsError(
            f"{path} is {EXPORTS[path.suffix.lower()]}, an export that can predict, embed and be evaluated; for "
            "anything else name the checkpoint that it was exported from."
        )
    if path.suffix not in PICKLES:
        raise WeightsError(
            f"{path} must end in .safetensors, .npz, .pth, .pt, .ckpt or .bin to be read as a checkpoint."
        )
    if not allow_pickle:
        raise WeightsError(
            f"{path} is a pickle, which we do not load directly; convert it once: "
            f"vitrail convert {path} {path.with_suffix('.safetensors')}"
        )

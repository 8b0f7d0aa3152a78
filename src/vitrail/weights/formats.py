"""All formats in one place: which there are, how to distinguish them, and how to read or write any of them."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from vitrail.errors import VitrailError, WeightsError, suggest
from vitrail.files import atomic_path, sha256_of
from vitrail.model import ViTConfig
from vitrail.weights import native
from vitrail.weights.catalogue import FormatName, foreign_formats
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.files import Contents, read_contents
from vitrail.weights.format import ForeignFormat, Format
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.wrappers import describe_parts, strip_prefix

FOREIGN: dict[FormatName, ForeignFormat] = {each.name: each for each in foreign_formats()}
FORMATS: dict[FormatName, Format] = {"vitrail": native.FORMAT, **FOREIGN}
SUFFIXES: dict[FormatName, tuple[str, ...]] = {name: each.suffixes for name, each in FORMATS.items()}
# What a reader raises when a file has something absurd in place of a number or a list.
NONSENSE = (TypeError, ValueError, OverflowError, AttributeError, KeyError, IndexError, RuntimeError)
SIDECARS = ("config.json", "preprocessor_config.json", "processor_config.json")
MAX_SIDECAR = 10 * 2**20
WEIGHTS_IN_FOLDERS = ("model.safetensors", "pytorch_model.bin", "weights/best.safetensors")


def read_checkpoint(
    path: str | Path,
    *,
    format_name: FormatName | None = None,
    hints: Hints | None = None,
    allow_pickle: bool = False,
    verify: bool = True,
) -> Checkpoint:
    """Any checkpoint that we know, from a file or a folder; `format_name` names the format if its keys do not.

    `verify` compares the checksums of our own files; npz and torch files are always checked by their archives.
    """
    source, hints = Path(path), hints or Hints()
    files = find_files(source)
    contents = read_files(files, allow_pickle, hints.ema)
    if "vitrail" in contents.metadata and format_name in (None, "vitrail"):
        return apply_hints(native.parse_native(files[0], contents.tensors, contents.metadata, verify), hints)
    if format_name == "vitrail":
        raise WeightsError(f"{source} is not a checkpoint of vitrail; omit the format to have it detected.")
    tensors, remarks = strip_prefix(contents.tensors, lambda state: bool(_matches(state, format_name)))
    check_distilled(tensors, source)
    name = format_name or detect_format(tensors, source)
    raw = Raw(path=files[0], tensors=tensors, sidecars=read_sidecars(files[0].parent))
    try:
        checkpoint = FOREIGN[name].read(raw, hints)
    except VitrailError as error:
        message = str(error)
        raise WeightsError(message if str(source) in message else f"{source}, read as {name}: {message}") from error
    except NONSENSE as error:
        raise WeightsError(f"{source}, read as {name}, is inconsistent: {error}") from error
    return replace(
        checkpoint,
        file_format=name,
        origin=replace(checkpoint.origin, source=str(path)),
        notes=(*contents.notes, *checkpoint.notes),
        remarks=(*remarks, *checkpoint.remarks),
    )


def apply_hints(checkpoint: Checkpoint, hints: Hints) -> Checkpoint:
    """Our checkpoints state everything; the user's hints still override it, as far as the weights allow."""
    config = checkpoint.config
    block = replace(
        config.block,
        activation=hints.activation or config.block.activation,
        norm_eps=hints.norm_eps or config.block.norm_eps,
        attention_scale=hints.attention_scale or config.block.attention_scale,
    )
    pooling, heads = hints.pooling or config.pooling, hints.heads or config.heads
    if hints.image_size not in (None, config.image_size):
        raise WeightsError(f"this checkpoint is for pictures of {config.image_size}; resample it to change that.")
    return replace(checkpoint, config=replace(config, block=block, pooling=pooling, heads=heads))


def _matches(tensors: dict[str, Tensor], format_name: FormatName | None = None) -> list[FormatName]:
    """The formats, or the one in question, whose keys these are."""
    names: list[FormatName] = [format_name] if format_name else list(FOREIGN)
    return [name for name in names if FOREIGN[name].recognises(tensors)]


def check_distilled(tensors: Mapping[str, Tensor], source: Path) -> None:
    """Raise for a DeiT with a second class token and a second head, which are unlike anything in the paper's ViT."""
    for name in tensors:
        if name.rpartition(".")[2] in ("dist_token", "distillation_token"):
            raise WeightsError(
                f"{source} is a DeiT that was trained with distillation: it has the token {name} and a head of its own "
                "for it, which the paper's ViT does not have; use the DeiT without distillation "
                "(deit_base_patch16_224 instead of deit_base_distilled_patch16_224)."
            )


def detect_format(tensors: dict[str, Tensor], source: Path) -> FormatName:
    """The format whose keys these are."""
    matches = _matches(tensors)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise WeightsError(f"{source} could be {' or '.join(matches)}; name one with source_format=.")
    if parts := describe_parts(tensors, lambda state: bool(_matches(state))):
        raise WeightsError(f"the keys of {source} are not those of one ViT: {parts}.")
    shown = ", ".join(list(tensors)[:5]) or "none"
    raise WeightsError(
        f"the keys of {source} are those of no ViT that we know ({', '.join(FOREIGN)}); its first keys: {shown}."
    )


def find_files(source: Path) -> list[Path]:
    """The weight files of a path: itself, or what a folder (of a run, or of the hub) holds."""
    if not source.is_dir():
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


def read_files(files: list[Path], allow_pickle: bool, ema: bool | None = None) -> Contents:
    """What one or several files hold together."""
    contents = read_contents(files[0], allow_pickle, ema)
    for file in files[1:]:
        more = read_contents(file, allow_pickle, ema).tensors
        if twice := sorted(more.keys() & contents.tensors.keys()):
            raise WeightsError(f"{file} has tensors that another shard has too: {', '.join(twice[:5])}.")
        contents.tensors.update(more)
    return contents


def read_sidecars(folder: Path) -> dict[str, Any]:
    """The JSON files that describe the weights beside them."""
    return {name: read_json(folder / name) for name in SIDECARS if (folder / name).is_file()}


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


def refusals(config: ViTConfig, format_name: FormatName) -> list[str]:
    """Why a format cannot hold a model of this config; empty if it can."""
    return FORMATS[format_name].refusals(config)


def check_format(name: str) -> None:
    """Raise unless this is the name of a format."""
    if name not in SUFFIXES:
        raise WeightsError(f"unknown format {name!r}; {suggest(name, SUFFIXES)}")


def choose_format(path: Path) -> FormatName:
    """The format that a path's suffix implies: ours if we have it, else the only one that does."""
    names: list[FormatName] = [name for name, suffixes in SUFFIXES.items() if path.suffix in suffixes]
    if "vitrail" in names or len(names) == 1:
        return names[0]
    if names:
        what = f"a file that ends in {path.suffix}" if path.suffix else "a folder"
        raise WeightsError(f"{what} can be {' or '.join(names)}; choose with format=; got {path}.")
    known = sorted({suffix for suffixes in SUFFIXES.values() for suffix in suffixes if suffix})
    raise WeightsError(f"a checkpoint must end in {', '.join(known)}, or be a folder; got {path}.")


def check_target(path: Path, format_name: FormatName) -> None:
    """Raise unless the path can hold the format."""
    check_format(format_name)
    if path.suffix not in SUFFIXES[format_name]:
        kinds = " or ".join(suffix or "no suffix (a folder)" for suffix in SUFFIXES[format_name])
        raise WeightsError(f"a {format_name} checkpoint must have {kinds}; got {path}.")


def check_writable(config: ViTConfig, path: Path, format_name: FormatName) -> None:
    """Raise unless the format can hold the model and the path can hold the format."""
    check_target(path, format_name)
    if reasons := refusals(config, format_name):
        raise WeightsError(f"{format_name} cannot hold this model: {'; '.join(reasons)}.")


def check_replaceable(path: Path) -> None:
    """Raise if a folder that would be replaced holds anything but a checkpoint."""
    if not path.is_dir():
        return
    known = re.compile(
        r"(config|(pre)?processor_config)\.json|(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?"
    )
    others = sorted(item.name for item in path.iterdir() if not known.fullmatch(item.name) or item.is_dir())
    if others:
        raise WeightsError(
            f"{path} holds other things, which we will not delete: {', '.join(others[:5])}; name another folder."
        )


def write_checkpoint(checkpoint: Checkpoint, path: str | Path, format_name: FormatName = "vitrail") -> None:
    """Write any format, atomically; what the format cannot express is an error, never dropped."""
    target = Path(path)
    check_writable(checkpoint.config, target, format_name)
    check_replaceable(target)
    with atomic_path(target) as draft:
        write_draft(checkpoint, draft, format_name)


def write_draft(checkpoint: Checkpoint, draft: Path, format_name: FormatName) -> None:
    """Write to a temporary path; `check_writable` comes first."""
    FORMATS[format_name].write(checkpoint, draft)

"""Any checkpoint that we know, from anywhere: what prediction, training and conversion start from."""

import inspect
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import AssumptionWarning, ConfigError, VitrailError, WeightsError, suggest
from vitrail.model import ResNetStem, ViTConfig, variant
from vitrail.schema import from_dict
from vitrail.untrusted import read_yaml
from vitrail.weights import native
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.families import ATTENDING, OTHERS, Family, Shapes, name_family, refuse
from vitrail.weights.foreign import (
    aimv2,
    beit,
    big_vision,
    clip,
    d2l,
    dinov2,
    dinov3,
    eva,
    google,
    huggingface,
    lucidrains,
    pe,
    timm,
    tintn,
    tips,
    torchvision,
)
from vitrail.weights.formats import ForeignFormat, Format
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.metadata import ClassNames, name_classes, read_class_names
from vitrail.weights.resolve import FormatName, Located, find_files, is_run, locate, names_model
from vitrail.weights.sidecars import CONFIG, read_sidecars
from vitrail.weights.tensor_files import Contents, read_contents
from vitrail.weights.wrappers import describe_parts, strip_prefix

# The table of formats: a new one is a file of its own, its name in `resolve.FormatName`, and its module here.
_MODULES = (
    google,
    big_vision,
    timm,
    huggingface,
    torchvision,
    dinov2,
    dinov3,
    tips,
    clip,
    pe,
    eva,
    beit,
    aimv2,
    lucidrains,
    tintn,
    d2l,
)
FOREIGN: dict[FormatName, ForeignFormat] = {each.FORMAT.name: each.FORMAT for each in _MODULES}
FORMATS: dict[FormatName, Format] = {"vitrail": native.FORMAT, **FOREIGN}


def check_format(name: str) -> None:
    """Raise unless this is the name of a format."""
    if name not in FORMATS:
        raise WeightsError(f"unknown format {name!r}; {suggest(name, FORMATS)}")


def choose_format(path: Path) -> FormatName:
    """The format that a path's suffix implies: ours if we have it, else the only one that does."""
    names: list[FormatName] = [name for name, each in FORMATS.items() if path.suffix in each.suffixes]
    if "vitrail" in names or len(names) == 1:
        return names[0]
    if names:
        what = f"a file that ends in {path.suffix}" if path.suffix else "a folder"
        raise WeightsError(f"{what} can be {' or '.join(names)}; choose with `format=`; got {path}.")
    known = sorted({suffix for each in FORMATS.values() for suffix in each.suffixes if suffix})
    raise WeightsError(f"a checkpoint must end in {', '.join(known)}, or be a folder; got {path}.")


# What a reader raises when a file has something absurd in place of a number or a list.
NONSENSE = (TypeError, ValueError, ArithmeticError, AttributeError, KeyError, IndexError, RuntimeError)


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
    shapes = shapes_of(tensors)  # reading takes the tensors out
    raw = Raw(path=files[0], tensors=tensors, sidecars=read_sidecars(files[0].parent))
    name = format_name or detect_format(raw, source)
    if hints.architecture is not None and name != "timm":
        raise WeightsError(f"architecture names a model of timm, and {source} is in the format {name}; omit it.")
    try:
        checkpoint = FOREIGN[name].read(raw, hints)
    except VitrailError as error:
        refuse_family(shapes, source, raw.sidecars)
        message = error.message
        raise WeightsError(message if str(source) in message else f"{source}, read as {name}: {message}") from error
    except NONSENSE as error:
        raise WeightsError(f"{source}, read as {name}, is inconsistent: {error}") from error
    check_patches(checkpoint, hints)
    return replace(
        checkpoint,
        file_format=name,
        origin=replace(checkpoint.origin, source=str(path)),
        notes=(*contents.notes, *checkpoint.notes, *_unread(raw, name)),
        remarks=(*remarks, *checkpoint.remarks),
    )


def _unread(raw: Raw, name: FormatName) -> tuple[str, ...]:
    """A note on a `config.json` beside weights of a format that has none: those that are folders read theirs."""
    if CONFIG not in raw.sidecars or "" in FOREIGN[name].suffixes:
        return ()
    return (
        f"the {CONFIG} beside the weights is not read with the format {name}: what it says of the model may differ",
    )


def apply_hints(checkpoint: Checkpoint, hints: Hints) -> Checkpoint:
    """Our checkpoints state everything; the user's hints still override it, as far as the weights allow."""
    config = checkpoint.config
    if hints.architecture is not None:
        raise WeightsError("architecture names a model of timm, and this checkpoint is our own; omit it.")
    if hints.image_size not in (None, config.image_size):
        raise WeightsError(f"this checkpoint is for pictures of {config.image_size}; resample it to change that.")
    check_patches(checkpoint, hints)
    pooling, heads = hints.pooling or config.pooling, hints.heads or config.heads
    config = replace(config, block=hints.override(config.block), pooling=pooling, heads=heads)
    return replace(checkpoint, config=config)


def check_patches(checkpoint: Checkpoint, hints: Hints) -> None:
    """Raise if the user passes another patch size than the weights have."""
    rows, columns = checkpoint.config.patch_size
    if hints.patch_size not in (None, (rows, columns)):
        raise WeightsError(
            f"this checkpoint has patches of {rows}×{columns}, which no hint can change; omit `patch_size=`."
        )


def _matches(tensors: dict[str, Tensor], format_name: FormatName | None = None) -> list[FormatName]:
    """The formats, or the one in question, whose keys these are."""
    names: list[FormatName] = [format_name] if format_name else list(FOREIGN)
    return [name for name in names if FOREIGN[name].recognises(tensors)]


def refuse_family(
    shapes: Shapes, source: Path, sidecars: Mapping[str, Any], families: Iterable[Family] = ATTENDING
) -> None:
    """Raise with the name of what this is, if its `config.json`, or the names of its tensors, reveal it."""
    if family := name_family(shapes, sidecars, families):
        raise WeightsError(refuse(family, source, FOREIGN))


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def detect_format(raw: Raw, source: Path) -> FormatName:
    """The format whose keys these are."""
    tensors = raw.tensors
    matches = _matches(tensors)
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise WeightsError(f"{source} could be {' or '.join(matches)}; name one with `source_format=`.")
    shapes = shapes_of(tensors)
    refuse_family(shapes, source, raw.sidecars)
    if parts := describe_parts(tensors, lambda state: bool(_matches(state))):
        raise WeightsError(f"the keys of {source} are not those of one ViT: {parts}.")
    refuse_family(shapes, source, raw.sidecars, OTHERS)
    timm.refuse_architecture(raw)
    shown = ", ".join(list(tensors)[:5]) or "none"
    raise WeightsError(
        f"the keys of {source} are those of no ViT that we know ({', '.join(FOREIGN)}); its first keys: {shown}."
    )


def read_files(files: list[Path], allow_pickle: bool, ema: bool | None = None) -> Contents:
    """What one or several files hold together."""
    contents = read_contents(files[0], allow_pickle, ema)
    for file in files[1:]:
        more = read_contents(file, allow_pickle, ema).tensors
        if twice := sorted(more.keys() & contents.tensors.keys()):
            raise WeightsError(f"{file} has tensors that another shard has too: {', '.join(twice[:5])}.")
        contents.tensors.update(more)
    return contents


def check_source(source: str | Path, *, class_names: ClassNames | None = None) -> ViTConfig | None:
    """Raise if `open_checkpoint` could only fail; the config of a model that is on this machine.

    Its file is read but for the checksums; no model is built, and nothing is downloaded.
    """
    located = locate(source)
    names = None if class_names is None else read_class_names(class_names)
    if located.path is None:
        return None
    return _named(read_checkpoint(located.path, verify=False), names, class_names).config


def open_checkpoint(
    source: str | Path | Located,
    *,
    format_name: FormatName | None = None,
    hints: Hints | None = None,
    class_names: ClassNames | None = None,
    allow_pickle: bool = False,
    verify: bool = True,
) -> Checkpoint:
    """The checkpoint at a path, a run folder, `hf://owner/name` or `google://NAME`, or a bundled one by its name.

    What a foreign file leaves open is an `AssumptionWarning`. Our own files settled that when they were converted: each
    states everything, and keeps the notes. `class_names` are those of its head, in order, or a file with them, for a
    checkpoint that has none or others.
    """
    located = source if isinstance(source, Located) else locate(source, allow_pickle=allow_pickle)
    names = None if class_names is None else read_class_names(class_names)
    path = located.fetch(allow_pickle)
    checkpoint = read_checkpoint(path, format_name=format_name, hints=hints, allow_pickle=allow_pickle, verify=verify)
    checkpoint = _settle_google(checkpoint, hints) if located.is_google else checkpoint
    if checkpoint.notes and checkpoint.file_format != "vitrail":
        warnings.warn(AssumptionWarning(located.name, checkpoint.notes), stacklevel=_levels_to_the_caller())
    return _named(checkpoint, names, class_names)


def _named(checkpoint: Checkpoint, names: tuple[str, ...] | None, given: ClassNames | None) -> Checkpoint:
    where = str(given) if isinstance(given, str | Path) else "class_names"
    return checkpoint if names is None else name_classes(checkpoint, checkpoint.config.num_classes, names, where)


def _settle_google(checkpoint: Checkpoint, hints: Hints | None) -> Checkpoint:
    """A mirror of Google's is in timm's layout; it still computes what Google trained."""
    config = checkpoint.config
    stem = config.stem
    if isinstance(stem, ResNetStem):
        stem = ResNetStem(blocks=stem.blocks, width_factor=stem.width_factor)
    block = replace(config.block, activation=(hints and hints.activation) or "gelu_tanh")
    positions = replace(config.positions, resample="google")
    return replace(checkpoint, config=replace(config, block=block, stem=stem, positions=positions))


def _levels_to_the_caller() -> int:
    """How many frames up the first one outside of vitrail is, so that a warning shows the user's own line."""
    frame, levels = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "vitrail":
        frame, levels = frame.f_back, levels + 1
    return levels


def open_config(model: str, changes: dict[str, Any]) -> ViTConfig:
    """The config that a name from `variants`, a YAML file or a checkpoint stands for, with some fields changed."""
    if Path(model).suffix in (".yaml", ".yml"):
        return replace(from_dict(ViTConfig, read_yaml(Path(model)) or {}), **changes)
    if names_model(model) or is_run(Path(model)):
        return replace(open_checkpoint(model, allow_pickle=True, verify=False).config, **changes)
    try:
        return variant(model, **changes)
    except ConfigError:
        if "/" in model:
            check_source(model)
        raise

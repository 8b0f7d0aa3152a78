"""A checkpoint from anywhere: what prediction and training start from."""

import inspect
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.errors import AssumptionWarning, ConfigError, WeightsError
from vitrail.model import ViTConfig, variant
from vitrail.reading import read_yaml
from vitrail.schema import from_dict
from vitrail.weights import bundled
from vitrail.weights.checkpoint import Checkpoint, FormatName
from vitrail.weights.class_names import ClassNames, name_classes, read_class_names
from vitrail.weights.files import PICKLES, check_suffix
from vitrail.weights.formats import SUFFIXES, WEIGHTS_IN_FOLDERS, find_files, read_checkpoint
from vitrail.weights.hub import check_address, fetch, find_path, settle_google
from vitrail.weights.infer import Hints

_SUFFIXES = {suffix for suffixes in SUFFIXES.values() for suffix in suffixes if suffix} | PICKLES
RUN_CONFIG = "config.yaml"  # in the folder of a training run


def names_checkpoint(text: str) -> bool:
    """Whether a text is a checkpoint's by its looks: an address, a bundled name, a suffix, or a folder with weights."""
    if text in bundled.NAMES or text.startswith(("hf://", "google://")) or Path(text).suffix.lower() in _SUFFIXES:
        return True
    try:
        return Path(text).is_dir() and bool(find_files(Path(text)))
    except (WeightsError, OSError, ValueError):
        return False


def is_run_or_weights(text: str) -> bool:
    """Whether a text can only be a checkpoint, or a training run, and never a picture or a folder of them."""
    path = Path(text)
    if not path.is_dir():
        return names_checkpoint(text)
    files = (*WEIGHTS_IN_FOLDERS, *(f"{name}.index.json" for name in WEIGHTS_IN_FOLDERS))
    return any((path / name).is_file() for name in files) or is_run(path)


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a training run, with or without weights to use."""
    return (folder / RUN_CONFIG).is_file() and (folder / "weights").is_dir()


def check_source(source: str | Path, *, allow_pickle: bool = False) -> None:
    """Raise where `open_checkpoint` could only fail: nothing is read or downloaded for that."""
    text = str(source)
    if check_address(text):
        return
    if isinstance(source, str) and text in bundled.NAMES:
        bundled.bundled_path(text)
        return
    path = find_path(text)
    if path.is_dir() and is_run(path) and not (path / "weights" / "best.safetensors").is_file():
        raise WeightsError(f"the training run {text} has no weights yet: its first epoch has not ended.")
    for file in find_files(path):
        check_suffix(file, allow_pickle)


def open_checkpoint(
    source: str | Path,
    *,
    format_name: FormatName | None = None,
    hints: Hints | None = None,
    class_names: ClassNames | None = None,
    allow_pickle: bool = False,
    verify: bool = True,
) -> Checkpoint:
    """The checkpoint at a path, a run folder, `hf://owner/name` or `google://NAME`, or a bundled one by its name.

    What a foreign file leaves open is an `AssumptionWarning`. A file of ours was told that when it was converted: it
    says everything, and keeps the notes. `class_names` are those of its head, in order, or a file with them, for a
    checkpoint that has none or others.
    """
    check_source(source, allow_pickle=allow_pickle)
    names = None if class_names is None else read_class_names(class_names)
    path = fetch(source, allow_pickle)
    checkpoint = read_checkpoint(path, format_name=format_name, hints=hints, allow_pickle=allow_pickle, verify=verify)
    checkpoint = settle_google(source, checkpoint, hints)
    if checkpoint.notes and checkpoint.file_format != "vitrail":
        warnings.warn(AssumptionWarning(str(source), checkpoint.notes), stacklevel=_levels_to_the_caller())
    if names is None:
        return checkpoint
    return name_classes(checkpoint, names, str(class_names) if isinstance(class_names, str | Path) else "class_names")


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
    if names_checkpoint(model) or is_run(Path(model)):
        return replace(open_checkpoint(model, allow_pickle=True, verify=False).config, **changes)
    try:
        return variant(model, **changes)
    except ConfigError:
        if "/" in model:
            check_source(model)
        raise

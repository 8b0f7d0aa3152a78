"""A checkpoint from anywhere: what prediction and training start from."""

import inspect
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.errors import AssumptionWarning, ConfigError
from vitrail.model import ResNetStem, ViTConfig, variant
from vitrail.reading import read_yaml
from vitrail.schema import from_dict
from vitrail.weights.catalogue import FormatName
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.class_names import ClassNames, name_classes, read_class_names
from vitrail.weights.infer import Hints
from vitrail.weights.locate import Located, is_run, locate, names_model
from vitrail.weights.reader import read_checkpoint


def check_source(source: str | Path, *, class_names: ClassNames | None = None) -> ViTConfig | None:
    """Raise if `open_checkpoint` could only fail; the config of a model that is on this machine.

    Its file is read but for the checksums; no model is built, and nothing is downloaded.
    """
    located = locate(source)
    names = None if class_names is None else read_class_names(class_names)
    if located.path is None:
        return None
    checkpoint = read_checkpoint(located.path, verify=False)
    return (checkpoint if names is None else name_classes(checkpoint, names, str(class_names))).config


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
    located = locate(source, allow_pickle=allow_pickle)
    names = None if class_names is None else read_class_names(class_names)
    path = located.fetch(allow_pickle)
    checkpoint = read_checkpoint(path, format_name=format_name, hints=hints, allow_pickle=allow_pickle, verify=verify)
    checkpoint = _settle_google(checkpoint, hints) if located.is_google else checkpoint
    if checkpoint.notes and checkpoint.file_format != "vitrail":
        warnings.warn(AssumptionWarning(located.name, checkpoint.notes), stacklevel=_levels_to_the_caller())
    if names is None:
        return checkpoint
    return name_classes(checkpoint, names, str(class_names) if isinstance(class_names, str | Path) else "class_names")


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

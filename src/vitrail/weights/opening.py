"""A checkpoint from anywhere: what prediction and training start from."""

import inspect
import warnings
from pathlib import Path

from vitrail.errors import AssumptionWarning, WeightsError
from vitrail.weights import bundled
from vitrail.weights.checkpoint import Checkpoint, FormatName
from vitrail.weights.files import PICKLES
from vitrail.weights.formats import SUFFIXES, find_files, read_checkpoint
from vitrail.weights.hub import fetch, settle_google
from vitrail.weights.infer import Hints

_SUFFIXES = {suffix for suffixes in SUFFIXES.values() for suffix in suffixes if suffix} | PICKLES


def names_checkpoint(text: str) -> bool:
    """Whether a text is a checkpoint's by its looks: an address, a bundled name, a suffix, or a folder with weights."""
    if text in bundled.NAMES or text.startswith(("hf://", "google://")) or Path(text).suffix.lower() in _SUFFIXES:
        return True
    try:
        return Path(text).is_dir() and bool(find_files(Path(text)))
    except (WeightsError, OSError):
        return False


def open_checkpoint(
    source: str | Path,
    *,
    format_name: FormatName | None = None,
    hints: Hints | None = None,
    allow_pickle: bool = False,
    verify: bool = True,
) -> Checkpoint:
    """The checkpoint at a path, a run folder, `hf://owner/name` or `google://NAME`, or a bundled one by its name.

    What a foreign file leaves open is an `AssumptionWarning`. A file of ours was told that when it was converted: it
    says everything, and keeps the notes.
    """
    path = fetch(source, allow_pickle)
    checkpoint = read_checkpoint(path, format_name=format_name, hints=hints, allow_pickle=allow_pickle, verify=verify)
    checkpoint = settle_google(source, checkpoint, hints)
    if checkpoint.notes and checkpoint.file_format != "vitrail":
        warnings.warn(AssumptionWarning(str(source), checkpoint.notes), stacklevel=_levels_to_the_caller())
    return checkpoint


def _levels_to_the_caller() -> int:
    """How many frames up the first one outside of vitrail is, so that a warning shows the user's own line."""
    frame, levels = inspect.currentframe(), 0
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "vitrail":
        frame, levels = frame.f_back, levels + 1
    return levels

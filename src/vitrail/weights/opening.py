"""A checkpoint from anywhere: what prediction and training start from."""

from pathlib import Path

from vitrail.errors import WeightsError
from vitrail.weights import bundled
from vitrail.weights.checkpoint import Checkpoint, FormatName
from vitrail.weights.formats import SUFFIXES, find_files, read_checkpoint
from vitrail.weights.hub import fetch, settle_google
from vitrail.weights.infer import Hints

_SUFFIXES = {suffix for suffixes in SUFFIXES.values() for suffix in suffixes if suffix}


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
    """The checkpoint at a path, a run folder, `hf://owner/name` or `google://NAME`, or a bundled one by its name."""
    path = fetch(source, allow_pickle)
    checkpoint = read_checkpoint(path, format_name=format_name, hints=hints, allow_pickle=allow_pickle, verify=verify)
    return settle_google(source, checkpoint, hints)

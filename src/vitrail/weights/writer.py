"""Any format, written whole or not at all."""

import re
from pathlib import Path

from vitrail.errors import WeightsError
from vitrail.files import atomic_path
from vitrail.model import ViTConfig
from vitrail.weights.catalogue import FormatName
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import FORMATS, SUFFIXES, check_format, refusals


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

"""The table of all formats, and which one a name or a path means."""

from pathlib import Path

from vitrail.errors import WeightsError, suggest
from vitrail.model import ViTConfig
from vitrail.weights import native
from vitrail.weights.catalogue import FormatName, foreign_formats
from vitrail.weights.format import ForeignFormat, Format

FOREIGN: dict[FormatName, ForeignFormat] = {each.name: each for each in foreign_formats()}
FORMATS: dict[FormatName, Format] = {"vitrail": native.FORMAT, **FOREIGN}
SUFFIXES: dict[FormatName, tuple[str, ...]] = {name: each.suffixes for name, each in FORMATS.items()}


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

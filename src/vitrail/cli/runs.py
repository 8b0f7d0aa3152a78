"""The folder that a command writes into, and the run that a checkpoint is of."""

from pathlib import Path

from vitrail.folders import check_run_folder, new_run_folder

__all__ = ["check_run_folder", "new_run_folder", "run_of"]


def run_of(source: str) -> Path:
    """The run folder that a checkpoint is of: itself, or for a file the one in whose `weights` it lies."""
    weights = Path(source).absolute().parent
    return weights.parent if weights.name == "weights" and Path(source).is_file() else Path(source)

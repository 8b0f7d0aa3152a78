"""What a finished run's folder reveals about numbers that are measured later."""

from pathlib import Path

from vitrail.data.check.record import RECORD, CheckRecord, read_record
from vitrail.errors import VitrailError
from vitrail.training.curves import read_rows
from vitrail.training.run import read_config


def trained_on(folder: Path, data: str) -> bool:
    """Whether the run in a folder, if there is one, was trained on these data."""
    try:
        used = read_config(folder).data
    except VitrailError:
        return False
    return used == data or (Path(data).exists() and Path(used).absolute() == Path(data).absolute())


def chose_epoch(folder: Path, data: str, split: str) -> bool:
    """Whether pictures of this split decided which epoch's weights the run kept: their accuracy is then optimistic."""
    if split not in ("val", "all") or not trained_on(folder, data):
        return False
    try:
        return sum(row.val_accuracy is not None for row in read_rows(folder / "results.csv")) > 1
    except VitrailError:
        return False


def data_check(folder: Path, data: str) -> CheckRecord | None:
    """What the check of these data found before the run, if the run was on these data and they were checked."""
    return read_record(folder / RECORD) if trained_on(folder, data) else None

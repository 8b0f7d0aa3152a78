"""Where a run is, beside its tensors: `state.json`, which holds its own checksum and those of the files beside it."""

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from vitrail.errors import ConfigError, WeightsError
from vitrail.schema import from_dict, to_dict

STATE = "state.json"
VERSION = 2
UNCHECKED = 1  # the version of vitrail 0.1, without checksums
LARGEST = 64 * 2**20  # bytes of a state that we read: the names of thousands of broken pictures fit
MOST = 2**53  # of any count
_PARSER_ERRORS = (OSError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a time budget is spent, revised after each epoch: `training/budget.py`."""

    epochs: int  # that the run will have
    curve_steps: int  # over which the learning rate's curve is drawn
    step: int = 0  # at which the plan was made,
    position: float = 0.0  # and how far along the curve the run was then
    before: float = 0.0  # seconds of the budget that were gone before the run: checking the data, planning

    def __post_init__(self) -> None:
        counts = 1 <= self.epochs <= MOST and 1 <= self.curve_steps <= MOST and 0 <= self.step <= MOST
        if not counts or not 0 <= self.position <= self.curve_steps or not 0 <= self.before <= MOST:
            raise ValueError(f"its plan {self} is inconsistent")


@dataclass(kw_only=True)
class Progress:
    """Where a run is, beside its tensors."""

    step: int = 0
    epoch: int = 0  # whole epochs done
    loss_sum: float = 0.0  # of the current epoch
    loss_count: int = 0  # steps of the current epoch
    images: int = 0  # of the current epoch
    images_seconds: float = 0.0  # that they took
    best_epoch: int = 0  # 0: none yet
    best_accuracy: float = -1.0
    best_loss: float = float("inf")
    improved_epoch: int = 0  # the last with a higher accuracy, or a lower loss, than all before
    lowest_val_loss: float = float("inf")
    lowest_train_loss: float = float("inf")  # of a whole epoch
    lr_scale: float = 1.0  # lowered each time the run diverges
    rescues: int = 0
    seconds: float = 0.0  # of training so far
    epoch_began: float = 0.0  # `seconds` when the current epoch began
    stopped_early: bool = False
    plan: Plan | None = None  # of a time budget
    loader: dict[str, Any] = field(default_factory=dict[str, Any])
    validation: str = ""  # identifies the validation pictures


@dataclass(frozen=True, kw_only=True)
class FileSum:
    """The size and checksum of an intact file."""

    bytes: int
    crc32: int


@dataclass(frozen=True, kw_only=True)
class State:
    """What `state.json` says."""

    progress: Progress
    files: Mapping[str, FileSum] | None  # None: written by a version without checksums


def write_state(folder: Path, progress: Progress, world_size: int) -> None:
    """Compute the checksums of all files of a checkpoint, and write the state beside them."""
    sums = {path.name: to_dict(sum_up(path)) for path in sorted(folder.iterdir())}
    facts = {"version": VERSION, "world_size": world_size, "progress": _to_json(progress), "files": sums}
    (folder / STATE).write_text(json.dumps({**facts, "crc32": _checksum(facts)}, indent=1), encoding="utf-8")


def _to_json(progress: Progress) -> dict[str, Any]:
    infinite = {each.name for each in fields(progress) if each.default == math.inf}
    values = to_dict(progress)
    return {name: None if name in infinite and value == math.inf else value for name, value in values.items()}


def _checksum(facts: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())


def sum_up(path: Path) -> FileSum:
    """Size and CRC-32 of a file, read in pieces."""
    total, size = 0, 0
    with path.open("rb") as file:
        while piece := file.read(2**24):
            total, size = zlib.crc32(piece, total), size + len(piece)
    return FileSum(bytes=size, crc32=total)


def read_state(path: Path) -> State:
    """Where the run was when this checkpoint was written, and its files."""
    try:
        if (path / STATE).stat().st_size > LARGEST:
            raise ValueError(f"larger than {LARGEST / 2**20:.0f} MB")
        facts: Any = json.loads((path / STATE).read_text(encoding="utf-8"))
        version = facts["version"]
        if version not in (UNCHECKED, VERSION):
            raise WeightsError(f"{path} has version {str(version)[:20]}; this vitrail reads {VERSION}.")
        if version == VERSION and facts.pop("crc32") != _checksum(facts):
            raise ValueError("its checksum does not match")
        values = {name: value for name, value in facts["progress"].items() if value is not None}
        progress = from_dict(Progress, values)
        check_progress(progress)
        files = from_dict(_Files, {"files": facts["files"]}).files if version == VERSION else None
    except WeightsError:
        raise
    except (ConfigError, *_PARSER_ERRORS) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise WeightsError(f"{path} is damaged: its {STATE} cannot be used ({reason[:300]}).") from error
    return State(progress=progress, files=files)


@dataclass(frozen=True, kw_only=True)
class _Files:
    files: dict[str, FileSum]


def check_progress(progress: Progress) -> None:
    """Refuse numbers that no run can have."""
    for name in ("step", "epoch", "loss_count", "images", "best_epoch", "improved_epoch", "rescues"):
        if not 0 <= getattr(progress, name) <= MOST:
            raise ValueError(f"{name} is {getattr(progress, name)}")
    for name in ("seconds", "epoch_began", "images_seconds"):
        if not 0 <= getattr(progress, name) < math.inf:
            raise ValueError(f"{name} is {getattr(progress, name)}")
    if not 0 < progress.lr_scale <= 1:
        raise ValueError(f"lr_scale is {progress.lr_scale}")
    if not -1 <= progress.best_accuracy <= 1:
        raise ValueError(f"best_accuracy is {progress.best_accuracy}")
    if any(math.isnan(number) for number in (progress.best_loss, progress.lowest_val_loss, progress.lowest_train_loss)):
        raise ValueError("a lowest loss is not a number")
    if max(progress.best_epoch, progress.improved_epoch) > progress.epoch or progress.loss_count > progress.step:
        raise ValueError("its epochs and steps contradict each other")
    _check_loader(progress.loader, progress.epoch)


def _check_loader(state: Mapping[str, Any], epoch: int) -> None:
    if not state:
        return
    for name in ("epoch", "batch"):
        if type(state.get(name)) is not int or not 0 <= state[name] <= MOST:
            raise ValueError(f"the loader's {name} is {str(state.get(name))[:40]}")
    if not epoch - 1 <= state["epoch"] <= epoch:
        raise ValueError(f"the loader is in epoch {state['epoch']} and the run in {epoch}")
    broken: Any = state.get("broken", {})
    if not isinstance(broken, dict) or not all(isinstance(why, str) for why in cast("dict[str, Any]", broken).values()):
        raise ValueError("the loader's list of broken pictures is invalid")

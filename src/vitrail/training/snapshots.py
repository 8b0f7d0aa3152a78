"""Snapshots of a run, which it can continue from: `weights/last/step-N/`, each complete or absent.

The last two and the last epoch's are kept.

Tensors (weights, averages, the optimisers' memory) are safetensors written by `torch.distributed.checkpoint`, every
rank its part, so that a run may continue on another number of ranks; everything else, the `RunState`, is in
`state.json`, with the checksums of all files, which are compared before a run continues from them. No pickle.
"""

import json
import logging
import math
import os
import shutil
import sys
import warnings
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.optim import Optimizer

from vitrail.errors import ConfigError, WeightsError
from vitrail.ranks import Ranks
from vitrail.schema import from_dict, to_dict
from vitrail.wording import reason

LAST = Path("weights") / "last"  # in a run folder
STATE = "state.json"
VERSION = 3
ONE_METRIC = 2  # a version whose only metric was accuracy
UNCHECKED = 1  # the version of vitrail 0.1, without checksums
LARGEST = 64 * 2**20  # bytes of a state that we read: the names of thousands of broken pictures fit
MOST = 2**53  # of any count
LIMITS = {  # of the numbers of a state, both included
    **dict.fromkeys(("step", "epoch", "loss_count", "images", "best_epoch", "improved_epoch", "rescues"), (0, MOST)),
    **dict.fromkeys(("seconds", "epoch_began", "images_seconds"), (0, sys.float_info.max)),
    "lr_scale": (math.ulp(0.0), 1),
}
_PARSER_ERRORS = (OSError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class BudgetPlan:
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
class RunState:
    """Where a run is, beside its tensors."""

    step: int = 0
    epoch: int = 0  # whole epochs done
    loss_sum: float = 0.0  # of the current epoch
    loss_count: int = 0  # steps of the current epoch
    metric_sums: dict[str, float] = field(default_factory=dict[str, float])  # of the current epoch's steps, by name
    images: int = 0  # of the current epoch
    images_seconds: float = 0.0  # that they took
    best_epoch: int = 0  # 0: none yet
    best_metrics: dict[str, float] = field(default_factory=dict[str, float])  # of that epoch
    best_loss: float = float("inf")
    improved_epoch: int = 0  # the last with a higher accuracy, or a lower loss, than all before
    lowest_val_loss: float = float("inf")
    lowest_train_loss: float = float("inf")  # of a whole epoch
    lr_scale: float = 1.0  # lowered each time the run diverges
    rescues: int = 0
    seconds: float = 0.0  # of training so far
    epoch_began: float = 0.0  # `seconds` when the current epoch began
    stopped_early: bool = False
    plan: BudgetPlan | None = None  # of a time budget
    loader: dict[str, Any] = field(default_factory=dict[str, Any])
    validation: str = ""  # identifies the validation pictures


@dataclass(frozen=True, kw_only=True)
class FileSum:
    """The size and checksum of an intact file."""

    bytes: int
    crc32: int


def write_state(folder: Path, state: RunState, world_size: int) -> None:
    """Compute the checksums of all files of a checkpoint, and write the state beside them."""
    sums = {path.name: to_dict(sum_up(path)) for path in sorted(folder.iterdir())}
    unset = {each.name for each in fields(state) if each.default == math.inf == getattr(state, each.name)}
    values = to_dict(state) | dict.fromkeys(unset)  # JSON has no infinity
    facts = {"version": VERSION, "world_size": world_size, "progress": values, "files": sums}
    (folder / STATE).write_text(json.dumps({**facts, "crc32": _checksum(facts)}, indent=1), encoding="utf-8")


def _checksum(facts: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(facts, sort_keys=True).encode())


def sum_up(path: Path) -> FileSum:
    """Size and CRC-32 of a file, read in pieces."""
    total, size = 0, 0
    with path.open("rb") as file:
        while piece := file.read(2**24):
            total, size = zlib.crc32(piece, total), size + len(piece)
    return FileSum(bytes=size, crc32=total)


def read_state(path: Path) -> RunState:
    """Where the run was when this checkpoint was written."""
    return _read(path)[0]


def _read(path: Path) -> tuple[RunState, dict[str, FileSum] | None]:
    """What `state.json` says: where the run was, and its files, if it was written by a version with checksums."""
    try:
        if (path / STATE).stat().st_size > LARGEST:
            raise ValueError(f"larger than {LARGEST / 2**20:.0f} MB")
        facts: Any = json.loads((path / STATE).read_text(encoding="utf-8"))
        version = facts["version"]
        if version not in (UNCHECKED, ONE_METRIC, VERSION):
            raise WeightsError(f"{path} has version {str(version)[:20]}; this vitrail reads {VERSION}.")
        if version != UNCHECKED and facts.pop("crc32") != _checksum(facts):
            raise ValueError("its checksum does not match")
        values = {name: value for name, value in facts["progress"].items() if value is not None}
        if version != VERSION:
            values = _with_metrics(values)
        state = from_dict(RunState, values)
        check_state(state)
        if version == UNCHECKED:
            return state, None
        return state, {str(name): from_dict(FileSum, sums) for name, sums in facts["files"].items()}
    except WeightsError:
        raise
    except (ConfigError, *_PARSER_ERRORS) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise WeightsError(f"{path} is damaged: its {STATE} cannot be used ({reason[:300]}).") from error


def _with_metrics(values: dict[str, Any]) -> dict[str, Any]:
    """A state of an older version, whose best epoch had an accuracy, or -1."""
    best = values.pop("best_accuracy", -1.0)
    if not isinstance(best, float | int) or not -1 <= best <= 1:
        raise ValueError(f"best_accuracy is {str(best)[:40]}")
    return values | {"best_metrics": {"accuracy": float(best)} if best >= 0 else {}}


def check_state(state: RunState) -> None:
    """Refuse numbers that no run can have."""
    for name, (low, high) in LIMITS.items():
        if not low <= getattr(state, name) <= high:
            raise ValueError(f"{name} is {getattr(state, name)}")
    if any(math.isnan(number) for number in (state.best_loss, state.lowest_val_loss, state.lowest_train_loss)):
        raise ValueError("a lowest loss is not a number")
    if not all(map(math.isfinite, (*state.best_metrics.values(), *state.metric_sums.values()))):
        raise ValueError("a metric is not a number")
    if max(state.best_epoch, state.improved_epoch) > state.epoch or state.loss_count > state.step:
        raise ValueError("its epochs and steps contradict each other")
    _check_loader(state.loader, state.epoch)


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


KEPT = 2
DRAFTS = ".step-*.draft"


MODEL = "model."  # the part of an objective whose tensors are named without it, as those of older runs are


def named_tensors(
    module: nn.Module,
    optimizers: list[Optimizer],
    average: Mapping[str, Tensor] | None,
    *,
    only_trained: bool = False,
) -> dict[str, Tensor]:
    """Every tensor of a run under a name that does not depend on the ranks; or only of its trained parameters."""
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    kept = {name: tensor for name, tensor in module.state_dict().items() if name in trained or not only_trained}
    tensors = dict(kept)
    tensors |= {f"average.{_short(name)}": tensor for name, tensor in (average or {}).items() if name in kept}
    names = {id(parameter): _short(name) for name, parameter in module.named_parameters()}
    for optimizer in optimizers:
        for parameter, memory in optimizer.state.items():
            for key, value in memory.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{names[id(parameter)]}.{key}"] = value
    return tensors


def _short(name: str) -> str:
    return name.removeprefix(MODEL)


def save(folder: Path, tensors: Mapping[str, Tensor], state: RunState, ranks: Ranks) -> Path:
    """Write a checkpoint beside the older ones, and only then remove the oldest. All ranks must call it."""
    target = folder / f"step-{state.step:09d}"
    draft = folder / f".{target.name}.draft"
    ranks.from_first(lambda: _prepare(draft))
    flat = _flat(tensors)
    trouble: OSError | None = None
    try:
        with _quiet():
            save_sharded(
                flat,
                storage_writer=HuggingFaceStorageWriter(str(draft), save_distributed=True),
                no_dist=ranks.world_size == 1,
            )
    except (Exception, CheckpointException) as error:  # torch wraps errors of the disk
        trouble = OSError(f"cannot write the checkpoint {target}: {_root_cause(error)}")
    if ranks.any(trouble is not None):
        ranks.from_first(lambda: shutil.rmtree(draft, ignore_errors=True))
        raise trouble or OSError(f"cannot write the checkpoint {target}: another rank could not write its part")
    ranks.from_first(lambda: _finish(draft, target, state, ranks.world_size))
    return target


def _prepare(draft: Path) -> None:
    draft.parent.mkdir(parents=True, exist_ok=True)
    sweep(draft.parent)
    draft.mkdir()


def sweep(folder: Path) -> None:
    """Remove what remains of a run that was killed while writing or removing a checkpoint."""
    refuse_links(folder)
    unfinished = [path for path in folder.glob("step-*") if not (path / STATE).is_file()]
    for old in (*folder.glob(DRAFTS), *unfinished):
        shutil.rmtree(old, ignore_errors=True)


def _finish(draft: Path, target: Path, state: RunState, world_size: int) -> None:
    before = target.with_name(f".{target.name}.old.draft")
    try:
        write_state(draft, state, world_size)
        for path in (*draft.iterdir(), draft):
            _flush(path)
        if target.exists():  # the same step again: after a signal at the end of an epoch
            target.rename(before)
        draft.rename(target)
        _flush(target.parent)
    except OSError:
        if before.exists() and not target.exists():
            before.rename(target)
        for path in (draft, before):
            shutil.rmtree(path, ignore_errors=True)
        raise
    found = list_snapshots(target.parent)
    last_epoch, _ = pick_whole(target.parent, whole_epochs=True, verified=False)
    for old in (*target.parent.glob(DRAFTS), *(path for path in found[:-KEPT] if path != last_epoch)):
        (old / STATE).unlink(missing_ok=True)  # first, so that it never looks complete while it is removed
        shutil.rmtree(old, ignore_errors=True)


def _flush(path: Path) -> None:
    """To the disk itself, so that a power cut cannot leave a name without its contents."""
    folder = path.is_dir()
    try:
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    except PermissionError:
        if folder:  # Windows cannot open folders, and syncs their names by itself
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def refuse_links(folder: Path) -> None:
    """Refuse links: what is written, renamed and removed here must not be another run's."""
    for path in (folder, *folder.glob("step-*")):
        if path.is_symlink():
            raise WeightsError(
                f"{path} must be the run's own; it is a link to {path.readlink()}. Put a copy in its place to continue."
            )


def list_snapshots(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    refuse_links(folder)
    return sorted(path for path in folder.glob("step-*") if (path / STATE).is_file())


def pick_whole(
    folder: Path, bad: Collection[str] = (), *, whole_epochs: bool = False, verified: bool = True
) -> tuple[Path | None, dict[str, str]]:
    """The newest checkpoint, if requested at an epoch's end, whose files match their checksums, unless it is bad; and
    the newer, damaged ones, with why.
    """
    damaged: dict[str, str] = {}
    for path in reversed(list_snapshots(folder)):
        if path.name in bad:
            continue
        try:
            if whole_epochs and read_state(path).loss_count:
                continue
            if verified:
                verify(path)
        except WeightsError as error:
            damaged[path.name] = str(error)
        else:
            return path, damaged
    return None, damaged


def verify(path: Path) -> None:
    """Refuse a checkpoint of which a file is missing, changed or not its own."""
    _, files = _read(path)
    if files is None:
        return
    own = {each.name for each in path.iterdir()} - {STATE}
    for name in sorted(own ^ set(files)):
        raise WeightsError(f"{path} is damaged: {name} is {'missing' if name in files else 'not one of its files'}.")
    for name, expected in files.items():
        try:
            found = sum_up(path / name)
        except OSError as error:
            raise WeightsError(f"{path / name} is damaged: it cannot be read ({error.strerror}).") from error
        if found != expected:
            raise WeightsError(f"{path / name} is damaged: its checksum does not match.")


def set_aside(folder: Path, names: Iterable[str]) -> None:
    """Keep damaged checkpoints under another name, where they are not taken for the newest again."""
    for name in names:
        target = folder / f"damaged-{name}"
        shutil.rmtree(target, ignore_errors=True)
        (folder / name).rename(target)


def restore(path: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> RunState:
    """Read a checkpoint into the given tensors, in place; all ranks must call it."""
    state = read_state(path)
    flat = _flat(tensors)
    try:
        with _quiet():
            load_sharded(flat, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=ranks.world_size == 1)
    except (Exception, CheckpointException) as error:
        cause = _root_cause(error)
        if "Size mismatch" in cause:
            raise WeightsError(
                f"{path} does not fit: {cause}; are the data and the weights those of the run?"
            ) from error
        raise WeightsError(f"{path} does not fit this run or is damaged: {cause}.") from error
    for name, tensor in tensors.items():
        if tensor.ndim == 0:
            tensor.copy_(flat[name][0])
    return state


def _flat(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as torch can write them: single numbers as vectors."""
    return {name: tensor.reshape(1) if tensor.ndim == 0 else tensor for name, tensor in tensors.items()}


def _root_cause(error: BaseException) -> str:
    """The first line of the original error, inside torch's wrapping; a second signal, wrapped like one, goes on."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        error = next(iter(failures.values()))[0]
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error from None
    return reason(error).splitlines()[0]


@contextmanager
def _quiet() -> Generator[None]:
    """Silence torch's own reports: writing from a single process is intended, and we report errors ourselves."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    finally:
        logging.disable(before)


class Recovery:
    """Finds checkpoints that are complete, finite and not known to diverge; reports those that are not."""

    def __init__(self, ranks: Ranks, say: Callable[[str], None]) -> None:
        self.ranks = ranks
        self.say = say
        self.restored = ""  # the checkpoint that was restored, until a step from it has worked
        self.bad = set[str]()  # checkpoints that diverged

    def go_back(self, folder: Path, restore: Callable[[Path], bool], *, whole_epochs: bool = False) -> bool:
        """Restore the newest such checkpoint of a folder, if any; `restore` returns whether its numbers are finite."""
        if self.restored:
            self.bad.add(self.restored)
        while True:
            path, damaged = self.ranks.from_first(lambda: pick_whole(folder, self.bad, whole_epochs=whole_epochs))
            if path is not None and not damaged:
                if not self.ranks.any(not restore(path)):
                    self.restored = path.name
                    return True
                damaged = {path.name: f"{path} holds numbers that are not finite."}
            for trouble in damaged.values():
                self.say(f"{trouble} Going back further.")
            self.bad |= set(damaged)
            self.ranks.from_first(lambda damaged=damaged: set_aside(folder, damaged))
            if path is None:
                return False

    def stepped(self) -> None:
        """A step has worked."""
        self.restored = ""

"""Resumable checkpoints: `weights/last/step-N/`, each complete or absent; the last two and the last epoch's are kept.

Tensors (weights, averages, the optimisers' memory) are safetensors written by `torch.distributed.checkpoint`, every
rank its part, so that a run may continue on another number of ranks; everything else is in `state.json`. No pickle.
"""

import json
import logging
import os
import shutil
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.optim import Optimizer

from vitrail.errors import WeightsError
from vitrail.schema import from_dict, to_dict
from vitrail.train.ranks import Ranks
from vitrail.wording import reason

KEPT = 2
STATE = "state.json"
VERSION = 1


@dataclass(kw_only=True)
class Progress:
    """Where a run is, beside its tensors."""

    step: int = 0
    epoch: int = 0  # whole epochs done
    loss_sum: float = 0.0  # of the epoch under way
    loss_count: int = 0  # steps of the epoch under way
    best_epoch: int = 0  # 0: none yet
    best_accuracy: float = -1.0
    best_loss: float = float("inf")
    improved_epoch: int = 0  # the last with a higher accuracy, or a lower loss, than all before
    lowest_val_loss: float = float("inf")
    lowest_train_loss: float = float("inf")  # of a whole epoch
    lr_scale: float = 1.0  # lowered each time the run diverges
    rescues: int = 0
    seconds: float = 0.0  # of training so far
    stopped_early: bool = False
    loader: dict[str, Any] = field(default_factory=dict[str, Any])


def named_tensors(
    model: nn.Module,
    optimizers: list[Optimizer],
    average: Mapping[str, Tensor] | None,
    *,
    only_trained: bool = False,
) -> dict[str, Tensor]:
    """Every tensor of a run under a name that does not depend on the ranks; or of its trained parameters alone."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    kept = {name: tensor for name, tensor in model.state_dict().items() if name in trained or not only_trained}
    tensors = {f"model.{name}": tensor for name, tensor in kept.items()}
    tensors |= {f"average.{name}": tensor for name, tensor in (average or {}).items() if name in kept}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for optimizer in optimizers:
        for parameter, memory in optimizer.state.items():
            for key, value in memory.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{names[id(parameter)]}.{key}"] = value
    return tensors


def save(folder: Path, tensors: Mapping[str, Tensor], progress: Progress, ranks: Ranks) -> Path:
    """Write a checkpoint beside the older ones, and only then remove the oldest. All ranks must call it."""
    target = folder / f"step-{progress.step:09d}"
    draft = folder / f".{target.name}.draft"
    ranks.from_first(lambda: _prepare(draft))
    flat = {name: tensor.reshape(1) if tensor.ndim == 0 else tensor for name, tensor in tensors.items()}
    trouble: OSError | None = None
    try:
        with _quiet():
            save_sharded(
                flat,
                storage_writer=HuggingFaceStorageWriter(str(draft), save_distributed=True),
                no_dist=ranks.world_size == 1,
            )
    except (Exception, CheckpointException) as error:  # torch wraps what the disk says
        trouble = OSError(f"cannot write the checkpoint {target}: {_root_cause(error)}")
    if ranks.any(trouble is not None):
        ranks.from_first(lambda: shutil.rmtree(draft, ignore_errors=True))
        raise trouble or OSError(f"cannot write the checkpoint {target}: another rank could not write its part")
    ranks.from_first(lambda: _finish(draft, target, progress, ranks.world_size))
    return target


def _prepare(draft: Path) -> None:
    draft.parent.mkdir(parents=True, exist_ok=True)
    unfinished = [path for path in draft.parent.glob("step-*") if not (path / STATE).is_file()]
    for old in (*draft.parent.glob(".step-*.draft"), *unfinished):  # of a run that was killed while it wrote or removed
        shutil.rmtree(old, ignore_errors=True)
    draft.mkdir()


def _finish(draft: Path, target: Path, progress: Progress, world_size: int) -> None:
    facts = {"version": VERSION, "world_size": world_size, "progress": _to_json(progress)}
    try:
        (draft / STATE).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        for path in (*draft.iterdir(), draft):
            _flush(path)
        if target.exists():  # the same step again: after a signal at the end of an epoch
            target.rename(target.with_name(f".{target.name}.old.draft"))
        draft.rename(target)
        _flush(target.parent)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    found = list_checkpoints(target.parent)
    last_epoch = pick(target.parent, set(), whole_epochs=True)
    for old in (*target.parent.glob(".step-*.draft"), *(path for path in found[:-KEPT] if path != last_epoch)):
        (old / STATE).unlink(missing_ok=True)  # first, so that it never looks whole while it goes
        shutil.rmtree(old, ignore_errors=True)


def _to_json(progress: Progress) -> dict[str, Any]:
    values = to_dict(progress)
    return {name: None if value == float("inf") else value for name, value in values.items()}


def _flush(path: Path) -> None:
    """To the disk itself, so that a power cut cannot leave a name without its contents."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def list_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / STATE).is_file())


def pick(folder: Path, bad: set[str], *, whole_epochs: bool) -> Path | None:
    """The newest checkpoint that is not known to be bad, if asked so at the end of an epoch."""
    for path in reversed(list_checkpoints(folder)):
        if path.name not in bad and not (whole_epochs and read_progress(path).loss_count):
            return path
    return None


def read_progress(path: Path) -> Progress:
    """Where the run was when this checkpoint was written."""
    try:
        facts = json.loads((path / STATE).read_text(encoding="utf-8"))
        if facts["version"] != VERSION:
            raise WeightsError(f"{path} has version {facts['version']}; this vitrail reads {VERSION}.")
        values = {name: value for name, value in facts["progress"].items() if value is not None}
        return from_dict(Progress, values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{path} is damaged: its {STATE} cannot be read ({reason(error)}).") from error


def restore(path: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> Progress:
    """Read a checkpoint into the given tensors, in place; all ranks must call it."""
    progress = read_progress(path)
    flat = {name: tensor.reshape(1) if tensor.ndim == 0 else tensor for name, tensor in tensors.items()}
    try:
        with _quiet():
            load_sharded(flat, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=ranks.world_size == 1)
    except (Exception, CheckpointException) as error:
        older = [other.name for other in list_checkpoints(path.parent) if other != path]
        cause = _root_cause(error)
        if "Size mismatch" in cause:
            raise WeightsError(
                f"{path} does not fit: {cause}; are the data and the weights those of the run?"
            ) from error
        advice = f"; remove it to continue from {older[-1]}" if older else ""
        raise WeightsError(f"{path} does not fit this run or is damaged: {cause}{advice}.") from error
    for name, tensor in tensors.items():
        if tensor.ndim == 0:
            tensor.copy_(flat[name][0])
    return progress


def _root_cause(error: BaseException) -> str:
    """The first line of what really happened, below torch's wrapping."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        error = next(iter(failures.values()))[0]
    while error.__cause__ is not None:
        error = error.__cause__
    return reason(error).splitlines()[0]


@contextmanager
def _quiet() -> Generator[None]:
    """Without torch's own reports: that one process alone is writing is meant, and errors are ours to tell."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    finally:
        logging.disable(before)

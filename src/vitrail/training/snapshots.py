"""Snapshots of a run, which it can continue from: `weights/last/step-N/`, each complete or absent.

The last two and the last epoch's are kept.

Tensors (weights, averages, the optimisers' memory) are safetensors written by `torch.distributed.checkpoint`, every
rank its part, so that a run may continue on another number of ranks; everything else is in `state.json`, with the
checksums of all files, which are compared before a run continues from them. No pickle.
"""

import logging
import os
import shutil
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_sharded
from torch.distributed.checkpoint.state_dict_saver import save as save_sharded
from torch.optim import Optimizer

from vitrail.errors import WeightsError
from vitrail.ranks import Ranks
from vitrail.training.state import STATE, Progress, read_state, sum_up, write_state
from vitrail.wording import reason

KEPT = 2
DRAFTS = ".step-*.draft"


def named_tensors(
    model: nn.Module,
    optimizers: list[Optimizer],
    average: Mapping[str, Tensor] | None,
    *,
    only_trained: bool = False,
) -> dict[str, Tensor]:
    """Every tensor of a run under a name that does not depend on the ranks; or only of its trained parameters."""
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
    except (Exception, CheckpointException) as error:  # torch wraps errors of the disk
        trouble = OSError(f"cannot write the checkpoint {target}: {_root_cause(error)}")
    if ranks.any(trouble is not None):
        ranks.from_first(lambda: shutil.rmtree(draft, ignore_errors=True))
        raise trouble or OSError(f"cannot write the checkpoint {target}: another rank could not write its part")
    ranks.from_first(lambda: _finish(draft, target, progress, ranks.world_size))
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


def _finish(draft: Path, target: Path, progress: Progress, world_size: int) -> None:
    before = target.with_name(f".{target.name}.old.draft")
    try:
        write_state(draft, progress, world_size)
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
    last_epoch = pick(target.parent, set(), whole_epochs=True)
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


def pick(folder: Path, bad: set[str], *, whole_epochs: bool) -> Path | None:
    """The newest checkpoint that is not known to be bad, if requested at an epoch's end; checksums are not compared."""
    for path in reversed(list_snapshots(folder)):
        try:
            if path.name not in bad and not (whole_epochs and read_progress(path).loss_count):
                return path
        except WeightsError:  # a damaged state is of no use
            continue
    return None


def pick_whole(folder: Path, bad: set[str], *, whole_epochs: bool = False) -> tuple[Path | None, dict[str, str]]:
    """The newest such checkpoint whose files match their checksums; and the newer, damaged ones, with why."""
    damaged: dict[str, str] = {}
    for path in reversed(list_snapshots(folder)):
        if path.name in bad:
            continue
        try:
            if whole_epochs and read_progress(path).loss_count:
                continue
            verify(path)
        except WeightsError as error:
            damaged[path.name] = str(error)
        else:
            return path, damaged
    return None, damaged


def verify(path: Path) -> None:
    """Refuse a checkpoint of which a file is missing, changed or not its own."""
    files = read_state(path).files
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


def read_progress(path: Path) -> Progress:
    """Where the run was when this checkpoint was written."""
    return read_state(path).progress


def restore(path: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> Progress:
    """Read a checkpoint into the given tensors, in place; all ranks must call it."""
    progress = read_progress(path)
    flat = {name: tensor.reshape(1) if tensor.ndim == 0 else tensor for name, tensor in tensors.items()}
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
    return progress


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

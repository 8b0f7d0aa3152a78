"""The folder of a run: its files from the first (config.yaml) to the last (metrics.json), and who may write into it."""

import json
import os
import shutil
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import yaml

from vitrail.data import write_split_file
from vitrail.data.check.findings import RECORD, CheckRecord, read_record
from vitrail.data.sheet import augmentation_sheet
from vitrail.data.source import ArraySource
from vitrail.errors import ConfigError, VitrailError
from vitrail.evaluation.output import disk_bytes
from vitrail.files import MARKS, atomic_path, lock_file, sweep_drafts
from vitrail.machine import environment
from vitrail.ranks import Ranks, elastic_id, was_restarted
from vitrail.schema import from_dict, to_dict
from vitrail.tasks.task import Task, make_task
from vitrail.training import snapshots
from vitrail.training.auto_config import AUTO, NONE
from vitrail.training.changes import apply_changes, describe_config, read_field
from vitrail.training.config import Selection, TrainConfig
from vitrail.training.curves import RESULTS, read_rows
from vitrail.training.feature_store import ANSWERS, FOLDER
from vitrail.training.run_data import write_contents
from vitrail.training.setup import Setup
from vitrail.training.snapshots import LAST
from vitrail.untrusted import parse_json, read_bytes, read_yaml
from vitrail.wording import counted, first_line

CONFIG, SPLIT, METRICS, REPORT = "config.yaml", "split.csv", "metrics.json", "report.html"
FOLDS, STUDY = "folds.csv", "study.journal"  # of runs that consist of others
TASK = "task.json"  # of a run whose task was fitted to its training labels
LOCK = ".lock"
ELASTIC = ".elastic"  # the name of torchrun's job, while the run lasts
# What may differ in a resumed run: how it is carried out, and where its files are now.
CHANGEABLE = {
    *("workers", "save_minutes", "device", "strategy", "recompute"),
    *("data", "data_dir", "split_file", "max_broken_rate", "weights", "classes", "teacher"),
}
SETTLED = {"batch_size", "compile"}  # the run may have decided these by measuring
AUTOMATIC = (("precision", AUTO), ("balance", AUTO))  # and these, whatever it is now
SPARE_BYTES = 200 * 2**20
LARGEST = 64 * 2**20  # bytes of a metrics.json that we read


class RunLock:
    """The right to write into a run folder, which ends with the process, however that ends; the file says who has it.

    Its first byte stays blank: on Windows, no other process can read what is locked.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._path = Path()

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, folder: Path) -> None:
        """Take the lock, or raise an error that names its holder."""
        path = folder / LOCK
        while True:
            file = path.open("a+b")
            if not lock_file(file):
                holder = _read_holder(file)
                file.close()
                raise ConfigError(
                    f"{folder} is in use by another process{holder}; wait until it has ended, "
                    "stop it, or choose another folder."
                )
            with suppress(OSError):  # its last holder may have removed it in the meantime
                if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    self._file, self._path = file, path
                    break
            file.close()
        self._file.truncate(0)
        facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        self._file.write(f" {json.dumps(facts)}".encode())
        self._file.flush()

    def release(self) -> None:
        """Release the lock; the end of the process does so too."""
        if self._file is not None:
            with suppress(OSError):  # Windows cannot remove open files
                self._path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


def _read_holder(file: IO[bytes]) -> str:
    """(pid 123 on host, since …), if the file says so."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        file.seek(1)
        facts: Any = json.loads(file.read(1000))
        return f" (pid {int(facts['pid'])} on {str(facts['host'])[:80]}, since {str(facts['since'])[:40]})"
    return ""


def refuse_locked(folder: Path) -> None:
    """Refuse a folder that another process writes into, before there is work to lose."""
    if (folder / LOCK).is_file():
        with RunLock() as lock:
            lock.take(folder)


def write_start(setup: Setup, folder: Path) -> None:
    """Write the description of the run, before its first step."""
    with atomic_path(folder / "env.json") as draft:
        draft.write_text(json.dumps(environment(), indent=1), encoding="utf-8")
    dataset = setup.dataset
    if dataset.made_split or dataset.excluded or not isinstance(dataset.split("train"), ArraySource):
        write_split_file(dataset, folder / SPLIT)
    write_contents(setup.dataset, folder)
    sheet = augmentation_sheet(
        setup.dataset, setup.preprocess, setup.config.augment, seed=setup.config.machine.seed, num_pictures=8
    )
    with atomic_path(folder / "train_batch.jpg") as draft:
        sheet.convert("RGB").save(draft, quality=92)
    if setup.task != make_task(setup.task.kind):
        with atomic_path(folder / TASK) as draft:
            draft.write_text(json.dumps(to_dict(setup.task), indent=1), encoding="utf-8")
    else:  # a start that was killed may have left one
        (folder / TASK).unlink(missing_ok=True)
    write_config(setup.config, folder)  # last: a folder that has it is a run


def write_config(config: TrainConfig, folder: Path) -> None:
    """What `read_config` reads."""
    with atomic_path(folder / CONFIG) as draft:
        text = yaml.safe_dump(describe_config(config), sort_keys=False, allow_unicode=True)
        draft.write_text(text, encoding="utf-8")


def read_config(folder: Path) -> TrainConfig:
    """The config of an existing run."""
    path = folder / CONFIG
    try:
        settings = read_yaml(path)
    except ConfigError as error:
        raise ConfigError(f"{folder} is not a training run: {error.message}") from error
    try:
        return from_dict(TrainConfig, settings)
    except (ConfigError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {first_line(error)}") from error


def read_task(folder: Path) -> Task | None:
    """The task as the run has fitted it, such as the mean and the standard deviation of numbers; None: as it always is.

    Fitted again, after pictures were left out or pooled, it would have other units.
    """
    path = folder / TASK
    if not path.is_file():
        return None
    try:
        return Task.__parse__(parse_json(read_bytes(path, LARGEST)), TASK)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {first_line(error)}") from error


def describe_end(folder: Path, config: TrainConfig) -> str:
    """The outcome of a run with nothing left to do; "" for one that can continue, or whose report is missing."""
    saved = snapshots.list_snapshots(folder / LAST)
    if not (folder / METRICS).is_file() or not (folder / REPORT).is_file():
        return ""
    if config.selection != Selection():
        return f"{folder} is finished; there is nothing left to train."
    if not saved:
        return ""
    state = snapshots.read_state(saved[-1])
    epochs = config.schedule.epochs if state.plan is None else state.plan.epochs
    if state.epoch < epochs and not state.stopped_early:
        return ""
    early = ", where it stopped early" if state.stopped_early else ""
    best = f"the best of them {state.best_epoch}" if state.best_epoch else "none better than the head alone"
    best = "the last of which is kept" if config.pretrains and config.schedule.best == AUTO else best
    return f"{folder} is finished: {counted(state.epoch, 'epoch')}{early}, {best}; there is nothing left to train."


def refuse_part(folder: Path) -> None:
    """Refuse to continue a fold or a trial by itself: its pictures and settings are those of the run that it is in."""
    for whole in folder.absolute().parents[:2]:
        if (whole / CONFIG).is_file() and any((whole / name).is_file() for name in (FOLDS, STUDY)):
            raise ConfigError(f"{folder} is a part of the run in {whole}; resume that.")


def refuse_conflicts(config: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """A resumed run is the same run: settings may repeat what it has, and change only how it is carried out."""
    if changes.get("weights") in (AUTO, NONE, None):  # which the run has settled
        if "weights" in changes and changes["weights"] != AUTO and config.start.weights is not None:
            raise ConfigError(
                f"`weights={NONE!r}` conflicts with the run, which has {config.start.weights!r}; omit it."
            )
        changes = {name: value for name, value in changes.items() if name != "weights"}
    allowed = {name: value for name, value in changes.items() if name in CHANGEABLE}
    config = replace(config, data=allowed.pop("data", config.data))
    for name, value in changes.items():
        settled = (name in SETTLED and isinstance(value, str)) or (name, value) in AUTOMATIC
        if name in CHANGEABLE or settled:
            continue
        if name == "epochs" and config.schedule.minutes is not None:
            raise ConfigError(
                f"`epochs={value}` conflicts with the run, which has `minutes={config.schedule.minutes:g}`; "
                "omit it to resume, or start a new run."
            )
        old = config.recipe if name == "recipe" else read_field(config, name)
        same = value == old if name == "recipe" else read_field(apply_changes(config, {name: value}), name) == old
        if not same:
            raise ConfigError(
                f"`{name}={value!r}` conflicts with the run, which has {old!r}; omit it to resume, or start a new run."
            )
    return apply_changes(config, allowed)


def check_space(folder: Path, setup: Setup) -> None:
    """Refuse to begin what the disk cannot hold."""
    weights = sum(parameter.numel() * 4 for parameter in setup.model.parameters())
    needed = weights * (4 * 3 + 1) + SPARE_BYTES  # three checkpoints of weights, two moments and average; best
    pictures = max((len(source) for name, source in setup.dataset.splits.items() if name != "train"), default=0)
    needed += disk_bytes(pictures, len(setup.dataset.classes)) + setup.kept_views * setup.answer_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConfigError(
            f"{folder} needs about {needed / 2**20:,.0f} MB for checkpoints and tables; "
            f"{free / 2**20:,.0f} MB are free."
        )


def take_begun(folder: Path, lock: RunLock) -> bool:
    """Whether a folder holds a begun run; if so, it is locked from now on."""
    begun = (folder / CONFIG).exists()
    if begun:
        lock.take(folder)
        sweep(folder)
    return begun


def check_shared(folder: Path, ranks: Ranks) -> None:
    """Refuse a folder that is not the same one for all ranks: each would keep its part of a checkpoint to itself.

    The folder need not exist yet; then it is the one in which it will be made that is looked at.
    """
    if ranks.world_size == 1:
        return
    with ExitStack() as stack:

        def leave_token() -> Path:
            existing = next(path for path in (folder, *folder.parents) if path.is_dir())
            token = stack.enter_context(NamedTemporaryFile(dir=existing, prefix=".ranks-"))
            return existing / Path(token.name).name

        token = ranks.from_first(leave_token)
        seen = ranks.gather((token.exists(), socket.gethostname()))
    for rank, (sees, host) in enumerate(seen):
        if not sees:
            error = ConfigError(
                f"the run folder must be shared by all ranks, since each writes its part of a checkpoint; rank {rank} "
                f"on {host} does not see the {folder} of rank 0. Choose a folder on a shared file system."
            )
            raise ranks.reported_once(error)


def begin(setup: Setup, folder: Path, lock: RunLock) -> None:
    """Make the folder, if the disk has room, and write the description of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    lock.take(folder)
    if (folder / CONFIG).exists():  # since we checked
        raise ConfigError(f"{folder} holds a run already; resume that, or choose another folder.")
    snapshots.refuse_links(folder / LAST)
    check_space(folder, setup)
    write_start(setup, folder)
    if (name := elastic_id()) is not None:
        (folder / ELASTIC).write_text(name, encoding="utf-8")


def sweep(folder: Path) -> None:
    """Remove the drafts of files that a killed run was about to write."""
    for place in (folder, folder / "weights", folder / FOLDER, folder / ANSWERS):
        sweep_drafts(place, MARKS)  # of whatever machine: the run is locked
    snapshots.sweep(folder / LAST)
    snapshots.refuse_links(folder / RESULTS)


def find_begun(out: Path | None, parent: Path, ranks: Ranks) -> Path | None:
    """The run that these processes had before torchrun started them again: by the job's name, or in `out` itself."""
    restarted = ranks.any(was_restarted())

    def find() -> Path | None:
        name = elastic_id()
        if name is None:
            return None
        if out is not None:
            return out if (out / CONFIG).exists() and (restarted or _marked(out, name)) else None
        return next((path.parent for path in sorted(parent.glob(f"*/{ELASTIC}")) if _marked(path.parent, name)), None)

    return ranks.from_first(find)


def _marked(folder: Path, name: str) -> bool:
    marker = folder / ELASTIC
    return marker.is_file() and marker.read_text(encoding="utf-8") == name


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
        evaluated = sum(row.val_loss is not None for row in read_rows(folder / RESULTS))
        return evaluated > 1 and not read_config(folder).pretrains
    except VitrailError:
        return False


def data_check(folder: Path, data: str) -> CheckRecord | None:
    """What the check of these data found before the run, if the run was on these data and they were checked."""
    return read_record(folder / RECORD) if trained_on(folder, data) else None

"""How `vitrail.train`, `resume`, `plan` and `demo` carry out a run, from its start to its report."""

import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.data import Dataset
from vitrail.data.check.findings import RECORD, UNBALANCED, CheckRecord, check_data, judge_labels, sum_up, write_record
from vitrail.errors import ConfigError, ResumableError
from vitrail.files import check_run_folder, new_run_folder
from vitrail.prediction import Predictor
from vitrail.progress import Progress, SteadyConsole, progress_bar, silent, working
from vitrail.ranks import Ranks, join_ranks, leave_ranks
from vitrail.report.assembly import report_on_run
from vitrail.training.auto_config import resolve
from vitrail.training.cost import Measured
from vitrail.training.display import Display
from vitrail.training.listener import Listener, Listeners, Plan
from vitrail.training.plan import describe_plan
from vitrail.training.result import Run, read_run
from vitrail.training.run_folder import (
    CONFIG,
    RunLock,
    begin,
    check_shared,
    describe_end,
    find_begun,
    read_config,
    refuse_conflicts,
    refuse_locked,
    take_begun,
)
from vitrail.training.session import carry_out_run, reopen, settle_run
from vitrail.training.setup import Setup
from vitrail.training.signals import InterruptedRunError
from vitrail.training.trackers import Tracker
from vitrail.training.tracking_services import TrackerName
from vitrail.wording import counted, in_one_line, reason

PREFLIGHT_LIMIT = 20_000  # pictures; larger data sets are not checked before training
# What users open after the report; of a run without labels, the reconstructions too.
BESIDE = ("reconstructions.jpg", "results.csv", "results.png", "train_batch.jpg", "config.yaml")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What accompanies a run and does not change its weights."""

    report: bool = True
    track: tuple[TrackerName, ...] = ()
    progress: bool | Listener = False

    def listen(self, ranks: Ranks) -> Listener:
        """The listener of the run: of several ranks, only the first has one."""
        if isinstance(self.progress, Listener):
            return self.progress if ranks.is_first else Listener()
        shown = self.progress and ranks.is_first
        return Display(SteadyConsole(stderr=True, highlight=False, soft_wrap=True)) if shown else Listener()

    @property
    def speaks(self) -> bool:
        """Whether the run is shown or listened to."""
        return self.progress is not False

    @property
    def bars(self) -> Progress:
        """How work beside the training is shown."""
        return progress_bar if self.speaks else silent


def start(
    data: str, changes: dict[str, Any], out: str | Path | None, name: str, options: RunOptions, *, check: bool
) -> Run:
    """A new run; or the one that torchrun began with the same arguments before it lost a process."""
    ranks = join_ranks(str(changes.get("device", "auto")))
    folder = None if out is None else Path(out)
    if (begun := find_begun(folder, Path("runs"), ranks)) is not None:
        return _continue(begun, {}, ranks, options)
    _refuse_out(out, ranks)
    _refuse_track(options, changes)
    check_shared(folder or Path("runs"), ranks)
    listener = options.listen(ranks)
    setup, measured, checked = _prepare(data, changes, ranks, listener, options, check=check)
    listener.decided(describe_plan(setup, measured, ranks))
    with RunLock() as lock:
        run_folder = ranks.from_first(lambda: _make_folder(setup, folder, lock, name, checked))
        return _carry_out(setup, ranks, run_folder, listener, options, resume=False)


def resume_run(folder: Path, changes: dict[str, Any], options: RunOptions) -> Run:
    """The run in a folder, continued."""
    if "device" not in changes:
        unshared = os.environ.get("RANK", "0") != "0" and not (folder / CONFIG).exists()
        changes["device"] = "auto" if unshared else read_config(folder).machine.device
    return _continue(folder, changes, join_ranks(str(changes["device"])), options)


def plan_run(data: str, changes: dict[str, Any], out: str | Path | None, options: RunOptions, *, check: bool) -> Plan:
    """What a run would do."""
    ranks = join_ranks(str(changes.get("device", "auto")))
    _refuse_out(out, ranks)
    setup, measured, _ = _prepare(data, changes, ranks, options.listen(ranks), options, check=check)
    leave_ranks()
    return describe_plan(setup, measured, ranks)


def _continue(folder: Path, changes: dict[str, Any], ranks: Ranks, options: RunOptions) -> Run:
    listener = options.listen(ranks)
    with RunLock() as lock:
        ranks.from_first(lambda: take_begun(folder, lock))
        check_shared(folder, ranks)
        config = refuse_conflicts(read_config(folder), changes)
        _refuse_track(options, vars(config.selection))
        if ended := describe_end(folder, config):
            leave_ranks()
            return replace(read_run(folder), ended=ended)
        setup = reopen(config, folder, ranks, listener)
        return _carry_out(setup, ranks, folder, listener, options, resume=True)


def _carry_out(
    setup: Setup, ranks: Ranks, folder: Path, listener: Listener, options: RunOptions, *, resume: bool
) -> Run:
    listener.opened(folder, resume=resume)
    say = listener.said if options.speaks else _warn
    try:
        with Tracker(options.track if ranks.is_first else (), folder, setup.config, say) as tracker:
            listener = Listeners([listener, tracker])
            run, predictor = carry_out_run(setup, ranks, folder, listener, resume=resume)
            leave_ranks()  # not after an error: other ranks may be waiting, and torchrun stops them when this one ends
            if not ranks.is_first:
                return run
            if options.report:
                run = write_reports(run, predictor, setup.dataset, options)
            else:
                run = replace(run, written=_beside(run, []))
            listener.completed(run)
            return run
    except InterruptedRunError:
        leave_ranks()
        raise
    except OSError as error:
        if "No space left" not in str(error):
            raise
        raise ResumableError(f"{reason(error)}; what was saved before is intact: free some space", folder) from error


def _prepare(
    data: str, changes: dict[str, Any], ranks: Ranks, listener: Listener, options: RunOptions, *, check: bool
) -> tuple[Setup, Measured, CheckRecord | None]:
    """The data opened and checked, the model built, and what is decided by measuring."""
    began = time.monotonic()
    config, dataset = resolve(data, changes, ranks, listener.said, check=check)
    checked = None
    if check:
        checked = ranks.from_first(lambda: _check(dataset, config.data, listener, options.bars))
    may_shrink = changes.get("image_size") is None
    return *settle_run(config, dataset, ranks, listener, began=began, may_shrink=may_shrink), checked


def _check(dataset: Dataset, data: str, listener: Listener, bars: Progress) -> CheckRecord | None:
    """Check the data before hours are spent on them; None if there are too many pictures to check."""
    total = dataset.num_pictures
    if total > PREFLIGHT_LIMIT:
        listener.checked([(item, 1) for item in judge_labels(dataset)], data)
        listener.said(f"{counted(total, 'picture')} are not checked here; vitrail data check {data} does")
        return None
    with bars("checking pictures", total) as advance:
        report = check_data(dataset, os.cpu_count() or 1, advance)
    report.refuse_broken()
    serious = [pair for pair in report.summary() if pair[0].severity != "note"]
    listener.checked([pair for pair in serious if pair[0].what != UNBALANCED], data)  # of which `settle` speaks
    return sum_up(report)


def _refuse_out(out: str | Path | None, ranks: Ranks) -> None:
    """Refuse a folder that cannot be written into, or holds a run already, before there is work to lose."""

    def refuse() -> None:
        folder = None if out is None else Path(out)
        _refuse_begun(folder)
        check_run_folder(folder)

    ranks.from_first(refuse)


def _refuse_track(options: RunOptions, changes: Mapping[str, Any]) -> None:
    """Trackers follow the epochs of one model."""
    for name in ("folds", "search"):
        if options.track and changes.get(name) is not None:
            raise ConfigError(f"follows one model, and `{name}=` trains many; omit it.", field="track")


def _refuse_begun(out: Path | None) -> None:
    if out is not None:
        refuse_locked(out)
    if out is not None and (out / CONFIG).exists():
        raise ResumableError(f"{out} holds a run already; choose another `out=` for a new one", out)


def _make_folder(setup: Setup, out: Path | None, lock: RunLock, name: str, checked: CheckRecord | None) -> Path:
    """A new, locked run folder with a description of the run and of its data."""
    _refuse_begun(out)
    folder = new_run_folder(name, out)
    begin(setup, folder, lock)
    if checked is not None:
        write_record(checked, folder / RECORD)
    return folder


def write_reports(run: Run, predictor: Predictor, dataset: Dataset, options: RunOptions) -> Run:
    """The run with its report and the figures beside it; a failure there is reported and does not harm the run."""
    try:
        with working("writing the report", speaks=options.speaks):
            measured = {"measurement": run.measurement, "held_out": run.held_out}
            pages = report_on_run(run.folder, dataset, predictor, **measured, progress=options.bars)
    except Exception as error:
        problem = in_one_line(error)
        if isinstance(options.progress, bool):  # whoever passed a listener looks at the result
            warnings.warn(f"no report: {problem} (the model is in {run.best})", RuntimeWarning, stacklevel=2)
        return replace(run, problem=problem, written=_beside(run, []))
    return replace(run, report=pages[0], written=_beside(run, pages))


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def _beside(run: Run, pages: list[Path]) -> tuple[Path, ...]:
    return (*pages[:1], run.best, *pages[1:], *(path for name in BESIDE if (path := run.folder / name).is_file()))

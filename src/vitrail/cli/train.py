"""`vitrail train`: from a folder of pictures to a model."""

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from vitrail.cli.flags import given, optional_fields
from vitrail.cli.options import Json, parse_size
from vitrail.cli.printing import SteadyConsole, duration, escape, print_end, print_json, progress_bar, working
from vitrail.cli.report import attempt, report_on_run
from vitrail.cli.runs import check_run_folder, new_run_folder
from vitrail.data.augment.config import Augment
from vitrail.data.config import DataConfig
from vitrail.errors import ConfigError, VitrailError
from vitrail.training.config import Machine, Optim, Schedule, Start
from vitrail.wording import counted, reason

if TYPE_CHECKING:
    from vitrail.data import Dataset
    from vitrail.data.check.record import CheckRecord
    from vitrail.ranks import Ranks
    from vitrail.training.config import TrainConfig
    from vitrail.training.listener import Listener
    from vitrail.training.lock import RunLock
    from vitrail.training.plan import Measured
    from vitrail.training.run import Outcome
    from vitrail.training.setup import Setup

_Flags = optional_fields("TrainFlags", Start, Optim, Schedule, Machine, Augment, DataConfig)
_FLAGS: Any = Annotated[_Flags, Parameter(name="*")]
_NOTHING = _Flags()
PRETRAINED = "hf://google/vit-base-patch16-224-in21k"
PREFLIGHT_LIMIT = 20_000  # pictures: larger sets are looked at with `vitrail data check`


def train(
    data: str = "",
    *,
    recipe: str | None = None,
    config: Path | None = None,
    resume: Path | None = None,
    out: Path | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    check: bool = True,
    track: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
    flags: _FLAGS = _NOTHING,  # pyright: ignore[reportInvalidTypeForm, reportUnknownParameterType]
) -> int:
    """Train or fine-tune on pictures. `vitrail train PICTURES` alone chooses a model and a recipe that suit them.

    Flags beat the YAML file, which beats the recipe. Under torchrun all processes train one model.

    Parameters
    ----------
    data
        The data set: a folder of class folders, a table, shards, or a name such as digits or cifar10.
    recipe
        digits, mnist, cifar10, cifar10-tiny, scratch, finetune, finetune-adamw, linear, imagenet-s16, imagenet-b16.
    config
        A YAML file with any of the fields below, such as the config.yaml of another run.
    resume
        The folder of a run to continue; flags may only repeat what it has.
    out
        The folder to write to [default: runs/train-N].
    dry_run
        Show the whole config, parameters, memory and time, and stop.
    check
        Look for damaged pictures, leakage between splits and imbalance first.
    track
        Write TensorBoard's files too.
    """
    from vitrail.ranks import join_ranks, leave_ranks
    from vitrail.training.display import Display
    from vitrail.training.lock import RunLock
    from vitrail.training.run import find_begun, read_config, take_begun
    from vitrail.training.signals import InterruptedRunError
    from vitrail.training.tensorboard import require_tensorboard

    changes = _changes(config, flags)
    if resume is not None:
        _refuse_with_resume(resume, out, dry_run)
        changes.setdefault("device", read_config(resume).machine.device)
    if track:
        require_tensorboard()
    ranks = join_ranks(str(changes.get("device", "auto")))
    console = SteadyConsole(stderr=as_json, highlight=False, soft_wrap=True)
    folder, lock = resume, RunLock()
    try:
        if resume is None and (begun := find_begun(out, Path("runs"), ranks)) is not None:
            resume, folder, changes = begun, begun, {}  # the same command as before, so the same run
        if resume is not None:
            begun = resume
            ranks.from_first(lambda: take_begun(begun, lock))
            if not as_json and (ended := _refuse_or_describe(resume, data, recipe, changes)):
                _print_ended(ended, resume, ranks, console)
                leave_ranks()
                return 0
            setup = _reopen(
                resume, data, recipe, changes, ranks, Display(console, silent=as_json or not ranks.is_first)
            )
            outcome = carry_out_shown(setup, ranks, resume, console, track, as_json, resume=True)
        else:
            changes |= {"recipe": recipe} if recipe else {}
            ranks.from_first(lambda: _refuse_begun(out))
            ranks.from_first(lambda: check_run_folder(out))
            setup, measured, checked = _prepare(data, changes, ranks, console, check, as_json)
            if ranks.is_first and (dry_run or not as_json):
                print_plan(setup, measured, ranks, console, dry_run, as_json)
            if dry_run:
                return 0
            folder = ranks.from_first(lambda: make_folder(setup, out, lock, checked=checked))
            outcome = carry_out_shown(setup, ranks, folder, console, track, as_json)
        leave_ranks()  # not after an error: other ranks may be waiting, and torchrun ends them when this one ends
        code = end(outcome, setup, ranks, console, as_json) if ranks.is_first else 0
        return code if ranks.world_size == 1 else 0  # a run that has ended must not be started again for its report
    except InterruptedRunError as stop:
        _tell_how_to_go_on(folder, ranks, console)
        leave_ranks()
        return stop.exit_code
    except (KeyboardInterrupt, SystemExit):  # before the first step or after the last, where nobody waits for the loop
        _tell_how_to_go_on(folder, ranks, console)
        raise
    except OSError as error:
        if folder is None or "No space left" not in str(error):
            raise
        again = f"vitrail train --resume {shlex.quote(str(folder))}"
        raise VitrailError(
            f"{reason(error)}; what was saved before is whole: make room and continue with {again}"
        ) from error
    finally:
        lock.release()


def _tell_how_to_go_on(folder: Path | None, ranks: "Ranks", console: Console) -> None:
    if ranks.is_first and folder is not None:
        with suppress(OSError):  # after SIGHUP, there is no terminal to print to
            console.print(f"\nsaved; continue with: [bold]vitrail train --resume {shlex.quote(str(folder))}[/]")


def _changes(config: Path | None, flags: Any) -> dict[str, Any]:
    """What the YAML file and the flags say, the flags last."""
    from vitrail.training.choose import flatten

    changes: dict[str, Any] = {}
    if config is not None:
        from vitrail.reading import read_yaml

        changes = flatten(read_yaml(config) or {}, str(config))
    said = given(flags)
    for one, other in (("minutes", "epochs"), ("weights", "model")):  # of which a flag replaces the file's
        for mine, theirs in ((one, other), (other, one)):
            if mine in said:
                changes.pop(theirs, None)
    changes |= said
    if isinstance(changes.get("image_size"), str):
        changes["image_size"] = parse_size(changes["image_size"])
    return changes


def _prepare(
    data: str, changes: dict[str, Any], ranks: "Ranks", console: Console, check: bool, as_json: bool
) -> tuple["Setup", "Measured", "CheckRecord | None"]:
    from vitrail.training.choose import wants_weights
    from vitrail.training.display import Display
    from vitrail.training.run import resolve, settle

    display = Display(console, silent=as_json or not ranks.is_first)
    config, dataset = resolve(data, changes, ranks)
    checked = ranks.from_first(lambda: _check(dataset, console, config, silent=as_json)) if check else None
    if wants_weights(config, dataset):
        display.said(
            f"training from scratch on {counted(len(dataset.split('train')), 'photograph')}; pretrained weights are "
            f"usually far more accurate: add --weights {PRETRAINED}"
        )
    return *settle(config, dataset, ranks, display), checked


def _check(dataset: "Dataset", console: Console, config: "TrainConfig", *, silent: bool) -> "CheckRecord | None":
    """Say what is wrong with the data before hours are spent on them; None if they are too many to look at."""
    import os

    from vitrail.cli.data import STYLES
    from vitrail.data.check.record import sum_up
    from vitrail.data.check.report import check_data

    total = sum(len(source) for source in dataset.splits.values())
    if total > PREFLIGHT_LIMIT:
        if silent:
            return None
        console.print(
            f"[dim]{counted(total, 'picture')} are not checked one by one; vitrail data check {config.data} does.[/]"
        )
        return None
    with progress_bar("checking pictures", total) as advance:
        report = check_data(dataset, os.cpu_count() or 1, advance)
    serious = [(item, count) for item, count in report.summary() if item.severity != "note" and not silent]
    for item, count in serious:
        example = escape(item.key)
        severity = f"[{STYLES[item.severity]}]{item.severity} in the data[/]"
        console.print(f"{severity}: {item.what}: {count:,}, for example {example}")
    if report.exit_code == 2:
        raise ConfigError(f"too many pictures of {config.data} cannot be read; see vitrail data check.")
    if serious:
        console.print(f"[dim]training goes on with these data; details: vitrail data check {escape(config.data)}[/]")
    return sum_up(report)


def make_folder(
    setup: "Setup", out: Path | None, lock: "RunLock", name: str = "train", *, checked: "CheckRecord | None" = None
) -> Path:
    """A new run folder with what the run is and what is known about its data, which nobody else may write into."""
    from vitrail.data.check.record import RECORD, write_record
    from vitrail.training.run import begin

    _refuse_begun(out)
    folder = new_run_folder(name, out)
    begin(setup, folder, lock)
    if checked is not None:
        write_record(checked, folder / RECORD)
    return folder


def _refuse_begun(out: Path | None) -> None:
    from vitrail.training.lock import refuse_locked
    from vitrail.training.run import CONFIG

    if out is not None:
        refuse_locked(out)
    if out is not None and (out / CONFIG).exists():
        raise ConfigError(f"{out} holds a run already; continue it with --resume {out}, or choose another --out.")


def _refuse_with_resume(resume: Path, out: Path | None, dry_run: bool) -> None:
    if out is not None and out != resume:
        raise ConfigError(f"--resume continues in {resume}; leave --out {out} away.")
    if dry_run:
        raise ConfigError("--dry-run shows what a new run would do; leave --resume away.")


def _refuse_or_describe(folder: Path, data: str, recipe: str | None, changes: dict[str, Any]) -> str:
    """What a finished run came to, unless the flags conflict with it; "" for a run that can go on."""
    from vitrail.training.run import describe_end, read_config, refuse_conflicts

    config = read_config(folder)
    given = {name: value for name, value in (("data", data), ("recipe", recipe)) if value}
    refuse_conflicts(config, {**changes, **given})
    return describe_end(folder, config)


def _print_ended(ended: str, folder: Path, ranks: "Ranks", console: Console) -> None:
    if ranks.is_first:
        console.print(escape(ended))
        console.print(f"its report: {escape(str(folder / 'report.html'))}")
        again = shlex.join(["vitrail", "train", "PICTURES", "--weights", str(folder)])
        print_end([], f"{again} starts a new run from its weights")


def _reopen(
    folder: Path, data: str, recipe: str | None, changes: dict[str, Any], ranks: "Ranks", listener: "Listener"
) -> "Setup":
    """What a begun run trains, on what."""
    from vitrail.training.run import read_config, refuse_conflicts, reopen

    changes |= {name: value for name, value in (("data", data), ("recipe", recipe)) if value}
    config = refuse_conflicts(read_config(folder), changes)
    return reopen(config, folder, ranks, listener)


def carry_out_shown(
    setup: "Setup",
    ranks: "Ranks",
    folder: Path,
    console: Console,
    track: bool,
    as_json: bool,
    *,
    resume: bool = False,
) -> "Outcome":
    from vitrail.training.display import Display
    from vitrail.training.listener import Listeners
    from vitrail.training.run import carry_out

    silent = as_json or not ranks.is_first
    members: list[Listener] = [Display(console, silent=silent)]
    if track and ranks.is_first:
        from vitrail.training.tensorboard import TensorBoard

        members.append(TensorBoard(folder))
    if not silent:
        console.print(f"{'continuing' if resume else 'writing to'} [bold]{escape(str(folder))}[/]")
    return carry_out(setup, ranks, folder, Listeners(members), resume=resume)


def print_plan(
    setup: "Setup", measured: "Measured", ranks: "Ranks", console: Console, whole: bool, as_json: bool
) -> None:
    """The facts that a person wants to see before hours of work; all of them for a dry run."""
    from vitrail.training.plan import run_seconds
    from vitrail.training.run import describe_config

    config, splits = setup.config, setup.dataset.splits
    parameters = sum(parameter.numel() for parameter in setup.model.parameters())
    seconds = run_seconds(setup, measured, ranks.world_size)
    facts: dict[str, Any] = {
        "data": setup.dataset.name,
        "classes": len(setup.dataset.classes),
        "pictures": {name: len(source) for name, source in splits.items()},
        "recipe": config.recipe,
        "model": config.start.model or config.start.weights,
        "parameters": parameters,
        "image_size": list(setup.model.config.image_size),
        "device": str(ranks.device),
        "ranks": ranks.world_size,
        "epochs": config.schedule.epochs,
        "minutes": round(seconds / 60, 1),
        "memory_mb": round(measured.peak_bytes / 2**20),
        "config": describe_config(config),
    }
    if as_json:
        print_json(facts)
        return
    if whole:
        import yaml

        console.print(yaml.safe_dump(facts["config"], sort_keys=False, allow_unicode=True), end="", markup=False)
    counts = ", ".join(f"{name} {count:,}" for name, count in facts["pictures"].items())
    console.print(f"data    {escape(setup.dataset.name)}: {counted(facts['classes'], 'class')}; {counts}")
    height, width = facts["image_size"]
    console.print(
        f"model   {escape(str(facts['model']))}: {parameters:,} parameters, pictures of {width}×{height}, "
        f"recipe {config.recipe}"
    )
    epochs = config.schedule.epochs
    what = f"{counted(epochs, 'epoch')} of about {seconds / epochs:.1f} s ({duration(seconds)})"
    if config.start.train == "head":
        what = f"features once, in about {duration(seconds)}; then {counted(epochs, 'epoch')} of the head"
    console.print(
        f"plan    {what} on {ranks.device} × {ranks.world_size}, batch {config.machine.batch_size}, "
        f"memory {facts['memory_mb']:,} MB"
    )


def end(outcome: "Outcome", setup: "Setup", ranks: "Ranks", console: Console, as_json: bool) -> int:
    """Show what came out, with a report, which one process makes alone; without it the exit code is 1."""
    if not as_json:
        print_scores(outcome, console)
    pages = write_reports(outcome, setup, ranks)
    if as_json:
        judged = {name: it for name, it in (("val", outcome.val), ("test", outcome.test)) if it is not None}
        facts: dict[str, Any] = {"folder": str(outcome.folder), "weights": str(outcome.weights)}
        facts |= {"epochs": outcome.epochs, "best_epoch": outcome.best_epoch, "seconds": outcome.seconds}
        facts |= {name: vars(it) for name, it in judged.items()}
        facts |= {"val_chose_epoch": outcome.val_chose_epoch}
        print_json({**facts, "written": [str(path) for path in pages]})
    else:
        print_end(written_paths(outcome, pages), f"vitrail predict {shlex.quote(str(outcome.folder))} PICTURES")
    return 0 if pages else 1


def write_reports(outcome: "Outcome", setup: "Setup", ranks: "Ranks") -> list[Path]:
    """The report of a finished run and the figures beside it; none if they cannot be made, which is then said."""
    with working("writing the report"):
        return attempt(
            lambda: report_on_run(outcome.folder, setup.dataset, str(ranks.device)),
            f"the model is in {outcome.weights}",
        )


def print_scores(outcome: "Outcome", console: Console) -> None:
    """Accuracy and loss on each split."""
    judged = {name: it for name, it in (("val", outcome.val), ("test", outcome.test)) if it is not None}
    for name, it in judged.items():
        chose = "; val also chose the epoch" if name == "val" and outcome.val_chose_epoch else ""
        pictures = counted(it.count, "picture")
        console.print(f"{name:5} accuracy [bold]{it.accuracy:.2%}[/]  loss {it.loss:.4f}  ({pictures}{chose})")


def written_paths(outcome: "Outcome", pages: list[Path]) -> list[Path]:
    """The files that a person will want to open, the report first."""
    names = ("results.csv", "results.png", "train_batch.jpg", "config.yaml")
    return [*pages[:1], outcome.weights, *pages[1:], *(outcome.folder / name for name in names)]

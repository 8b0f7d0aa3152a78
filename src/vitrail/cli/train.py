"""`vitrail train`: parses, shows the run, and gives the exit code; `vitrail/verbs/train.py` does the work."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from vitrail.cli.commands import Json, given, optional_fields
from vitrail.cli.printing import PlainConsole, SteadyConsole, escape, plain, print_end, print_json
from vitrail.data.config import Augment, DataConfig
from vitrail.errors import ConfigError
from vitrail.training.config import Machine, Optim, Schedule, Start
from vitrail.wording import counted

if TYPE_CHECKING:
    from vitrail.training.display import Display
    from vitrail.training.listener import Plan
    from vitrail.training.run import Run

_Flags = optional_fields("TrainFlags", Start, Optim, Schedule, Machine, Augment, DataConfig)
_FLAGS: Any = Annotated[_Flags, Parameter(name="*")]
_NOTHING = _Flags()

RECIPE_HELP = (
    "Named settings: digits, mnist, cifar10, cifar10-tiny, scratch, finetune, finetune-adamw, linear, lora, "
    "imagenet-s16 or imagenet-b16 [default: chosen from the data]."
)


def train(
    data: Annotated[str, Parameter(show_default=False)] = "",
    *,
    recipe: Annotated[str | None, Parameter(help=RECIPE_HELP)] = None,
    config: Path | None = None,
    resume: Path | None = None,
    out: Path | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    check: bool = True,
    report: bool = True,
    track: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
    flags: _FLAGS = _NOTHING,  # pyright: ignore[reportInvalidTypeForm, reportUnknownParameterType]
) -> int:
    """Train or fine-tune on pictures.

    Parameters
    ----------
    data
        The data set: a folder of class folders, a table, shards, or a name such as digits or cifar10.
    config
        A YAML file with any of the fields below, such as the config.yaml of another run.
    resume
        The folder of a run to continue; other flags must agree with the run.
    out
        The folder to write to [default: runs/train-N].
    dry_run
        Show the whole config, the parameters, memory and time, and stop.
    check
        First look for labels that are no classes, damaged pictures, leakage between splits and imbalance.
    report
        Write a report at the end: a page, its figures and its tables.
    track
        Also write TensorBoard files.
    """
    from vitrail.training.recipes import read_changes

    settings = given(flags)
    read_changes("train" if resume is None else "resume", recipe, config, settings)  # before torch is loaded

    from vitrail.cli.run_display import RunDisplay, until_interrupted
    from vitrail.verbs.train import plan as plan_run
    from vitrail.verbs.train import resume as resume_run
    from vitrail.verbs.train import train as train_run

    console = SteadyConsole(stderr=as_json, highlight=False, soft_wrap=True)
    display = RunDisplay(console, silent=as_json)

    def work() -> int:
        if resume is not None:
            _refuse_with_resume(resume, out, dry_run)
            settings.update({name: value for name, value in (("data", data), ("recipe", recipe)) if value})
            return end(
                resume_run(resume, config=config, report=report, track=track, progress=display, **settings), as_json
            )
        if dry_run:
            plan = plan_run(data, recipe=recipe, config=config, out=out, check=check, progress=display, **settings)
            _print_plan(plan, display, as_json)
            return 0
        asked: dict[str, Any] = {"recipe": recipe, "config": config, "out": out, "check": check, "track": track}
        asked["report"] = report
        return end(train_run(data, progress=display, **asked, **settings), as_json)

    return until_interrupted(work, display)


def _refuse_with_resume(resume: Path, out: Path | None, dry_run: bool) -> None:
    if out is not None and out != resume:
        raise ConfigError(f"--resume continues in {resume}; omit --out {out}.")
    if dry_run:
        raise ConfigError("--dry-run shows what a new run would do; omit --resume.")


def _print_plan(plan: "Plan", display: "Display", as_json: bool) -> None:
    """Print the whole config, and the time and memory that the run will need."""
    import yaml

    if not is_first_rank():
        return
    if as_json:
        print_json(vars(plan))
        return
    text = yaml.safe_dump(plan.config, sort_keys=False, allow_unicode=True)
    display.console.print(text, end="", markup=False)
    display.decided(plan)


def is_first_rank() -> bool:
    """Whether this process speaks for all that torchrun has started."""
    return os.environ.get("RANK", "0") == "0"


def end(run: "Run", as_json: bool) -> int:
    """Show the results; without a report the exit code is 1, except under torchrun, which would start again."""
    if not is_first_rank():
        return 0
    print_problem(run)
    if as_json:
        scores = {name: vars(it) for name, it in (("val", run.val), ("test", run.test)) if it is not None}
        facts = {name: value for name, value in run.facts().items() if name not in ("val", "test")}
        print_json(
            {
                "folder": str(run.folder),
                "weights": str(run.best),
                **facts,
                **scores,
                "written": [str(path) for path in run.written],
            }
        )
    elif run.ended:
        _print_ended(run)
    else:
        print_scores(run, SteadyConsole(highlight=False, soft_wrap=True))
        print_end(run.written, f"vitrail predict {shlex.quote(str(run.folder))} PICTURES")
    return exit_code(run)


def exit_code(run: "Run") -> int:
    """1 if the report failed; torchrun must not start a finished run again because of it."""
    return int(bool(run.problem) and int(os.environ.get("WORLD_SIZE", "1")) == 1)


def print_problem(run: "Run") -> None:
    """Why there is no report, and what is safe."""
    if run.problem:
        console = PlainConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)
        console.print(f"no report: {plain(run.problem)} (the model is in {run.best})")


def _print_ended(run: "Run") -> None:
    console = SteadyConsole(highlight=False, soft_wrap=True)
    console.print(escape(run.ended))
    if run.report is not None:
        console.print(f"its report: {escape(str(run.report))}")
    again = shlex.join(["vitrail", "train", "PICTURES", "--weights", str(run.folder)])
    print_end([], f"{again} starts a new run from its weights")


def print_scores(run: "Run", console: Console) -> None:
    """Accuracy and loss on each split."""
    for name, score in (("val", run.val), ("test", run.test)):
        if score is not None:
            chose = "; val also chose the epoch" if name == "val" and run.val_chose_epoch else ""
            pictures = counted(score.count, "picture")
            console.print(
                f"{name:5} accuracy [bold]{score.accuracy:.2%}[/]  loss {score.loss:.4f}  ({pictures}{chose})"
            )

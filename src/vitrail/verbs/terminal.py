"""What `vitrail train`, `pretrain` and `demo` do beside calling their verb: they show the run, and tell how a stopped
one goes on.

Torch is loaded by the verb itself, so that a mistake in the arguments is told at once.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import RenderableType

from vitrail.errors import ConfigError, ResumableError
from vitrail.progress import SteadyConsole
from vitrail.training.display import Display
from vitrail.training.recipes import PRETRAINED_BY
from vitrail.training.signals import InterruptedRunError, PromptEnd
from vitrail.verbs import Output
from vitrail.verbs.pretrain import pretrain
from vitrail.verbs.train import demo, plan, train
from vitrail.verbs.train import resume as continue_run

if TYPE_CHECKING:
    from vitrail.training.listener import Plan
    from vitrail.training.result import Run

T = TypeVar("T")


def run_train(
    arguments: dict[str, Any], output: Output, *, resume: str | Path | None = None, dry_run: bool = False
) -> "Run | Plan | Interrupted | None":
    """`vitrail train`: a new run, one that is continued, or only its plan.

    Args:
        resume: The folder of a run to continue; other flags must agree with the run.
        dry_run: Show the whole config, the parameters, memory and time, and stop.
    """
    return _run(train, "train", arguments, output, resume, dry_run)


def run_pretrain(
    arguments: dict[str, Any], output: Output, *, resume: str | Path | None = None, dry_run: bool = False
) -> "Run | Plan | Interrupted | None":
    """`vitrail pretrain`: a new run, one that is continued, or only its plan.

    Args:
        resume: The folder of a run to continue; other flags must agree with the run.
        dry_run: Show the whole config, the parameters, memory and time, and stop.
    """
    return _run(pretrain, "pretrain", arguments, output, resume, dry_run)


def _run(
    begin: "Callable[..., Run]",
    verb: str,
    arguments: dict[str, Any],
    output: Output,
    resume: str | Path | None,
    dry_run: bool,
) -> "Run | Plan | Interrupted | None":
    if resume is not None and dry_run:
        raise ConfigError("shows what a new run would do; omit `resume=`.", field="dry_run")
    display = RunDisplay(output, verb)

    def work() -> "Run | Plan":
        if resume is not None:
            return continue_run(resume, progress=display, **_for_resume(arguments, resume))
        if dry_run:
            settings = _without(arguments, "report", "track")
            if verb == "pretrain":
                settings["method"] = PRETRAINED_BY
            return plan(progress=display, **settings)
        return begin(progress=display, **arguments)

    result = _until_interrupted(work, display)
    return result if os.environ.get("RANK", "0") == "0" or not hasattr(result, "lines") else None


def _for_resume(arguments: dict[str, Any], folder: str | Path) -> dict[str, Any]:
    """What was typed for a run that has its folder, and was checked when it began."""
    out = arguments.get("out", folder)
    if Path(out) != Path(folder):
        raise ConfigError(f"continues in {folder}; omit `out={out}`.", field="resume")
    empty = [name for name in ("data", "recipe") if not arguments.get(name)]
    return _without(arguments, "out", "check", *empty)


def _without(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in names}


def run_demo(arguments: dict[str, Any], output: Output) -> "Demo | Interrupted":
    """`vitrail demo`: a run, and what to try next."""
    display = RunDisplay(output)
    display.console.print(
        "vitrail demo: a Vision Transformer learns handwritten digits, from scratch, on this machine.\n"
    )
    return _until_interrupted(lambda: Demo(demo(progress=display, **arguments)), display)


@dataclass(frozen=True)
class Demo:
    """A run of the demo, with what to try next."""

    run: "Run"

    @property
    def exit_code(self) -> int:
        """1: no report could be made."""
        return self.run.exit_code

    def remarks(self) -> Iterator[str]:
        """Why there is no report."""
        return self.run.remarks()

    def lines(self) -> Iterator[RenderableType]:
        """The results, and what to try next."""
        yield ""
        yield from self.run.scores()
        yield f"\nwrote {', '.join(map(str, self.run.written))}"
        if self.run.report is not None:
            shown = "the curves, the mistakes and what the model looks at"
            yield f"\nopen {self.run.report} in a browser for {shown}"
        folder = shlex.quote(str(self.run.folder))
        yield "\ntry this model:"
        yield f"  vitrail predict {folder} PICTURES"
        yield f"  vitrail eval {folder} digits --robustness"
        yield f"  vitrail figures {folder}"
        yield "\nthen your own pictures, in a folder with one folder per class:"
        yield from (f"  vitrail {verb} PICTURES" for verb in ("data check", "train"))
        yield "  vitrail train PICTURES --minutes 30"


class Interrupted:
    """What is left of a run that a signal has ended: its exit code."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code

    def show_rows(self) -> None:
        """There is nothing to add to what was printed."""


class RunDisplay(Display):
    """A display that knows the run's folder, and what ends the process until there is one."""

    def __init__(self, output: Output, verb: str = "train") -> None:
        console = SteadyConsole(stderr=output.as_json, highlight=False, soft_wrap=True)
        super().__init__(console, word=output.word, silent=output.as_json)
        self.verb = verb  # that continues the run
        self.folder: Path | None = None
        self.planning: PromptEnd | None = None

    def opened(self, folder: Path, *, resume: bool) -> None:
        super().opened(folder, resume=resume)
        self.folder = folder
        self.end_planning()

    def end_planning(self) -> None:
        """From now on there is something to save when a signal comes, or nothing left to do."""
        if self.planning is not None:
            self.planning.cancel()

    def print_resume_command(self) -> None:
        """Print the command that continues the run, if it has begun."""
        if self.folder is not None:
            with suppress(OSError):  # after SIGHUP, there is no terminal to print to
                self.console.print(f"\nsaved; continue with: [bold]{_resume_command(self.folder, self.verb)}[/]")


def _until_interrupted(work: Callable[[], T], display: RunDisplay) -> T | Interrupted:
    """The result of some work on a run; if it is interrupted, the command that continues it is printed.

    Until the run has begun, a signal ends a single process at once; torchrun ends its own.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        display.planning = PromptEnd()
    try:
        return work()
    except InterruptedRunError as stop:
        display.print_resume_command()
        return Interrupted(stop.exit_code)
    except ResumableError as error:
        error.how = _resume_command(error.folder, display.verb)
        raise
    except (KeyboardInterrupt, SystemExit):  # before the first step or after the last, outside of the loop
        display.print_resume_command()
        raise
    finally:
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt | SystemExit):
            display.end_planning()


def _resume_command(folder: Path, verb: str) -> str:
    return f"vitrail {verb} --resume {shlex.quote(str(folder))}"

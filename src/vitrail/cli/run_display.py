"""How the command shows a run, and what it prints when one is interrupted."""

import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vitrail.cli.flags import flags_of_configs
from vitrail.cli.usage import as_flags
from vitrail.data.augment.config import Augment
from vitrail.data.config import DataConfig
from vitrail.errors import ResumableError
from vitrail.training.config import Machine, Optim, Schedule, Start
from vitrail.training.display import Display
from vitrail.training.listener import Plan
from vitrail.training.signals import InterruptedRunError

FLAGS = flags_of_configs(Start, Optim, Schedule, Machine, Augment, DataConfig)


class RunDisplay(Display):
    """A display that knows the run's folder, and names settings as flags."""

    def __init__(self, console: Console, *, silent: bool = False) -> None:
        super().__init__(console, silent=silent)
        self.folder: Path | None = None

    def opened(self, folder: Path, *, resume: bool) -> None:
        super().opened(folder, resume=resume)
        self.folder = folder

    def decided(self, plan: Plan) -> None:
        super().decided(replace(plan, chosen=as_flags(plan.chosen, FLAGS)))

    def said(self, message: str) -> None:
        super().said(as_flags(message, FLAGS))

    def print_resume_command(self) -> None:
        """Print the command that continues the run, if it has begun."""
        if self.folder is not None:
            with suppress(OSError):  # after SIGHUP, there is no terminal to print to
                self.console.print(f"\nsaved; continue with: [bold]{_resume_command(self.folder)}[/]")


def until_interrupted(work: Callable[[], int], display: RunDisplay) -> int:
    """The exit code of some work on a run; if it is interrupted, the command that continues it is printed."""
    try:
        return work()
    except InterruptedRunError as stop:
        display.print_resume_command()
        return stop.exit_code
    except ResumableError as error:
        error.how = _resume_command(error.folder)
        raise
    except (KeyboardInterrupt, SystemExit):  # before the first step or after the last, outside of the loop
        display.print_resume_command()
        raise


def _resume_command(folder: Path) -> str:
    return f"vitrail train --resume {shlex.quote(str(folder))}"

"""How the command shows a run, and what it prints when one is interrupted."""

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from vitrail.cli.commands import flags_of_configs
from vitrail.cli.usage import as_flags
from vitrail.data.config import Augment, DataConfig
from vitrail.errors import ResumableError
from vitrail.training.config import Machine, Optim, Schedule, Start
from vitrail.training.display import Display
from vitrail.training.signals import InterruptedRunError, PromptEnd

FLAGS = flags_of_configs(Start, Optim, Schedule, Machine, Augment, DataConfig)


class RunDisplay(Display):
    """A display that knows the run's folder, and names settings as flags."""

    def __init__(self, console: Console, *, silent: bool = False) -> None:
        super().__init__(console, silent=silent)
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

    def word(self, text: str) -> str:
        return as_flags(text, FLAGS)

    def print_resume_command(self) -> None:
        """Print the command that continues the run, if it has begun."""
        if self.folder is not None:
            with suppress(OSError):  # after SIGHUP, there is no terminal to print to
                self.console.print(f"\nsaved; continue with: [bold]{_resume_command(self.folder)}[/]")


def until_interrupted(work: Callable[[], int], display: RunDisplay) -> int:
    """The exit code of some work on a run; if it is interrupted, the command that continues it is printed.

    Until the run has begun, a signal ends a single process at once; torchrun ends its own.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        display.planning = PromptEnd()
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
    finally:
        if not isinstance(sys.exc_info()[1], KeyboardInterrupt | SystemExit):
            display.end_planning()


def _resume_command(folder: Path) -> str:
    return f"vitrail train --resume {shlex.quote(str(folder))}"

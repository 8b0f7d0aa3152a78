"""What the verbs print alike: names from the disk as plain text, a progress bar, how a command ends."""

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import markup
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn


class SteadyConsole(Console):
    """A console whose reader may go away (`| head`, a lost connection) without ending the work."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def plain(text: str) -> str:
    """A name from the disk that cannot send codes to the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def escape(text: str) -> str:
    """The same, for a text with markup."""
    return markup.escape(plain(text))


def duration(seconds: float) -> str:
    """As a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_end(paths: Iterable[Path], following: str) -> None:
    """The paths written and the next command to try."""
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    written = [plain(str(path)) for path in paths]
    if written:
        console.print("\nwrote " + ", ".join(written))
    console.print(f"next: {plain(following)}")


@contextmanager
def progress_bar(what: str, total: int | None = None, *, speaks: bool = True) -> Generator[Callable[[int], None]]:
    """A bar on a terminal, nothing in a pipe; without a total, a count."""
    console = Console(stderr=True)
    columns: Sequence[SpinnerColumn | TextColumn] = (
        () if total is not None else (SpinnerColumn(), TextColumn("{task.description} {task.completed:,}"))
    )
    enabled = speaks and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not enabled) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)

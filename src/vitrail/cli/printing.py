"""What the verbs print alike: consoles for any text, progress, how a command ends."""

import json
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import markup
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.segment import Segment

from vitrail.cli.pulse import Pulse
from vitrail.wording import plain, reason

__all__ = [
    "PlainConsole",
    "SteadyConsole",
    "duration",
    "escape",
    "plain",
    "print_end",
    "print_error",
    "print_json",
    "print_note",
    "progress_bar",
    "working",
]


class PlainConsole(Console):
    """The only kind of console here: no text that it prints can send codes to the terminal, wherever it is from."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text, lines=True), segment.style)


class SteadyConsole(PlainConsole):
    """A console whose reader may go away (`| head`, a lost connection) without ending the work."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def escape(text: str) -> str:
    """A name from the disk for a text with markup."""
    return markup.escape(plain(text))


def duration(seconds: float) -> str:
    """As a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_json(facts: Any) -> None:
    """One JSON value on standard output, with nothing but ASCII in it."""
    print(json.dumps(facts, indent=2), flush=True)


def print_error(error: Exception | str) -> None:
    """One message on the error stream."""
    text = plain(error if isinstance(error, str) else reason(error), lines=True)
    PlainConsole(stderr=True, highlight=False).print(f"[bold red]error:[/] {markup.escape(text)}", soft_wrap=True)


def print_note(text: str) -> None:
    """What a user should know, in one line on the error stream."""
    PlainConsole(stderr=True, highlight=False, markup=False).print(f"note: {plain(text)}", soft_wrap=True)


def print_end(paths: Iterable[Path], following: str) -> None:
    """The paths written and the next command to try."""
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    written = [plain(str(path)) for path in paths]
    if written:
        console.print("\nwrote " + ", ".join(written))
    console.print(f"next: {plain(following)}")


@contextmanager
def progress_bar(what: str, total: int | None = None, *, speaks: bool = True) -> Generator[Callable[[int], None]]:
    """A bar on a terminal, a line now and then in a pipe; without a total, a count."""
    console = SteadyConsole(stderr=True, highlight=False)
    if not speaks:
        yield lambda _: None
    elif console.is_terminal:
        columns: Sequence[SpinnerColumn | TextColumn] = (
            () if total is not None else (SpinnerColumn(), TextColumn("{task.description} {task.completed:,}"))
        )
        with _live(Progress(*columns, console=console, transient=True)) as progress:
            task = progress.add_task(what, total=total)
            yield lambda count: progress.advance(task, count)
    else:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count

        with Pulse(console, lambda: f"{what}: {_describe(done, total)}").beating():
            yield advance


@contextmanager
def _live(progress: Progress) -> Generator[Progress]:
    """Show one thing at a time: what is shown already waits until the inner one has ended."""
    if _SHOWN:
        _SHOWN[-1].stop()
    _SHOWN.append(progress)
    try:
        with progress:
            yield progress
    finally:
        _SHOWN.pop()
        if _SHOWN:
            _SHOWN[-1].start()


_SHOWN: list[Progress] = []  # on this terminal, the innermost last


def _describe(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"


@contextmanager
def working(what: str, *, speaks: bool = True) -> Generator[None]:
    """A sign of life during work that cannot be counted."""
    console = SteadyConsole(stderr=True, highlight=False)
    if not speaks:
        yield
    elif console.is_terminal:
        spinner = Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True)
        with _live(spinner) as progress:
            progress.add_task(what, total=None)
            yield
    else:
        with Pulse(console, lambda: f"{what} …").beating():
            yield

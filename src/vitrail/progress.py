"""Progress during long work: a bar on a terminal, a line at least every half minute in a pipe, or nothing.

Whatever takes long accepts a `Progress`: the command passes `progress_bar`; Python is silent by default.
"""

import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress as Bar
from rich.progress import SpinnerColumn, TextColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from vitrail.wording import plain

EVERY = 25.0  # seconds without a line after which one is due, so that no silence reaches 30
LOOK = 1.0  # seconds between two looks at the clock

_SHOWN: list[Bar] = []  # on this terminal, the innermost last

Clock = Callable[[], float]


class Pulse:
    """Prints what `describe` says when nothing has been printed for a while, by this pulse or an earlier one."""

    spoken_at: float | None = None  # shared by all: to the reader, several short silent steps are one long silence

    def __init__(self, console: Console, describe: Callable[[], str], clock: Clock = time.monotonic) -> None:
        self._console, self._describe, self._clock = console, describe, clock
        self._began = clock()
        if Pulse.spoken_at is None:
            Pulse.spoken_at = self._began

    def heard(self) -> None:
        """Something else has been printed."""
        Pulse.spoken_at = self._clock()

    def speak(self) -> None:
        """A line, if one is due."""
        now = self._clock()
        if Pulse.spoken_at is not None and now - Pulse.spoken_at < EVERY:
            return
        Pulse.spoken_at = now
        self._console.print(
            f"{self._describe()} ({now - self._began:.0f} s)", markup=False, style="dim", soft_wrap=True
        )

    @contextmanager
    def beating(self) -> Generator[None]:
        """Watch the clock from a separate thread while the work goes on."""
        ended = Event()

        def beat() -> None:
            while not ended.wait(LOOK):
                self.speak()

        thread = Thread(target=beat, name="pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


Advance = Callable[[int], None]  # this many more are done


class Progress(Protocol):
    """Shows one piece of work for as long as the context lasts; without a `total`, what is done is counted."""

    def __call__(self, what: str, total: int | None = None, /) -> AbstractContextManager[Advance]: ...


@contextmanager
def silent(what: str, total: int | None = None) -> Generator[Advance]:
    """Nothing is shown."""
    yield lambda _: None


def pick_progress(progress: "bool | Progress") -> Progress:
    """What a verb's argument `progress` means: True shows bars, False nothing."""
    if isinstance(progress, bool):
        return progress_bar if progress else silent
    return progress


class PlainConsole(Console):
    """The only kind of console here: no text that it prints can send control codes to the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text, lines=True), segment.style)


class SteadyConsole(PlainConsole):
    """A console whose reader may go away (`| head`, a lost connection) without ending the work."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def table(
    rows: Iterable[Sequence[str | Text]], *columns: str, left: int = 1, edge: bool = True, whole: bool = False
) -> Table:
    """Rows under their headings, of which those after the first `left` are of numbers; or else named values."""
    shown = Table(*columns, box=None, show_header=bool(columns), pad_edge=edge)
    for place, column in enumerate(shown.columns):
        column.justify = "right" if place >= left else "left"
        column.no_wrap = whole
    for row in rows:
        cells = [cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row]
        if not columns:
            cells[0].stylize("bold")
            cells[-1].overflow = "fold"
        shown.add_row(*cells)
    return shown


def left_out(broken: Mapping[str, str], most: int = 10, *, count: int | None = None) -> Generator[Text]:
    """The first of the pictures that could not be read, and why; then how many more of `count` there are."""
    for name, why in list(broken.items())[:most]:
        yield Text("left out", "yellow") + Text(plain(f" {name}: {why}"))
    more = (len(broken) if count is None else count) - min(most, len(broken))
    if more:
        yield Text(f"… and {more:,} more", "yellow")


def ending(written: Iterable[Path | str], following: str) -> Generator[str]:
    """The last lines of a command: the paths that were written, and what to try next."""
    if paths := [plain(str(path)) for path in written]:
        yield f"\nwrote {', '.join(paths)}"
    yield f"next: {plain(following)}"


@contextmanager
def _live(progress: Bar) -> Generator[Bar]:
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


@contextmanager
def progress_bar(what: str, total: int | None = None, *, speaks: bool = True) -> Generator[Advance]:
    """A bar on a terminal, a line now and then in a pipe; without a total, a count."""
    console = SteadyConsole(stderr=True, highlight=False)
    if not speaks:
        yield lambda _: None
    elif console.is_terminal:
        columns: Sequence[SpinnerColumn | TextColumn] = (
            () if total is not None else (SpinnerColumn(), TextColumn("{task.description} {task.completed:,}"))
        )
        with _live(Bar(*columns, console=console, transient=True)) as progress:
            task = progress.add_task(what, total=total)
            yield lambda count: progress.advance(task, count)
    else:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count

        with Pulse(console, lambda: f"{what}: {_describe(done, total)}").beating():
            yield advance


def _describe(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,} of {total:,}"


def say_line(text: str) -> None:
    """One line on the error stream, for whoever follows the work."""
    SteadyConsole(stderr=True, highlight=False, markup=False, soft_wrap=True).print(plain(text), style="dim")


@contextmanager
def working(what: str, *, speaks: bool = True) -> Generator[None]:
    """Progress during work that cannot be counted."""
    console = SteadyConsole(stderr=True, highlight=False)
    if not speaks:
        yield
    elif console.is_terminal:
        spinner = Bar(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True)
        with _live(spinner) as progress:
            progress.add_task(what, total=None)
            yield
    else:
        with Pulse(console, lambda: f"{what} …").beating():
            yield

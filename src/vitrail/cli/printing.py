"""What all verbs print in the same way: consoles for any text, progress, how a command ends."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich import markup

from vitrail.progress import PlainConsole, SteadyConsole, progress_bar, working
from vitrail.wording import duration, plain, reason

__all__ = [
    "PlainConsole",
    "SteadyConsole",
    "duration",
    "escape",
    "plain",
    "print_end",
    "print_error",
    "print_json",
    "print_no_report",
    "print_note",
    "print_text",
    "progress_bar",
    "working",
]


def escape(text: str) -> str:
    """A file name, escaped for a text with markup."""
    return markup.escape(plain(text))


def print_json(facts: Any) -> None:
    """One JSON value on standard output, with nothing but ASCII in it."""
    print(json.dumps(facts, indent=2), flush=True)


def print_text(text: str) -> None:
    """A text for a program on standard output, unchanged."""
    print(text, flush=True)


def print_error(error: Exception | str) -> None:
    """One message on the error stream."""
    text = plain(error if isinstance(error, str) else reason(error), lines=True)
    PlainConsole(stderr=True, highlight=False).print(f"[bold red]error:[/] {markup.escape(text)}", soft_wrap=True)


def print_note(text: str) -> None:
    """Something that the user should know, in one line on the error stream."""
    PlainConsole(stderr=True, highlight=False, markup=False).print(f"note: {plain(text)}", soft_wrap=True)


def print_no_report(why: str, safe: str) -> None:
    """Why there is no report, and what is `safe` nevertheless."""
    console = SteadyConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"no report: {plain(why)} ({safe})")


def print_end(paths: Iterable[Path], following: str) -> None:
    """The paths written and the next command to try."""
    console = SteadyConsole(highlight=False, markup=False, soft_wrap=True)
    written = [plain(str(path)) for path in paths]
    if written:
        console.print("\nwrote " + ", ".join(written))
    console.print(f"next: {plain(following)}")

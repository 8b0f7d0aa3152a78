"""What the command prints: results, errors and notes."""

import json
from typing import Any

from rich import markup
from rich.table import Table
from rich.text import Text

from vitrail.progress import PlainConsole, SteadyConsole
from vitrail.verbs import Output
from vitrail.wording import plain, reason

WIDEST = 200  # characters in a line


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


def show(result: Any, output: Output) -> int:
    """Print what a verb returns, and give its exit code."""
    if result is None:
        return 0
    if not getattr(result, "speaks", True):  # one of several ranks
        return int(result.exit_code)
    if hasattr(result, "show_rows"):  # one row after the other, as they are computed
        result.show_rows()
        return int(result.exit_code)
    for remark in getattr(result, "remarks", tuple)():
        PlainConsole(stderr=True, highlight=False, markup=False).print(output.word(plain(remark)), soft_wrap=True)
    if output.as_json:
        print_json(result.to_dict())
        return int(result.exit_code)
    console = SteadyConsole(highlight=False, markup=False)
    for line in result.lines():
        if isinstance(line, Table):
            if any(column.no_wrap for column in line.columns):  # numbers that are cut off are worth nothing
                whole = console.measure(line, options=console.options.update(max_width=WIDEST)).maximum
                console.width = max(console.width, whole)
            console.print(line)
        else:
            text = line if isinstance(line, Text) else Text(line)
            console.print(Text(output.word(text.plain), style=text.style, spans=text.spans), soft_wrap=True)
    return int(result.exit_code)

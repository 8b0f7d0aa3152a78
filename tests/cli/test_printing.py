"""What all verbs print alike; and a reader that goes away, as `| head` does, is no error."""

import ast
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table
from rich.text import Text

from vitrail import progress
from vitrail.cli import printing
from vitrail.cli.printing import show
from vitrail.prediction.feature_table import FeaturesInMemory
from vitrail.progress import PlainConsole, ending
from vitrail.verbs import Output
from vitrail.verbs.embed import Embeddings


class Ended:
    """A result that prints only how it ends."""

    exit_code = 0

    def lines(self) -> Iterator[str]:
        yield from ending([], "vitrail models")


@pytest.mark.parametrize(
    "result",
    [Ended(), Embeddings(table=FeaturesInMemory(np.zeros((1, 3), np.float32), picture=("a",)))],
    ids=["end", "embed"],
)
def test_a_reader_may_leave(result: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        show(result, Output())
        monkeypatch.undo()


EVIL = "evil\x1b[31m\x9b\u202e\x07\udcff"


def test_no_console_sends_codes_that_a_text_holds() -> None:
    """Whatever is printed and however: as text, as markup, in a table, as a bar's description."""
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=True, color_system=None, width=100)
    table = Table(EVIL)
    table.add_row(Text(EVIL))
    console.print(EVIL, markup=False)
    console.print(f"[bold]{EVIL}[/]")
    console.print(table)
    console.print(Text("a\nb"))
    printed = file.getvalue()
    assert all(char.isprintable() or char == "\n" for char in printed)
    assert printed.count("evil\\x1b") == 4
    assert printed.endswith("a\nb\n")


def test_every_console_is_one_of_ours() -> None:
    """A console of rich's own would print what it is given."""
    folder = Path(printing.__file__).parent
    for path in folder.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
        assert "Console" not in names, path
        if path.name not in ("printing.py", "rows.py"):
            assert "print" not in names, f"{path}: printing.py has print_json, print_error and consoles"


def test_errors_on_the_error_stream_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_error(f"{EVIL}\nsecond [bold]line")
    assert capsys.readouterr().err == "error: evil\\x1b[31m\\x9b\\u202e\\x07\\udcff\nsecond [bold]line\n"


def test_the_system_has_no_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        (tmp_path / "gone").read_bytes()
    printing.print_error(caught.value)
    assert capsys.readouterr().err == f"error: {tmp_path / 'gone'}: No such file or directory\n"


def test_one_thing_moves_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar within other work, as a report has it, must not be drawn across its spinner."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.working("writing the report"):
        outer = progress._SHOWN[-1]
        assert outer.live.is_started
        with progress.progress_bar("pictures", 3) as advance:
            advance(1)
            assert not outer.live.is_started
            assert progress._SHOWN[-1].live.is_started
        assert outer.live.is_started
    assert not progress._SHOWN
    assert not outer.live.is_started

"""Predictions on the terminal or in a pipe: a table that grows line by line, or rows for programs."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from vitrail.cli.printing import PlainConsole, plain
from vitrail.errors import ConfigError
from vitrail.verbs.rows import Columns, Write, check_raw, choose_file_format, open_file, text_writer

if TYPE_CHECKING:
    from vitrail.prediction import Prediction

Format = Literal["table", "jsonl", "csv", "parquet"]
NAME_WIDTH = 44
LABEL_WIDTH = 22
UNFAMILIAR = "unlike anything seen in training"


def choose_format(asked: Format | None, out: Path | None, *, raw: bool = False) -> Format:
    """The format that was passed, or the one that the file's name implies."""
    if out is not None:
        if asked == "table":
            raise ConfigError("--out writes jsonl, csv or parquet; a table is for the terminal.")
        return choose_file_format(asked, out, raw=raw)
    if asked == "parquet":
        raise ConfigError("--format parquet needs --out FILE.parquet: it cannot be printed.")
    check_raw(asked or "table", raw=raw)
    return asked or "table"


@contextmanager
def open_rows(form: Format, out: Path | None, columns: Columns, *, raw: bool = False) -> Generator[Write]:
    """Where rows go, one at a time; a file appears under its name only once it is complete."""
    if form == "table":
        yield _Table(columns).write
    elif out is not None:
        with open_file(form, out, columns, raw=raw) as write:
            yield write
    else:
        assert form != "parquet"
        yield text_writer(form, sys.stdout, columns, raw=raw)


class _Output(PlainConsole):
    """A console whose reader may go away, which then ends the work, as for the other formats."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Table:
    """Columns of fixed width, so that each row can be printed as soon as it is known; nothing is cut off in a pipe."""

    def __init__(self, columns: Columns) -> None:
        self._console = _Output(highlight=False, markup=False, soft_wrap=True)
        self._columns = columns

    def write(self, row: "Prediction") -> None:
        line = Text(self._fit(plain(row.picture), NAME_WIDTH, keep="end") + "  ")
        if row.error is not None:
            self._console.print(line.append(f"error: {plain(row.error)}", style="red"))
            return
        pairs = list(zip(row.labels, row.scores, strict=True))[: self._columns.top_k]
        for rank, (label, score) in enumerate(pairs):
            text = f"{score:6.1%} {plain(label)}"
            last = rank == len(pairs) - 1 and self._remark(row) is None
            line.append(text if last else self._fit(text, LABEL_WIDTH) + "  ", style="bold" if rank == 0 else "dim")
        if (remark := self._remark(row)) is not None:
            line.append(remark, style="yellow" if row.familiar is False else "")
        self._console.print(line)

    def _remark(self, row: "Prediction") -> str | None:
        """What follows the labels: the set of them, and whether the picture is unlike what the model knows."""
        parts = ["{" + ", ".join(map(plain, row.label_set)) + "}"] if row.label_set else []
        if row.familiar is False:
            parts.append(UNFAMILIAR if row.labels else f"no answer: {UNFAMILIAR}")
        return "  ".join(parts) or None

    def _fit(self, text: str, width: int, keep: str = "start") -> str:
        if len(text) <= width or not self._console.is_terminal:
            return text.ljust(width)
        return "…" + text[-width + 1 :] if keep == "end" else text[: width - 1] + "…"

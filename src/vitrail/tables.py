"""CSV files for people: no cell can start a formula in a spreadsheet or send control codes to a terminal.

The names in a data set may end up in a table that someone opens: a class called `=HYPERLINK(…)` would be
computed, one with an escape code would move the cursor. Such cells get a leading apostrophe, and control characters are
spelled out (`\\x1b`). Numbers, -0.5 included, stay numbers. `raw` leaves every cell unchanged, for programs. Files that
vitrail reads again (split.csv, results.csv) are not written here: they must hold exactly what they were given.
"""

import csv
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from vitrail.errors import MissingExtraError

Cell = str | int | float | None
WriteRow = Callable[[Iterable[Cell]], None]

# What a spreadsheet may take for the start of a formula, including the wide forms of East Asian keyboards.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
# Control characters, marks that change the direction of text, and control bytes in names that are not UTF-8.
_CODES = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\udc80-\udc9f]")


def harmless_cell(cell: Cell) -> Cell:
    """The cell as a number, or as text that stays text."""
    if not isinstance(cell, str) or _NUMBER.fullmatch(cell):
        return cell
    text = _CODES.sub(_spell_out, cell)
    return f"'{text}" if cell.lstrip(" ").startswith(_FORMULA) else text


def _spell_out(match: re.Match[str]) -> str:
    code = match[0]
    return f"\\x{ord(code) - 0xDC00:02x}" if code >= "\udc80" else code.encode("unicode_escape").decode()


def row_writer(file: IO[str], *, raw: bool = False) -> WriteRow:
    """A function that writes one row of a CSV file, which must be open with `newline=""`."""
    rows = csv.writer(file, lineterminator="\n")
    if raw:
        return rows.writerow
    return lambda cells: rows.writerow([harmless_cell(cell) for cell in cells])


@contextmanager
def open_table(path: Path, head: Sequence[str], *, raw: bool = False) -> Generator[WriteRow]:
    """A new CSV file with its first row; names that are not UTF-8 keep their bytes."""
    with path.open("w", encoding="utf-8", newline="", errors="surrogateescape") as file:
        write = row_writer(file, raw=raw)
        write(head)
        yield write


def as_utf8(name: str) -> str:
    """A file name as Parquet can hold it: bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def load_pyarrow(what: str) -> tuple[Any, Any]:
    """pyarrow and its Parquet module, or an error that names what to install."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError(what, "tables") from None
    return cast("Any", pa), cast("Any", pq)

"""Predictions as rows: a table that grows line by line, JSON lines, CSV or Parquet."""

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from rich.text import Text

from vitrail.cli.printing import PlainConsole, plain
from vitrail.errors import ConfigError
from vitrail.tables import load_pyarrow, row_writer

if TYPE_CHECKING:
    from vitrail.prediction import Prediction

Format = Literal["table", "jsonl", "csv", "parquet"]
Write = Callable[["Prediction"], None]
SUFFIXES: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
GROUP = 4096  # rows of a Parquet file that are written together
NAME_WIDTH = 44
LABEL_WIDTH = 22


def choose_format(form: Format | None, out: Path | None, *, raw: bool = False) -> Format:
    """The format that was passed, or the one that the file's name implies."""
    chosen = _choose(form, out)
    if raw and chosen != "csv":
        raise ConfigError(f"--raw is for CSV files; omit it for {chosen}, or add --format csv.")
    return chosen


def _choose(form: Format | None, out: Path | None) -> Format:
    if out is None:
        if form == "parquet":
            raise ConfigError("--format parquet needs --out FILE.parquet: it cannot be printed.")
        return form or "table"
    chosen = form or SUFFIXES.get(out.suffix.lower())
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file, such as {out / 'labels.csv'}.")
    if chosen is None:
        raise ConfigError(f"--out {out} must end in {', '.join(SUFFIXES)}, or pass --format.")
    if chosen == "table":
        raise ConfigError("--out writes jsonl, csv or parquet; a table is for the terminal.")
    return chosen


@contextmanager
def open_rows(form: Format, out: Path | None, top_k: int, *, raw: bool = False) -> Generator[Write]:
    """Where rows go, one at a time; a file appears under its name only once it is complete."""
    if form == "table":
        yield _Table(top_k).write
        return
    if out is None:
        with _writer(form, sys.stdout, top_k, raw) as write:
            yield write
        return
    from vitrail.files import atomic_path

    with atomic_path(out) as draft:
        if form == "parquet":
            with _parquet_writer(draft) as write:
                yield write
            return
        file = draft.open("w", encoding="utf-8", newline="", errors="surrogateescape")
        with file, _writer(form, file, top_k, raw) as write:
            yield write


@contextmanager
def _writer(form: Format, file: IO[str], top_k: int, raw: bool) -> Generator[Write]:
    if form == "jsonl":
        yield lambda row: print(json.dumps(_fields(row)), file=file)
        return
    write_row = row_writer(file, raw=raw and not file.isatty())  # a terminal never gets control characters
    pairs = [name for rank in range(1, top_k + 1) for name in (f"label_{rank}", f"score_{rank}")]
    write_row(["picture", *pairs, "error"])

    show = plain if file.isatty() else str  # a pipe or a file gets names unchanged

    def write(row: "Prediction") -> None:
        cells = [cell for label, score in zip(row.labels, row.scores, strict=True) for cell in (label, f"{score:.6f}")]
        write_row([*map(show, [row.picture, *cells, *[""] * (2 * top_k - len(cells)), row.error or ""])])

    yield write


def _fields(row: "Prediction") -> dict[str, Any]:
    return {"picture": row.picture, "labels": row.labels, "scores": row.scores, "error": row.error}


@contextmanager
def _parquet_writer(path: Path) -> Generator[Write]:
    pa, pq = load_pyarrow("writing Parquet")
    schema = pa.schema(
        {
            "picture": pa.string(),
            "labels": pa.list_(pa.string()),
            "scores": pa.list_(pa.float64()),
            "error": pa.string(),
        }
    )
    waiting: list[dict[str, Any]] = []
    with pq.ParquetWriter(path, schema) as file:

        def flush() -> None:
            file.write_table(pa.Table.from_pylist(waiting, schema))
            waiting.clear()

        def write(row: "Prediction") -> None:
            name = row.picture.encode("utf-8", "backslashreplace").decode()  # Parquet texts must be UTF-8
            waiting.append({**_fields(row), "picture": name})
            if len(waiting) >= GROUP:
                flush()

        yield write
        flush()


class _Output(PlainConsole):
    """A console whose reader may go away, which then ends the work, as for the other formats."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Table:
    """Columns of fixed width, so that each row can be printed as soon as it is known; nothing is cut off in a pipe."""

    def __init__(self, top_k: int) -> None:
        self._console = _Output(highlight=False, markup=False, soft_wrap=True)
        self._shown = top_k

    def write(self, row: "Prediction") -> None:
        line = Text(self._fit(plain(row.picture), NAME_WIDTH, keep="end") + "  ")
        if row.error is not None:
            self._console.print(line.append(f"error: {plain(row.error)}", style="red"))
            return
        pairs = list(zip(row.labels, row.scores, strict=True))[: self._shown]
        for rank, (label, score) in enumerate(pairs):
            text = f"{score:6.1%} {plain(label)}"
            last = rank == len(pairs) - 1
            line.append(text if last else self._fit(text, LABEL_WIDTH) + "  ", style="bold" if rank == 0 else "dim")
        self._console.print(line)

    def _fit(self, text: str, width: int, keep: str = "start") -> str:
        if len(text) <= width or not self._console.is_terminal:
            return text.ljust(width)
        return "…" + text[-width + 1 :] if keep == "end" else text[: width - 1] + "…"

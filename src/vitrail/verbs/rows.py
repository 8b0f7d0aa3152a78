"""Predictions as rows of a table on the terminal, JSON lines, CSV or Parquet, and jobs that may be interrupted.

A job's rows are kept beside its file, as lines of JSON, until that file is whole. The first line says what the job is;
each row is one more line, written as soon as it is known. Whatever ends the process, at most the last line is damaged,
and it is dropped when the job is resumed: no row is lost or written twice.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, cast, get_args

from rich.text import Text

from vitrail.errors import ConfigError, shorten, suggest
from vitrail.files import atomic_path, load_pyarrow, lock_file, row_writer
from vitrail.prediction import Prediction
from vitrail.prediction.predictor import Named
from vitrail.prediction.row_tables import Columns, fields_of, measured_cells, prediction_schema, prediction_table
from vitrail.progress import PlainConsole
from vitrail.registry import LabelKind
from vitrail.wording import plain

SEPARATOR = " | "  # between the labels of a set in one cell
RowFormat = Literal["table", "jsonl", "csv", "parquet"]
Write = Callable[["Prediction"], None]
SUFFIXES: dict[str, RowFormat] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
NAME_WIDTH = 44  # of the table on the terminal
LABEL_WIDTH = 22
UNFAMILIAR = "unlike anything seen in training"
NO_LABELS = "no label applies"
GROUP = 4096  # rows of a Parquet file that are written together


def choose_format(asked: RowFormat | None, out: Path | None, *, raw: bool = False) -> RowFormat:
    """What was asked for, or what the file's name says; a mistake is an error before there are rows."""
    if asked is not None and asked not in get_args(RowFormat):
        raise ConfigError(f"has no {asked!r}; {suggest(str(asked), get_args(RowFormat))}", field="format")
    chosen: RowFormat | None = asked or ("table" if out is None else SUFFIXES.get(out.suffix.lower()))
    if out is None and chosen == "parquet":
        raise ConfigError('`format="parquet"` needs `out=` FILE.parquet: it cannot be printed.')
    if out is not None and chosen == "table":
        raise ConfigError("writes jsonl, csv or parquet; a table is for the terminal.", field="out")
    if out is not None and out.is_dir():
        raise ConfigError(f"`out={out}` is a folder; name a file, such as {out / 'labels.csv'}.")
    if chosen is None:
        raise ConfigError(f"`out={out}` must end in {', '.join(SUFFIXES)}, or pass `format=`.")
    check_raw(chosen, raw=raw)
    return chosen


def check_raw(chosen: str, *, raw: bool) -> None:
    """Refuse raw cells where there are none."""
    if raw and chosen != "csv":
        raise ConfigError(
            f'is about the cells of CSV files; omit it for {chosen}, or pass `format="csv"`.', field="raw"
        )


@contextmanager
def open_file(form: RowFormat, out: Path, columns: Columns, *, raw: bool = False) -> Generator[Write]:
    """A file for rows, one at a time; it appears under its name only when it is whole."""
    with atomic_path(out) as draft:
        if form == "parquet":
            with _parquet_writer(draft, columns) as write:
                yield write
            return
        with draft.open("w", encoding="utf-8", newline="", errors="surrogateescape") as file:
            yield text_writer(form, file, columns, raw=raw)


def text_writer(form: RowFormat, file: IO[str], columns: Columns, *, raw: bool = False) -> Write:
    """What writes rows of text."""
    if form == "jsonl":
        return lambda row: print(json.dumps(fields_of(row, columns)), file=file)
    write_row = row_writer(file, raw=raw and not file.isatty())  # a terminal never gets control characters
    head, cells_of = ANSWERS[columns.kind]
    write_row(["picture", *head(columns), *columns.extra, "error"])

    show = plain if file.isatty() else str  # a pipe or a file gets names unchanged

    def write(row: "Prediction") -> None:
        extra = map(_cell, (getattr(row, name) for name in columns.extra))
        write_row([*map(show, [row.picture, *cells_of(row, columns), *extra, row.error or ""])])

    return write


def _ranked_head(columns: Columns) -> list[str]:
    return [name for rank in range(1, columns.top_k + 1) for name in (f"label_{rank}", f"score_{rank}")]


def _ranked_cells(row: Prediction, columns: Columns) -> list[str]:
    cells = [cell for label, score in zip(row.labels, row.scores, strict=True) for cell in (label, f"{score:.6f}")]
    return cells + [""] * (2 * columns.top_k - len(cells))


def _joined_cells(row: Prediction, _: Columns) -> list[str]:
    return [SEPARATOR.join(row.labels), SEPARATOR.join(f"{score:.6f}" for score in row.scores)]


def _measured_cells(row: Prediction, columns: Columns) -> list[str]:
    return ["" if cell is None else f"{cell:.7g}" for cell in measured_cells(row, columns)]


# What a label is → the columns of the answer, and its cells, in a CSV file.
ANSWERS: dict[LabelKind, tuple[Callable[[Columns], list[str]], Callable[[Prediction, Columns], list[str]]]] = {
    "class": (_ranked_head, _ranked_cells),
    "set": (lambda _: ["labels", "scores"], _joined_cells),
    "values": (lambda columns: columns.measured, _measured_cells),
}


class _Output(PlainConsole):
    """A console whose reader may go away, which then ends the work, as for the other formats."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class TerminalTable:
    """Columns of fixed width, so that each row can be printed as soon as it is known; nothing is cut off in a pipe."""

    def __init__(self, columns: Columns) -> None:
        self._console = _Output(highlight=False, markup=False, soft_wrap=True)
        room = (self._console.width - NAME_WIDTH) // (LABEL_WIDTH + 2) if self._console.is_terminal else columns.top_k
        self._shown = max(3, min(room, columns.top_k))  # labels of each row: as many as the window has room for
        self._columns = columns

    def write(self, row: Prediction) -> None:
        """Print one row."""
        line = Text(self._fit(plain(row.picture), NAME_WIDTH, keep="end") + "  ")
        if row.error is not None:
            self._console.print(line.append(f"error: {plain(row.error)}", style="red"))
            return
        remark, texts = _remark(row), self._answers(row)
        for rank, text in enumerate(texts):
            last = rank == len(texts) - 1 and not remark
            marked = rank == 0 or self._columns.kind != "class"
            line.append(text if last else self._fit(text, LABEL_WIDTH) + "  ", style="bold" if marked else "dim")
        self._console.print(line.append(remark, style="yellow" if row.familiar is False else ""))

    def _answers(self, row: Prediction) -> list[str]:
        """The labels with their probabilities, as many as there is room for; or the values with their intervals."""
        if self._columns.kind == "values":
            spans = [f" ({low:.4g} to {high:.4g})" for low, high in row.intervals or ()] or [""] * len(row.values)
            named = zip(self._columns.values, row.values, spans, strict=True) if row.values else ()
            return [f"{plain(name)} {value:.4g}{span}" for name, value, span in named]
        if self._columns.kind == "set" and not row.labels and row.familiar is not False:
            return [NO_LABELS]
        pairs = list(zip(row.labels, row.scores, strict=True))[: self._shown]
        return [f"{score:6.1%} {plain(label)}" for label, score in pairs]

    def _fit(self, text: str, width: int, keep: str = "start") -> str:
        if len(text) <= width or not self._console.is_terminal:
            return text.ljust(width)
        return "…" + text[-width + 1 :] if keep == "end" else text[: width - 1] + "…"


def _remark(row: Prediction) -> str:
    """What follows the labels: the set of them, and whether the picture is unlike what the model knows."""
    parts = ["{" + ", ".join(map(plain, row.label_set)) + "}"] if row.label_set else []
    if row.familiar is False:
        parts.append(UNFAMILIAR if row.labels or row.values else f"no answer: {UNFAMILIAR}")
    return "  ".join(parts)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6f}" if isinstance(value, float) else SEPARATOR.join(value)


@contextmanager
def _parquet_writer(path: Path, columns: Columns) -> Generator[Write]:
    _, pq = load_pyarrow("writing Parquet")
    schema = prediction_schema(columns)
    waiting: list[Prediction] = []
    with pq.ParquetWriter(path, schema) as file:

        def flush() -> None:
            file.write_table(prediction_table(waiting, columns, schema))
            waiting.clear()

        def write(row: "Prediction") -> None:
            waiting.append(row)
            if len(waiting) >= GROUP:
                flush()

        yield write
        flush()


Compute = Callable[[Iterable[Named]], Iterator[Prediction]]


@contextmanager
def resumed(
    out: Path, job: Mapping[str, Any], pictures: Iterator[Named], compute: Compute
) -> Generator[Iterator[Prediction]]:
    """The rows of a job: those that an interrupted one has kept, then the others, computed and kept.

    The journal is removed when all goes well: leave this after the file of rows has been written.
    """
    path = out.with_name(f".{out.name}.partial")
    if out.exists() and not path.exists():
        raise ConfigError(f"{out} is complete, so there is nothing to resume; omit `resume=` to write it again.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if not lock_file(file):
            raise ConfigError(f"{out} is being written by another process; wait until it has ended.")
        _begin(file, path, json.loads(json.dumps(job)))
        yield _rows(file, path, pictures, compute)
    path.unlink()


def _begin(file: IO[bytes], path: Path, job: Mapping[str, Any]) -> None:
    """Write what the job is, or refuse to continue another one."""
    file.seek(0)
    theirs = _parse(file.readline())
    if theirs is None:
        file.truncate(0)
        _write(file, job)
        return
    for name, value in job.items():
        if theirs.get(name) != value:
            raise ConfigError(
                f"`{name}={shorten(value)}` conflicts with the interrupted job, which has {shorten(theirs.get(name))}; "
                f"repeat its settings to resume it, or delete {path} to begin again."
            )


def _rows(file: IO[bytes], path: Path, pictures: Iterator[Named], compute: Compute) -> Iterator[Prediction]:
    end = file.tell()
    while (row := _read(file.readline())) is not None:
        end = file.tell()
        name = next(pictures, ("nothing", b""))[0]
        if name != row.picture:
            raise ConfigError(
                f"the pictures must be those of the interrupted job, in its order: there is {name} where {row.picture} "
                f"was; put them back to resume, or delete {path} to begin again."
            )
        yield row
    file.truncate(end)  # of a line that was cut off
    for row in compute(pictures):
        _write(file, {name: value for name, value in vars(row).items() if name != "source"})
        yield row


def _write(file: IO[bytes], facts: Mapping[str, Any]) -> None:
    file.write(json.dumps(facts).encode() + b"\n")
    file.flush()


def _parse(line: bytes) -> dict[str, Any] | None:
    """What a line holds, if it is whole."""
    try:
        facts: Any = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def _read(line: bytes) -> Prediction | None:
    facts = _parse(line)
    if facts is None:
        return None
    return Prediction(**{name: _as_tuple(value) for name, value in facts.items()})


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, cast("list[Any]", value))) if isinstance(value, list) else value

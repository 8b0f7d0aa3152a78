"""The words of messages: counts that agree with their nouns, text that is safe to print, system errors, hints."""

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

MOST_NEIGHBOURS = 10_000  # names of a folder that are compared with a mistyped one


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: 1 picture, 2,000 pictures, 3 classes."""
    return f"{number:,} {agree(number, noun, plural)}"


def agree(number: float, noun: str, plural: str = "") -> str:
    """Only the noun, singular or plural as the number requires."""
    if number == 1:
        return noun
    return plural or (noun + "es" if noun.endswith(("s", "x", "tch", "sh")) else noun + "s")


def duration(seconds: float) -> str:
    """A duration for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_ARGUMENT = re.compile(r"`([a-z][a-z0-9_]*)=([^`]*)`")

Spell = Callable[[str, str], str]  # an argument and its value, if the text has one, as the reader types them


def word_arguments(text: str, spell: Spell = "{}={}".format) -> str:
    """A text with its arguments as the reader types them: Python's, unless `spell` knows better.

    Texts of the library mark arguments: `weights=` or `split="all"`, in backticks. The command has flags instead.
    """
    return _ARGUMENT.sub(lambda argument: spell(argument[1], argument[2]), text)


def cut(text: str, length: int) -> str:
    """A text of at most this many characters; a longer one ends with …"""
    return text if len(text) <= length else text[: length - 1] + "…"


def markdown_cell(text: str) -> str:
    """A text as a cell of a Markdown table."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())


def plain(text: str, *, lines: bool = False) -> str:
    """A text that cannot send control codes to a terminal; `lines` keeps its line breaks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or (lines and char == "\n") else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def reason(error: BaseException) -> str:
    """What went wrong, for people: of a system error the message and the file, never the number."""
    if not isinstance(error, OSError) or not error.strerror:
        return without_number(str(error)) or type(error).__name__
    files = " → ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return f"{files}: {error.strerror}" if files else error.strerror


def first_line(error: BaseException) -> str:
    """The first line of what an error of any kind says, shortened."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def in_one_line(error: BaseException) -> str:
    """What an error of any kind says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def without_number(text: str) -> str:
    """A text that quotes a system error, without the number of that error."""
    return re.sub(r"\[Errno -?\d+\] ", "", text)


def hint_path(text: str, beside: tuple[str, ...] = ("runs",)) -> str:
    """`did you mean runs/train-1?` if a path that does not exist resembles existing ones, else nothing."""
    near = near_paths(text, beside)
    return f"did you mean {' or '.join(near)}?" if near else ""


def near_paths(text: str, beside: tuple[str, ...] = ("runs",)) -> list[str]:
    """Existing paths whose last part resembles that of `text`, in its own folder or in one of those in `beside`."""
    path = Path(text)
    if not path.name:
        return []
    folders = [path.parent] if path.parent != Path() else [Path(), *map(Path, beside)]
    known = {name: folder / name for folder in folders for name in _names(folder)}
    near = get_close_matches(path.name, known, n=2, cutoff=0.75)
    if not near and not path.parent.exists():  # the typo may be in the folder's name
        return [str(Path(folder) / path.name) for folder in near_paths(str(path.parent)) if _exists(folder, path.name)]
    return sorted(str(known[name]) for name in near)


def _names(folder: Path) -> Iterator[str]:
    try:
        yield from islice((item.name for item in folder.iterdir() if not item.name.startswith(".")), MOST_NEIGHBOURS)
    except (OSError, ValueError):
        return


def _exists(folder: str, name: str) -> bool:
    return (Path(folder) / name).exists()


# Metrics that are read in per cent.
SHARES = frozenset({"accuracy", "balanced_accuracy", "exact_match", "knn_accuracy"})


METRIC_NAMES = {
    "map": "mAP",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "mae": "MAE",
    "rmse": "RMSE",
    "r2": "R²",
    "knn_accuracy": "kNN accuracy",
}


def name_metric(name: str) -> str:
    """What people call a metric."""
    return METRIC_NAMES.get(name, name.replace("_", " "))


def show_metric(name: str, value: float) -> str:
    """A metric as people read it."""
    return f"{value:.2%}" if name in SHARES else f"{value:.4g}"

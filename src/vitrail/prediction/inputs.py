"""What the user names on the command line → pictures: files, folders, patterns, and standard input."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from glob import has_magic, iglob
from pathlib import Path
from typing import TextIO

from vitrail.data.pixels import EXTENSIONS, Picture, is_picture_name
from vitrail.errors import InputError
from vitrail.prediction.predictor import Named
from vitrail.storage import walk_files
from vitrail.wording import hint_path, reason

STDIN = "-"
MOST_COUNTED = 100_000  # pictures: enough to know that there is much to do


def find_pictures(names: Sequence[str]) -> Iterator[Named]:
    """The pictures that the names stand for, in their order; those of a folder or a pattern sorted by name.

    A file may have any extension; in folders and patterns, only pictures' extensions count. `-` is one picture on
    standard input. A name that stands for nothing is an error before the first picture is read.
    """
    check_pictures(names)
    return stream_names(names)


def stands_for_several(name: str) -> bool:
    """Whether a name is a folder or a pattern."""
    return name != STDIN and (Path(name).is_dir() or _is_pattern(name))


def check_pictures(names: Sequence[str]) -> None:
    """Raise if a name stands for nothing: no file, no folder with pictures, no pattern that matches."""
    for name in names:
        if not name:
            raise InputError("a picture's name is empty; an unset variable? The current folder is called `.`")
        if name == STDIN:
            continue
        try:
            _check(name, Path(name))
        except (OSError, ValueError) as error:  # a folder without permission, a name with a NUL
            raise InputError(f"{name}: cannot be accessed ({reason(error)}).") from error


def _check(name: str, path: Path) -> None:
    if path.is_dir():
        if next(_in_folder(path), None) is None:
            raise InputError(f"{name}: no pictures in this folder; known extensions: {' '.join(EXTENSIONS)}.")
    elif _is_pattern(name):
        if next(_matches(name), None) is None:
            raise InputError(f"{name}: no picture matches this pattern.")
    elif not path.exists():
        hint = hint_path(name)
        raise InputError(f"{name}: there is no such picture, folder or checkpoint{f'; {hint}' if hint else '.'}")


def count_pictures(names: Sequence[str], list_file: str | None = None) -> int | None:
    """How many pictures names and a list stand for, or at least `MOST_COUNTED`; None if standard input has the list."""
    if list_file == STDIN:
        return None
    listed = () if list_file is None else read_list(list_file)
    each = itertools.chain.from_iterable(_places(name) for name in names)
    return sum(1 for _ in itertools.islice(itertools.chain(each, listed), MOST_COUNTED))


def first_pictures(names: Sequence[str], list_file: str | None = None) -> Iterator[Picture]:
    """The pictures that can be read more than once, in their order: not those on standard input."""
    yield from (place for name in names if name != STDIN for place in _places(name))
    if list_file not in (None, STDIN):
        yield from read_list(list_file)


def read_list(path: str) -> Iterator[str]:
    """The lines of a file, or of standard input for `-`: one path each."""
    if path == STDIN:
        yield from _lines(_standard_input())
        return
    try:
        with Path(path).open(encoding="utf-8", errors="surrogateescape") as file:
            yield from _lines(file)
    except OSError as error:
        raise InputError(f"{path}: this list of pictures cannot be read ({reason(error)}).") from None


def name_paths(paths: Iterable[str]) -> Iterator[Named]:
    """Paths under their own names."""
    for path in paths:
        yield path, path


def _lines(file: Iterable[str]) -> Iterator[str]:
    for line in file:
        if text := line.rstrip("\r\n"):
            yield text


def stream_names(names: Sequence[str]) -> Iterator[Named]:
    """The same for names that are checked already."""
    for name in names:
        if name == STDIN:
            yield STDIN, _standard_input().buffer.read()
        elif stands_for_several(name):
            yield from ((str(file), file) for file in _places(name))
        else:
            yield name, Path(name)


def _places(name: str) -> Iterable[Path]:
    """The files that a name stands for."""
    path = Path(name)
    if name != STDIN and path.is_dir():
        return _in_folder(path)
    return sorted(set(_matches(name))) if name != STDIN and _is_pattern(name) else [path]


def _standard_input() -> TextIO:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  # `<&-`, some services
        raise InputError("standard input is closed, so there is no picture to read from it.")
    return sys.stdin


def _is_pattern(name: str) -> bool:
    return has_magic(name) and not Path(name).exists()


def _in_folder(folder: Path) -> Iterator[Path]:
    return (folder / name for name in walk_files(folder) if is_picture_name(name))


def _matches(pattern: str) -> Iterator[Path]:
    paths = (Path(name) for name in iglob(pattern, recursive=True))  # noqa: PTH207 - it takes absolute patterns
    return (path for path in paths if path.suffix.lower() in EXTENSIONS and path.is_file())

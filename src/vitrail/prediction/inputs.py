"""What the user names on the command line → pictures: files, folders, patterns, archives, and standard input."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from pathlib import Path

from vitrail.data.pixels import EXTENSIONS, Picture
from vitrail.errors import InputError
from vitrail.prediction.listing import STDIN, WHOLE, Item, kind_of, list_items, read_items, standard_input
from vitrail.prediction.predictor import Named
from vitrail.storage import is_address
from vitrail.threads import in_chunks
from vitrail.wording import reason

MOST_COUNTED = 100_000  # pictures: enough to know that there is much to do
MOST_COUNTED_AFAR = 1_000  # in an object store, where each page of names takes a while
TOGETHER = 64  # pictures that are read at once from an archive


def find_pictures(names: Sequence[str]) -> Iterator[Named]:
    """The pictures that the names stand for, in their order; those of a folder or a pattern sorted by name.

    A file may have any extension; in folders and patterns, only pictures' extensions count, or else those of archives.
    `-` is one picture on standard input. A name that stands for nothing is an error before the first picture is read.
    """
    check_pictures(names)
    return stream_names(names)


def stands_for_several(name: str) -> bool:
    """Whether a name is a folder, a pattern or an archive."""
    return name != STDIN and (kind_of(name) != "file" or name.lower().endswith((".tar", ".parquet")))


def check_pictures(names: Sequence[str]) -> None:
    """Raise if a name stands for nothing: no file, no folder with pictures, no pattern that matches."""
    for name in names:
        if not name:
            raise InputError("a picture's name is empty; an unset variable? The current folder is called `.`")
        if name == STDIN:
            continue
        try:
            kind = kind_of(name)
            if next(list_items([name]), None) is None:
                if kind == "folder":
                    raise InputError(f"{name}: no pictures in this folder; known extensions: {' '.join(EXTENSIONS)}.")
                raise InputError(f"{name}: no picture {'in this file' if kind == 'file' else 'matches this pattern'}.")
        except (OSError, ValueError) as error:  # a folder without permission, a name with a NUL
            raise InputError(f"{name}: cannot be accessed ({reason(error)}).") from error


def count_pictures(names: Sequence[str], list_file: str | None = None) -> int | None:
    """How many pictures names and a list stand for, or at least `MOST_COUNTED`; None if standard input has the list."""
    if list_file == STDIN:
        return None
    afar = any(map(is_address, names))
    items = list_items([name for name in names if name != STDIN], list_file)
    counted = sum(1 for _ in islice(items, MOST_COUNTED_AFAR if afar else MOST_COUNTED))
    return counted + list(names).count(STDIN)


def first_pictures(names: Sequence[str], list_file: str | None = None) -> Iterator[Picture]:
    """The pictures that can be read more than once, in their order: not those on standard input."""
    listed = None if list_file == STDIN else list_file
    items = list_items([name for name in names if name != STDIN], listed)
    return (picture for _, picture in _pictures(item for _, item in items))


def name_paths(paths: Iterable[str]) -> Iterator[Named]:
    """Paths under their own names."""
    for path in paths:
        yield path, path


def stream_names(names: Sequence[str]) -> Iterator[Named]:
    """The same for names that are checked already."""
    for name in names:
        if name == STDIN:
            yield STDIN, standard_input().buffer.read()
        else:
            yield from _pictures(item for _, item in list_items([name]))


def _pictures(items: Iterable[Item]) -> Iterator[Named]:
    """Files by their paths or addresses, to be read when they are used; the pictures of archives, some at a time."""
    for is_file, some in groupby(items, lambda item: item.size == WHOLE):
        if is_file:
            yield from ((item.name, item.file if is_address(item.file) else Path(item.file)) for item in some)
            continue
        for chunk in in_chunks(some, TOGETHER):
            for item, content in zip(chunk, read_items(chunk), strict=True):
                yield item.name, b"" if isinstance(content, OSError) else content  # a row of a table without a picture

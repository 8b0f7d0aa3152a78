"""The pictures of files, folders, patterns, shards and tables, on disk or in an object store, one after the other.

A listing holds few names at any time, and can go on after any picture: `Item` says where a picture is, and a `Cursor`
how far a listing has come. In a folder that has no pictures of its own, those inside its .tar and .parquet files count.
"""

import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from glob import has_magic, iglob
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple, TextIO

from vitrail.data.pixels import EXTENSIONS, Picture, is_picture_name
from vitrail.data.sources.shards import expand_braces
from vitrail.errors import DataError, InputError
from vitrail.prediction.archives import open_table, tar_pictures
from vitrail.storage import Disk, Span, Store, is_address, open_file_store, open_store, sort_names
from vitrail.wording import hint_path, reason

WHOLE, ROW = -1, -2  # instead of a size: the whole file, a row of a table
ARCHIVES = (".tar", ".parquet")
STDIN = "-"


class Item(NamedTuple):
    """A picture, and where it is."""

    name: str  # what rows and messages call it
    file: str  # its path or address
    start: int = 0  # the first byte, or the row of a table
    size: int = WHOLE


class Cursor(NamedTuple):
    """How far a listing has come."""

    source: int  # which of the sources; the list of names comes after them
    place: int  # of the last picture in that source, from 1
    file: str  # of the last one, as its source calls it
    start: int  # of the last one


def list_items(
    sources: Sequence[str], list_file: str | None = None, after: Cursor | None = None
) -> Iterator[tuple[Cursor, Item]]:
    """Every picture that the sources and the lines of a list stand for, in order; or only those after a cursor."""
    first = 0 if after is None else after.source
    for source, name in enumerate(sources[first:], start=first):
        before = after if after is not None and source == after.source else None
        count = 0 if before is None else before.place
        for number, (file, item) in enumerate(_items(name, before), start=count + 1):
            yield Cursor(source, number, file, item.start), item
    if list_file is not None:
        done = after.place if after is not None and after.source == len(sources) else 0
        lines = read_list(list_file)
        if after is not None and done and next(islice(lines, done - 1, None), None) != after.file:
            raise DataError(f"{list_file}: line {done:,} must be {after.file}, as when the listing began; restore it.")
        for number, line in enumerate(lines, start=done + 1):
            yield Cursor(len(sources), number, line, 0), Item(line, line)


def _items(name: str, before: Cursor | None) -> Iterator[tuple[str, Item]]:
    """The pictures of one source, each with the name of its file; after one of them, if there is one."""
    kind = kind_of(name)
    if kind == "folder":
        store = open_store(name)
        if before is None:
            wanted = _wanted(store)
        else:  # what counted when the listing began, whatever has been added since
            wanted = ARCHIVES if before.file.lower().endswith(ARCHIVES) else tuple(EXTENSIONS)
            yield from _rest(store, before)
        for page in store.pages(after="" if before is None else before.file):
            for file in page:
                if file.lower().endswith(wanted):
                    yield from ((file, item) for item in _expand(store, file))
        return
    files = iter([name]) if kind == "file" else chain.from_iterable(map(_matches, expand_braces(name)))
    for file in files:
        store, own = open_file_store(file)
        if before is None:
            yield from ((file, item) for item in _expand(store, own))
        elif file == before.file:
            yield from ((file, item) for _, item in _rest(store, before._replace(file=own)))
            before = None
    if before is not None:
        raise DataError(f"{before.file}: is gone, so the listing of {name} cannot go on after it; put it back.")


def _rest(store: Store, before: Cursor) -> Iterator[tuple[str, Item]]:
    """What follows in the same file."""
    if before.file.lower().endswith(ARCHIVES):
        yield from ((before.file, item) for item in _expand(store, before.file) if item.start > before.start)


def kind_of(name: str) -> Literal["file", "folder", "pattern"]:
    """What a source is; one that is nothing is an error."""
    if not is_address(name):
        path = Path(name)
        if path.is_dir():
            return "folder"
        if is_pattern(name):
            return "pattern"
        if not path.exists():
            hint = hint_path(name)
            raise InputError(f"{name}: there is no such picture, folder or checkpoint{f'; {hint}' if hint else '.'}")
        return "file"
    if is_pattern(name):
        return "pattern"
    if name.lower().endswith((*EXTENSIONS, *ARCHIVES)):
        return "file"
    store = open_store(name)
    if next(store.pages(), None) is None:
        raise InputError(f"{store.root}: there is no such folder in the store, or it is empty.")
    return "folder"


def is_pattern(name: str) -> bool:
    """Whether a name stands for whatever it matches."""
    if is_address(name):
        return has_magic(name.partition("://")[2]) or expand_braces(name) != [name]
    return (has_magic(name) or expand_braces(name) != [name]) and not Path(name).exists()


def _wanted(store: Store) -> tuple[str, ...]:
    """The endings that count in a folder: those of pictures, or those of archives where there is no picture."""
    names = (name for page in store.pages() for name in page)
    found = next((name for name in names if is_picture_name(name)), None)
    return ARCHIVES if found is None else tuple(EXTENSIONS)


def _matches(pattern: str) -> Iterator[str]:
    """The files that a pattern stands for, sorted, each once."""
    if not has_magic(pattern.partition("://")[2] if is_address(pattern) else pattern):
        yield pattern
    elif is_address(pattern):
        yield from _matches_in_store(pattern)
    else:
        wanted = (*EXTENSIONS, *ARCHIVES)
        found = (name for name in iglob(pattern, recursive=True) if name.lower().endswith(wanted))  # noqa: PTH207
        with ExitStack() as open_files:
            last = None
            # By folders first, as paths are sorted: NUL comes before every character that a name may have.
            for name in sort_names((str(Path(name)).replace("/", "\0") for name in found), open_files):
                if name != last and Path(name.replace("\0", "/")).is_file():
                    yield name.replace("\0", "/")
                last = name


def _matches_in_store(pattern: str) -> Iterator[str]:
    from fsspec.utils import glob_translate

    scheme, _, place = pattern.partition("://")
    parts = place.split("/")
    fixed = next(index for index, part in enumerate(parts) if has_magic(part))
    if not fixed:
        raise InputError(f"{pattern}: the bucket must be named in full.")
    store = open_store(f"{scheme}://{'/'.join(parts[:fixed])}")
    matches = re.compile(glob_translate("/".join(parts[fixed:]))).match
    for page in store.pages():
        yield from (
            store.path(name) for name in page if matches(name) and name.lower().endswith((*EXTENSIONS, *ARCHIVES))
        )


def _expand(store: Store, name: str) -> Iterator[Item]:
    """A picture itself, or those inside an archive."""
    file = store.path(name)
    if name.lower().endswith(".tar"):
        yield from (Item(f"{file}:{key}", file, start, size) for key, start, size in tar_pictures(store, name))
    elif name.lower().endswith(".parquet"):
        open_table.cache_clear()  # the file may be another one than before
        yield from (Item(f"{file}:{row}", file, row, ROW) for row in range(open_table(file).num_rows))
    else:
        yield Item(file, file)


def read_items(items: Sequence[Item]) -> list[Picture | OSError]:
    """Their contents, or why some cannot be read; files of this machine stay paths, to be opened when they are used."""
    contents: list[Picture | OSError] = [Path(item.file) for item in items]
    folders: dict[str, list[int]] = {}
    tables: dict[str, list[int]] = {}
    for index, item in enumerate(items):
        if item.size == ROW:
            tables.setdefault(item.file, []).append(index)
        elif item.size != WHOLE or is_address(item.file):
            folders.setdefault(item.file.rpartition("/")[0], []).append(index)
    for file, indices in tables.items():
        try:
            pictures = open_table(file).pictures([items[index].start for index in indices])
        except FileNotFoundError as error:
            pictures = [error] * len(indices)
        for index, picture in zip(indices, pictures, strict=True):
            contents[index] = picture
    for folder, indices in folders.items():
        store = open_store(folder) if folder else Disk(".")
        spans = [_span(items[index]) for index in indices]
        for index, content in zip(indices, store.read(spans), strict=True):
            contents[index] = content
    return contents


def _span(item: Item) -> Span:
    name = item.file.rpartition("/")[2]
    return Span(name) if item.size == WHOLE else Span(name, item.start, item.size)


def read_list(path: str) -> Iterator[str]:
    """The lines of a file, on disk or in an object store, or of standard input for `-`: one path or address each."""
    if path == STDIN:
        yield from _lines(standard_input())
        return
    try:
        store, name = open_file_store(path)
        with io.TextIOWrapper(store.open(name), encoding="utf-8-sig", errors="surrogateescape") as file:
            yield from _lines(file)
    except OSError as error:
        raise InputError(f"{path}: this list of pictures cannot be read ({reason(error)}).") from None


def _lines(file: Iterable[str]) -> Iterator[str]:
    for line in file:
        if text := line.rstrip("\r\n"):
            yield text


def standard_input() -> TextIO:
    """What is piped into the command."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  # `<&-`, some services
        raise InputError("standard input is closed, so there is no picture to read from it.")
    return sys.stdin

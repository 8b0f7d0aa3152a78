"""Where files are: a folder of this machine, or of an object store, by its address (s3://bucket/folder).

A `Store` knows files by their names below its root. Names are listed in pages and in an order that stays the same, so
that a listing of millions holds few of them and can go on after any name; many files are read at once; and a file is
created whole, by one writer only, or not at all. `object_store.py` has the stores of fsspec.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from vitrail.errors import ConfigError, DataError
from vitrail.files import workshop_in

PAGE = 1000  # names
RUN = 25_000  # names of one folder that are sorted in memory; those of a larger one in several runs
# Before an @ is a user, and perhaps a password; but in Azure's longer addresses, the container.
_USER = re.compile(r"((?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://)[^/\s]*@")
_QUERY = re.compile(r"(://[^\s?]*)\?[^\s?…][^\s]*")
_SIGNED = re.compile(r"://[^?]*\?.*(sig|token|key|secret|passw|credential)[^=&]*=", re.IGNORECASE)
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)


class Span(NamedTuple):
    """A file, or `size` bytes of it from `start` on."""

    name: str
    start: int = 0
    size: int | None = None


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells whether a file has changed."""

    size: int  # in bytes
    version: str  # differs if the content does


class Store(Protocol):
    """Files by their names below one root, with "/" between folders."""

    root: str  # a path, or an address without secrets

    def pages(self, folder: str = "", *, after: str = "") -> Iterator[list[str]]:
        """The names of all visible files in a folder and below it, always in the same order; those after one of them.

        A name whose parts start with a dot is not visible.
        """
        ...

    def listing(self, folder: str = "") -> Iterator[list[tuple[str, FileState]]]:
        """The same names, each with the state of its file, which an object store lists anyway."""
        ...

    def entries(self, folder: str = "") -> dict[str, bool]:
        """What is directly in a folder, if it is visible, sorted: its own name → whether it is a folder."""
        ...

    def state(self, name: str) -> FileState:
        """The size and version of a file; FileNotFoundError if there is none."""
        ...

    def states(self, names: Sequence[str]) -> list[FileState | OSError]:
        """The same for many at once; of those without one, why."""
        ...

    def read(self, spans: Sequence[Span]) -> list[bytes | OSError]:
        """The content of each, or why it cannot be read; a store that cannot be reached is an error."""
        ...

    def open(self, name: str) -> IO[bytes]:
        """A file of which only some parts are wanted."""
        ...

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to a path of this machine."""
        ...

    def create(self, name: str, content: bytes | Path) -> bool:
        """Write a new file, whole or not at all; False if there was one already, which stays as it is.

        A path is a file of this machine to copy.
        """
        ...

    def path(self, name: str) -> str:
        """Where a file is, as users write it: a path or an address."""
        ...


def is_address(where: str | Path) -> bool:
    """Whether something is an address in an object store, rather than a path, a web page or a `file://`."""
    match = _ADDRESS.match(str(where)) if isinstance(where, str) else None
    return match is not None and match[1].lower() not in ("file", "http", "https")


def open_store(root: str | Path) -> Store:
    """The store whose files are below a folder, given by its path or its address."""
    if isinstance(root, str) and is_address(root):
        from vitrail.object_store import ObjectStore

        return ObjectStore(root)
    return Disk(root)


def open_file_store(where: str | Path) -> tuple[Store, str]:
    """The store of one file's folder, and the file's name in it."""
    if isinstance(where, str) and is_address(where):
        root, _, name = where.rpartition("/")
        if not name or root.endswith(("/", ":")):
            raise ConfigError(f"{hide_secrets(where)}: must be the address of a file, such as s3://bucket/list.txt.")
        return open_store(root), name
    path = _local(where)
    return Disk(path.parent), path.name


def _local(where: str | Path) -> Path:
    return Path(str(where).removeprefix("file://"))


def hide_secrets(text: str) -> str:
    """A text with addresses as it may be shown and written: without users' names and passwords, or signatures."""
    return _QUERY.sub(r"\1?…", _USER.sub(r"\1", text))


def refuse_secrets(address: str, before: str = "") -> None:
    """Raise for an address that could not be written down: run folders and reports name their data."""
    if _USER.search(address) or _SIGNED.search(address):
        raise DataError(
            f"{before}{hide_secrets(address)}: an address of data must not hold a password or a signature; give them "
            "as the store's own tools expect them, in environment variables or a file of your account."
        )


class Disk:
    """The files of a folder of this machine."""

    def __init__(self, root: str | Path) -> None:
        self.folder = _local(root)
        self.root = str(self.folder)

    def pages(self, folder: str = "", *, after: str = "") -> Iterator[list[str]]:
        start = f"{folder}/" if folder else ""
        names = (start + name for name in walk_files(self.folder / folder))
        if after:
            for name in names:  # links come last, so that names alone do not tell what follows what
                if name == after:
                    break
            else:
                raise DataError(f"{self.path(after)}: is gone, so the listing cannot go on after it; put it back.")
        while page := list(islice(names, PAGE)):
            yield page

    def listing(self, folder: str = "") -> Iterator[list[tuple[str, FileState]]]:
        for page in self.pages(folder):
            states = zip(page, self.states(page), strict=True)
            yield [(name, state) for name, state in states if isinstance(state, FileState)]

    def entries(self, folder: str = "") -> dict[str, bool]:
        with os.scandir(self.folder / folder) as entries:
            found = {entry.name: is_folder(entry) for entry in entries if not entry.name.startswith(".")}
        return dict(sorted(found.items()))

    def folders(self, folder: str = "") -> list[str]:
        """The folders among the entries, sorted."""
        with os.scandir(self.folder / folder) as entries:
            return sorted(entry.name for entry in entries if is_folder(entry) and not entry.name.startswith("."))

    def state(self, name: str) -> FileState:
        status = (self.folder / name).stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(2, "not a file", self.path(name))
        return FileState(status.st_size, f"{status.st_size}-{status.st_mtime_ns}")

    def states(self, names: Sequence[str]) -> list[FileState | OSError]:
        return [self._state(name) for name in names]

    def _state(self, name: str) -> FileState | OSError:
        try:
            return self.state(name)
        except OSError as error:
            return error

    def read(self, spans: Sequence[Span]) -> list[bytes | OSError]:
        return [self._read(*span) for span in spans]

    def _read(self, name: str, start: int, size: int | None) -> bytes | OSError:
        try:
            with (self.folder / name).open("rb") as file:
                file.seek(start)
                return file.read(-1 if size is None else size)
        except OSError as error:
            return error

    def open(self, name: str) -> IO[bytes]:
        return (self.folder / name).open("rb")

    def fetch(self, name: str, target: Path) -> None:
        with self.open(name) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)

    def create(self, name: str, content: bytes | Path) -> bool:
        path = self.folder / name
        if path.exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with workshop_in(path.parent) as workshop:
            draft = workshop / path.name
            with draft.open("wb") as file:
                if isinstance(content, Path):
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, file)
                else:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
            return _put(draft, path)

    def path(self, name: str) -> str:
        return str(self.folder / name)


def _put(draft: Path, path: Path) -> bool:
    """Give a finished file its name, unless there is one of that name."""
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return False
    except OSError:  # a file system without links: whoever makes the empty file first may replace it
        with suppress(FileExistsError):
            path.open("xb").close()
            draft.replace(path)
            return True
        return False
    return True


def walk_files(folder: Path) -> Iterator[str]:
    """The name, below the folder, of every visible file in it, sorted in each folder; there may be millions.

    Links are followed, and no folder is visited twice: otherwise, links that cross would turn a few folders into
    exponentially many names. Folders themselves come before links to them, so that a file keeps the name that it has
    without any link.
    """
    seen: set[tuple[int, int]] = set()
    links = [""]
    with ExitStack() as open_files:
        while links:
            inside: list[
                tuple[str, Iterator[str]]
            ] = []  # the folders around the current one: name/, what is left in it
            _enter(folder, links.pop(0), seen, inside, open_files)
            while inside:
                start, left = inside[-1]
                own, _, kind = next(left, "").partition("\0")
                if not own:
                    inside.pop()
                elif kind == "file":
                    yield start + own
                elif kind == "folder":
                    _enter(folder, start + own, seen, inside, open_files)
                else:
                    links.append(start + own)


def _enter(
    root: Path, name: str, seen: set[tuple[int, int]], inside: list[tuple[str, Iterator[str]]], open_files: ExitStack
) -> None:
    status = (root / name).stat()
    if (status.st_dev, status.st_ino) not in seen:
        seen.add((status.st_dev, status.st_ino))
        inside.append((f"{name}/" if name else "", sort_names(_kinds(root / name), open_files)))


def _kinds(folder: Path) -> Iterator[str]:
    """What is in a folder, each with its kind, in no order; NUL, which no name has, sorts before every character."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                kind = "file" if not is_folder(entry) else "link" if entry.is_symlink() else "folder"
                yield f"{entry.name}\0{kind}"


def sort_names(names: Iterable[str], open_files: ExitStack) -> Iterator[str]:
    """Names in order; of very many, only some are in memory, and the others in files until `open_files` is closed."""
    iterator = iter(names)
    first = sorted(islice(iterator, RUN))
    runs: list[Iterable[str]] = []
    while more := sorted(islice(iterator, RUN)):
        file = open_files.enter_context(tempfile.TemporaryFile("w+", encoding="ascii"))  # noqa: SIM115
        file.writelines(f"{name.encode('unicode_escape').decode()}\n" for name in more)
        file.seek(0)
        runs.append(_unescaped(file))
    return merge(first, *runs) if runs else iter(first)


def _unescaped(file: IO[str]) -> Iterator[str]:
    for line in file:
        yield line[:-1].encode().decode("unicode_escape")


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one."""
    try:
        return entry.is_dir()  # asks the disk only about links
    except OSError:  # a link to itself: listed as a file, and reported as unreadable when it is read
        return False

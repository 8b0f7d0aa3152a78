"""Other people's files, read without trusting them: only regular files, of bounded size, with plain values.

A pipe would block, and a device never ends; a name may hold a NUL; a text may nest or repeat without end; `tarfile`
trusts every length in a header.
"""

import io
import json
import os
import stat
import tarfile
from collections.abc import Generator, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import yaml

from vitrail.errors import ConfigError, DataError, VitrailError, shorten

MAX_CONFIG = 100_000  # bytes of a YAML file; ours have three thousand
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: str | Path, error: type[VitrailError] = DataError) -> int:
    """The size of a file in bytes; anything but a regular file is refused with `error`, before it is opened."""
    name = str(path) if len(str(path)) < 1000 else shorten(str(path))
    try:
        status = os.stat(path)  # noqa: PTH116 - a path that pathlib cannot hold is judged here too
    except FileNotFoundError:
        raise error(f"{name}: no such file.") from None
    except OSError as reason:
        raise error(f"{name}: cannot be read ({reason.strerror}).") from None
    except ValueError as reason:  # a NUL, or a character that file names cannot have on this system
        raise error(f"{shorten(str(path))}: no file can have this name ({reason}).") from None
    if not stat.S_ISREG(status.st_mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(status.st_mode)), "something else")
        raise error(f"{name}: must be a file; it is {kind}.")
    return status.st_size


def read_bytes(path: Path, limit: int, error: type[VitrailError] = DataError) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    size = check_regular(path, error)
    if size > limit:
        raise error(f"{path}: must have at most {limit:,} bytes; it has {size:,}.")
    try:
        with path.open("rb") as file:
            return file.read(limit)  # files of /proc and the like claim to be empty, but are not
    except OSError as reason:
        raise error(f"{path}: cannot be read ({reason.strerror}).") from None


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError if it is not standard, nests too deeply or is too long."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):  # Python's advice to programmers
            raise ValueError("it has a number of too many digits") from None
        raise


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def read_yaml(path: Path) -> Any:
    """The plain value of a YAML config file. Dates stay text; aliases, doubled keys and endless nesting are refused."""
    try:
        return _parse_yaml(read_bytes(path, MAX_CONFIG, ConfigError), str(path))
    except ConfigError as error:
        raise ConfigError(f"cannot read the config file {error}") from None


def _parse_yaml(content: bytes, name: str) -> Any:
    try:
        return yaml.load(content, _PlainLoader)  # noqa: S506 - a SafeLoader that knows less
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{name}: its lists or mappings are nested too deeply.") from None
    except Exception as error:  # besides its own errors, PyYAML lets through what int(), float() and re raise
        reason = str(error) if isinstance(error, yaml.YAMLError) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{name}: not YAML ({reason[:500]}).") from None


class _PlainLoader(yaml.SafeLoader):
    """YAML as a config needs it."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):  # nine lines of aliases can stand for a billion values
            event = self.get_event()
            raise ConfigError(
                f"line {event.start_mark.line + 1} has the alias *{shorten(event.anchor)[1:-1]}; write its value out."
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = (key.tag, key.value)
                if name in names:
                    line = key.start_mark.line + 1
                    raise ConfigError(f"line {line} has {shorten(key.value)} a second time; keep one.")
                names.add(name)
        return super().construct_mapping(node, deep)


# A date would become an object that no field can hold; as text it is refused, or is a valid name.
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

PIECE = 1 << 22  # the most that is read at once; no header of an archive of pictures needs more


class _CountedFile:
    """What `tarfile` needs of a file; reading or unpacking more than allowed is an error."""

    def __init__(self, file: IO[bytes], budget: int, *, packed: bool) -> None:
        self._file = file
        self._budget = budget
        self._packed = packed  # skipping costs as much as reading

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size if 0 <= size <= PIECE else PIECE)
        self._spend(len(data))
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or not 0 <= offset < 2**62:
            raise OSError(f"a header points to the byte {offset:,}")
        if self._packed:
            self._spend(max(offset - self._file.tell(), 0))
        return self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()

    def _spend(self, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise OSError("it unpacks to more than the limit, or goes in circles")


@contextmanager
def open_tar(file: IO[bytes], name: str, budget: int, *, packed: bool = False) -> Generator[tarfile.TarFile]:
    """An opened archive, of which at most `budget` bytes are read; whatever `tarfile` raises becomes a DataError."""
    try:
        counted = cast("Any", _CountedFile(file, budget, packed=packed))
        with tarfile.open(name, "r:", counted) as archive:
            yield archive
    except DataError:
        raise
    except Exception as error:  # a hostile header can make tarfile raise anything
        kind = "not a tar file" if packed else "not an uncompressed tar"
        reason = (str(error) or type(error).__name__)[:300]
        raise DataError(f"{name}: damaged or truncated, or {kind} ({reason}); fetch it again.") from None


def files_of(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The regular files, in order; each begins after the one before it, or the archive is damaged."""
    offset = -1
    for entry in archive:
        if entry.offset_data <= offset or entry.size < 0:
            raise tarfile.ReadError(f"the member at {entry.offset_data:,} is out of order")
        offset = entry.offset_data
        if entry.isfile():
            yield entry


def read_member(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    """The content of a file in an archive, piece by piece."""
    file = archive.extractfile(entry)
    if file is None:
        return b""
    pieces: list[bytes] = []
    while piece := file.read(PIECE):
        pieces.append(piece)
    return b"".join(pieces)

"""webdataset tar shards, read by index so that order, resume and splitting stay exact.

`shards.json` (written by `vitrail data shard`) lists the classes, and for each shard its size and labels; a set that
lacks one of them is refused. Shards made elsewhere have no such file: their headers are read once, when they are
opened. A shard in an object store or on a web server is fetched when its first sample is needed, and kept.
"""

import re
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from vitrail.data.config import DataConfig
from vitrail.data.copies import Copies, unpack_state
from vitrail.data.download import WebFolder, is_web
from vitrail.data.pixels import EXTENSIONS
from vitrail.data.source import Dataset, RowSource, Source, split_dataset
from vitrail.data.split import SPLIT_NAMES, SPLITS, refuse_split_file
from vitrail.errors import DataError, shorten
from vitrail.rng import Integers
from vitrail.storage import Disk, FileState, open_file_store, open_store
from vitrail.untrusted import check_regular, files_of, open_tar, parse_json, read_bytes, read_member

INDEX = "shards.json"
AT_ONCE = 8  # shards that are fetched at the same time
BLOCK = 512  # a tar file's
LABEL_EXTENSIONS = ("cls", "label", "txt", "json")
MAX_NAME, MAX_DIGITS = 1000, 18  # characters of a label; digits of a numeric one
MAX_SHARDS = 100_000  # for which a pattern may stand
MAX_INDEX = 1 << 29  # bytes of a shards.json: the labels of a hundred million pictures
MAX_LABEL = 1_000_000  # bytes: a sparse member can claim any number of them without taking space


@dataclass(frozen=True)
class Member:
    """Where a sample's picture is in its shard."""

    key: str
    offset: int
    size: int
    label: str


class Files(Protocol):
    """Where shards are: a `Copies` of a store, or a `WebFolder`."""

    def where(self, name: str) -> str: ...

    def get(self, name: str) -> Path: ...


class Shard:
    """One tar file; `state` is known of those in an object store."""

    def __init__(
        self,
        files: Files,
        name: str,
        num_bytes: int | None = None,
        num_samples: int | None = None,
        state: FileState | None = None,
    ) -> None:
        self.name = name
        self.where = files.where(name)
        self.state = state
        self._files = files
        self._num_bytes = num_bytes
        self._num_samples = num_samples

    @cached_property
    def path(self) -> Path:
        return self._files.get(self.name)

    @property
    def is_local(self) -> bool:
        """Whether it is on a disk of this machine, and not a copy."""
        return isinstance(self._files, Copies) and isinstance(self._files.store, Disk)

    @property
    def is_missing(self) -> bool:
        """Whether it is in an object store, and not fetched yet as far as we know."""
        return self.state is not None and "path" not in self.__dict__

    def check_size(self) -> None:
        """Refuse a shard that is missing, or not as large as its list says."""
        size = check_regular(self.path) if self.state is None else self.state.size
        if self._num_bytes is not None and size != self._num_bytes:
            raise DataError(
                f"{self.where}: must have {self._num_bytes:,} bytes; got {size:,}. Copy or write the shards again."
            )

    @cached_property
    def members(self) -> list[Member]:
        """Every sample of the shard, in order; a truncated shard is an error."""
        self.check_size()
        members = _scan(self.path, self.where)
        if self._num_samples is not None and len(members) != self._num_samples:
            raise DataError(f"{self.where}: must hold {self._num_samples:,} samples; got {len(members):,}.")
        return members

    def read(self, position: int) -> bytes:
        member = self.members[position]
        with self.path.open("rb") as file:
            file.seek(member.offset)
            return file.read(member.size)


def _scan(path: Path, where: str) -> list[Member]:
    size = check_regular(path)
    with path.open("rb") as file, open_tar(file, where, 2 * size + BLOCK) as archive:
        entries = list(files_of(archive))
        end = archive.offset
        samples = [_member(archive, key, list(group)) for key, group in groupby(entries, _key)]
    last = max((member.offset + member.size for member in samples if member), default=0)
    if last > size or end + BLOCK > size:  # a whole archive ends with empty blocks
        raise DataError(f"{where}: truncated at {size:,} bytes; fetch or write it again.")
    return [member for member in samples if member]


def _key(entry: tarfile.TarInfo) -> str:
    folder, _, name = entry.name.rpartition("/")
    return f"{folder}/{name.split('.', 1)[0]}".lstrip("/")


def _member(archive: tarfile.TarFile, key: str, entries: list[tarfile.TarInfo]) -> Member | None:
    pictures = [entry for entry in entries if Path(entry.name).suffix.lower() in EXTENSIONS]
    if not pictures:
        return None
    picture = min(pictures, key=lambda entry: entry.name.lower().endswith(".npy"))  # beside a picture, a mask or so
    return Member(key, picture.offset_data, picture.size, _label(archive, key, entries))


def _label(archive: tarfile.TarFile, key: str, entries: list[tarfile.TarInfo]) -> str:
    """What the first file beside a picture that holds a label says."""
    where = f"{archive.name!s}: the label of sample {key}"
    for entry in entries:
        extension = entry.name.rsplit(".", 1)[-1].lower()
        if extension not in LABEL_EXTENSIONS:
            continue
        if entry.size > MAX_LABEL:
            raise DataError(f"{where} has {entry.size:,} bytes; at most {MAX_LABEL:,}.")
        data = read_member(archive, entry)
        try:
            label = _json_label(parse_json(data)) if extension == "json" else data.decode("utf-8", "replace")
        except ValueError as error:
            raise DataError(f"{where} is JSON that cannot be read ({error}).") from None
        if label is None:
            continue
        if not 0 < len(label.strip()) <= MAX_NAME:
            raise DataError(f"{where} has {len(label.strip()):,} characters, not 1 to {MAX_NAME}.")
        return label.strip()
    raise DataError(f"{archive.name!s}: sample {key} has no label (a .cls, .txt or .json beside the picture).")


def _json_label(fields: Any) -> str | None:
    values = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    label = next((values[name] for name in ("label", "class", "cls") if name in values), None)
    return str(label) if isinstance(label, str | int | float) else None


class ShardSource(RowSource):
    """The samples of some shards; a row is (which shard, which sample in it)."""

    def __init__(self, shards: Sequence[Shard], labels: Sequence[Sequence[int]]) -> None:
        rows = [(shard, position) for shard, some in enumerate(labels) for position in range(len(some))]
        flat = [label for some in labels for label in some]
        super().__init__("shards", flat, np.array(rows, dtype=np.int64).reshape(-1, 2))
        self.shards = shards

    def prefetch(self, indices: Sequence[int] | Integers) -> None:
        fetch_shards([self.shards[shard] for shard in np.unique(self.rows[np.asarray(indices), 0]).tolist()])

    def picture(self, index: int) -> bytes:
        shard, position = self.rows[index].tolist()
        return self.shards[shard].read(position)

    def key(self, index: int) -> str:
        shard, position = self.rows[index].tolist()
        return f"{self.shards[shard].name}:{position}"

    @property
    def blocks(self) -> Sequence[int] | None:
        changes = np.flatnonzero(np.diff(self.rows[:, 0])) + 1
        return [len(part) for part in np.split(self.rows[:, 0], changes)]


def fetch_shards(shards: Sequence[Shard]) -> None:
    """Have copies of shards in an object store, several at once."""
    missing = [shard for shard in shards if shard.is_missing]
    if missing:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(attrgetter("path"), missing))


def open_shards(where: str, config: DataConfig) -> Dataset:
    """Shards by their `shards.json`, their folder, one file's path or address, or a pattern like t-{000..009}.tar."""
    if is_web(where):
        root, _, name = where.rpartition("/")
        if name == INDEX:
            refuse_split_file(config, where)
            return _open_indexed(where, WebFolder(root, config.cache))
        places = [location.rpartition("/") for location in expand_braces(where)]
        shards = [Shard(WebFolder(root, config.cache), name) for root, _, name in places]
        return _open_foreign(where, shards, config)
    if not where.endswith((".tar", INDEX)):
        store = open_store(where)
        names = [name for name, is_folder in store.entries().items() if not is_folder]
        if INDEX in names:
            refuse_split_file(config, where)
            return _open_indexed(store.path(INDEX), Copies(store, config.cache))
        copies = Copies(store, config.cache)
        return _open_foreign(where, _shards(copies, [name for name in names if name.endswith(".tar")]), config)
    if where.endswith(INDEX):
        refuse_split_file(config, where)
        return _open_indexed(where, Copies(open_file_store(where)[0], config.cache))
    folders: dict[str, tuple[Copies, list[str]]] = {}
    for location in expand_braces(where):
        store, name = open_file_store(location)
        folders.setdefault(store.root, (Copies(store, config.cache), []))[1].append(name)
    shards = [shard for copies, names in folders.values() for shard in _shards(copies, names)]
    return _open_foreign(where, shards, config)


def _shards(copies: Copies, names: Sequence[str]) -> list[Shard]:
    states = _require_states(copies, names)
    return [Shard(copies, name, state=states.get(name)) for name in names]


def _require_states(files: Copies | WebFolder, names: Sequence[str]) -> dict[str, FileState]:
    """The states of shards, if they are in an object store: all must be there, and fit on the disk."""
    if isinstance(files, WebFolder) or isinstance(files.store, Disk):
        return {}
    states = files.states(names)
    for name, state in zip(names, states, strict=True):
        if not state["version"]:
            raise DataError(f"{files.where(name)}: no such file.")
    files.require_space(files.missing_bytes(names, states))
    return dict(zip(names, map(unpack_state, states), strict=True))


def _open_indexed(where: str, files: Copies | WebFolder) -> Dataset:
    folder, _, name = where.rpartition("/")
    try:
        on_web = isinstance(files, WebFolder)  # where it may have grown since it was fetched
        data = files.read_anew(name) if on_web else read_bytes(files.get(name), MAX_INDEX)
        index = _typed(parse_json(data), dict, "the file")
        classes = tuple(_name(name) for name in _typed(index["classes"], list, "classes"))
        splits: dict[str, Source] = {}
        for split, entries in _typed(index["splits"], dict, "splits").items():
            _check_entries(split, _typed(entries, list, split), len(classes))
            states = _require_states(files, [entry["file"] for entry in entries])
            shards = [
                Shard(files, entry["file"], entry["bytes"], len(entry["labels"]), states.get(entry["file"]))
                for entry in entries
            ]
            for shard in shards:
                if not on_web:
                    shard.check_size()
            splits[split] = ShardSource(shards, [entry["labels"] for entry in entries])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: not a list of shards ({type(error).__name__}: {str(error)[:300]}).") from None
    return Dataset(name=folder.rsplit("/", 1)[-1] or "shards", classes=classes, splits=splits)


def _check_entries(split: str, entries: list[Any], num_classes: int) -> None:
    if split not in SPLITS:
        raise ValueError(f"the split {shorten(split)} must be one of {', '.join(SPLITS)}")
    for number, item in enumerate(entries):
        entry = _typed(item, dict, f"shard {number} of {split}")
        file = _name(entry["file"])
        if Path(file).name != file:
            raise ValueError(f"a shard must be in the folder of the list; got {shorten(file)}")
        if type(entry["bytes"]) is not int or not 0 <= entry["bytes"] < 2**62:
            raise ValueError(f"the bytes of {file} must be a whole number; got {shorten(entry['bytes'])}")
        for label in _typed(entry["labels"], list, f"the labels of {file}"):
            if type(label) is not int or not 0 <= label < num_classes:
                raise ValueError(f"{file} has the label {shorten(label)}, but there are {num_classes} classes")


def _typed(value: Any, kind: type[Any], what: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{what} must be a {'list' if kind is list else 'mapping'}; got {shorten(value)}")
    return value


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME or "\0" in value:
        raise ValueError(f"a name must be text of 1 to {MAX_NAME} characters; got {shorten(value)}")
    return value


def _open_foreign(where: str, shards: list[Shard], config: DataConfig) -> Dataset:
    if not shards:
        raise DataError(f"{where}: no .tar shards there.")
    fetch_shards(shards)
    names = [[member.label for member in shard.members] for shard in shards]
    distinct = {name for some in names for name in some}
    classes = sorted(
        distinct, key=lambda name: (int(name) if name.isdecimal() and len(name) <= MAX_DIGITS else -1, name)
    )
    codes = {name: code for code, name in enumerate(classes)}
    source = ShardSource(shards, [[codes[name] for name in some] for some in names])
    roles = [SPLIT_NAMES.get(re.split(r"[^a-zA-Z]", shard.name)[0].lower(), "train") for shard in shards]
    if len(set(roles)) == 1:
        return split_dataset(where, classes, source, config)
    refuse_split_file(config, where)
    owners = np.repeat(np.array(roles), [len(some) for some in names])
    splits = {role: source.select(np.flatnonzero(owners == role)) for role in dict.fromkeys(roles)}
    return Dataset(name=where, classes=tuple(classes), splits=splits)


def expand_braces(pattern: str) -> list[str]:
    """`t-{000..002}.tar` → the three names; a pattern without braces is itself."""
    names = [""]
    end = 0
    for match in re.finditer(r"\{([0-9]+)\.\.([0-9]+)\}", pattern):
        first, last = match.groups()
        count = int(last) - int(first) + 1 if len(first + last) <= 2 * MAX_DIGITS else MAX_SHARDS + 1
        if count < 1 or count * len(names) > MAX_SHARDS:
            raise DataError(f"{shorten(pattern)[1:-1]}: a pattern must stand for 1 to {MAX_SHARDS:,} shards.")
        numbers = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        names = [name + pattern[end : match.start()] + number for name in names for number in numbers]
        end = match.end()
    return [name + pattern[end:] for name in names]

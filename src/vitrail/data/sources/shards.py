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
from vitrail.data.label_columns import LabelColumns, no_labels, read_labels, read_values
from vitrail.data.label_kinds import LABELLINGS, Labels
from vitrail.data.pixels import EXTENSIONS
from vitrail.data.source import Dataset, RowSource, Source, split_dataset
from vitrail.data.split import SPLIT_NAMES, SPLITS, refuse_split_file
from vitrail.errors import DataError, shorten
from vitrail.registry import LabelKind, task_of
from vitrail.rng import Integers
from vitrail.storage import Disk, FileState, open_file_store, open_store
from vitrail.untrusted import check_regular, files_of, open_tar, parse_json, read_bytes, read_member

INDEX = "shards.json"
FORMATS = (1, 2)  # of that file; the second has labels other than classes
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
    label: Any  # a text, or what a JSON file beside the picture has: a list of labels, or numbers by their names


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


def _label(archive: tarfile.TarFile, key: str, entries: list[tarfile.TarInfo]) -> Any:
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
        for name in label if isinstance(label, list | dict) else [label]:
            if not 0 < len(name.strip()) <= MAX_NAME:
                raise DataError(f"{where} has {len(name.strip()):,} characters, not 1 to {MAX_NAME}.")
        return label.strip() if isinstance(label, str) else label
    raise DataError(f"{archive.name!s}: sample {key} has no label (a .cls, .txt or .json beside the picture).")


def _json_label(fields: Any) -> "str | list[str] | dict[str, float] | None":
    values = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    label = next((values[name] for name in ("label", "class", "cls", "labels") if name in values), None)
    if isinstance(label, list) and all(isinstance(item, str | int) for item in cast("list[Any]", label)):
        return [str(item) for item in cast("list[Any]", label)]
    numbers = cast("dict[str, Any]", label) if isinstance(label, dict) else {}
    if numbers and all(isinstance(item, int | float) for item in numbers.values()):
        return numbers
    return str(label) if isinstance(label, str | int | float) else None


class ShardSource(RowSource):
    """The samples of some shards; a row is (which shard, which sample in it)."""

    def __init__(self, shards: Sequence[Shard], lengths: Sequence[int], labels: Labels) -> None:
        rows = [(shard, position) for shard, length in enumerate(lengths) for position in range(length)]
        super().__init__("shards", labels, np.array(rows, dtype=np.int64).reshape(-1, 2))
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
        if index.get("format", 1) not in FORMATS:
            raise ValueError(f"its format {shorten(index['format'])} is newer than this version of vitrail")
        classes = tuple(_name(name) for name in _typed(index["classes"], list, "classes"))
        kind = _kind(index)
        splits: dict[str, Source] = {}
        for split, entries in _typed(index["splits"], dict, "splits").items():
            _check_entries(split, _typed(entries, list, split))
            states = _require_states(files, [entry["file"] for entry in entries])
            shards = [
                Shard(files, entry["file"], entry["bytes"], len(entry["labels"]), states.get(entry["file"]))
                for entry in entries
            ]
            for shard in shards:
                if not on_web:
                    shard.check_size()
            labels = [_stored_labels(entry, kind, len(classes)) for entry in entries]
            splits[split] = ShardSource(shards, list(map(len, labels)), np.concatenate(labels))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: not a list of shards ({type(error).__name__}: {str(error)[:300]}).") from None
    return Dataset(name=folder.rsplit("/", 1)[-1] or "shards", classes=classes, splits=splits, task=task_of(kind))


def _kind(index: dict[str, Any]) -> LabelKind:
    """What the labels of a list are; that of format 1 has classes."""
    kind = index.get("labels", "class")
    if kind not in LABELLINGS:
        raise ValueError(f"labels must be one of {', '.join(LABELLINGS)}; got {shorten(kind)}")
    return kind


def _stored_labels(entry: dict[str, Any], kind: LabelKind, num_outputs: int) -> Labels:
    """The labels of a shard: a class, a list of the labels that apply, or a list of values for each picture."""
    file, labels = entry["file"], _typed(entry["labels"], list, f"the labels of {entry['file']}")
    if kind == "class":
        _check_places(file, labels, num_outputs)
        return np.array(labels, dtype=np.int64)
    for label in labels:
        _typed(label, list, f"a label of {file}")
    matrix = np.zeros((len(labels), num_outputs), dtype=np.uint8 if kind == "set" else np.float32)
    for row, label in enumerate(labels):
        if kind == "set":
            _check_places(file, label, num_outputs)
            matrix[row, label] = 1
        elif len(label) != num_outputs or not all(type(value) in (int, float) for value in label):
            raise ValueError(f"{file} has the values {shorten(label)}; there must be {num_outputs} numbers")
        else:
            matrix[row] = label
    return matrix


def _check_places(file: str, places: list[Any], num_classes: int) -> None:
    for place in places:
        if type(place) is not int or not 0 <= place < num_classes:
            raise ValueError(f"{file} has the label {shorten(place)}, but there are {num_classes} classes")


def _check_entries(split: str, entries: list[Any]) -> None:
    if split not in SPLITS:
        raise ValueError(f"the split {shorten(split)} must be one of {', '.join(SPLITS)}")
    for number, item in enumerate(entries):
        entry = _typed(item, dict, f"shard {number} of {split}")
        file = _name(entry["file"])
        if Path(file).name != file:
            raise ValueError(f"a shard must be in the folder of the list; got {shorten(file)}")
        if type(entry["bytes"]) is not int or not 0 <= entry["bytes"] < 2**62:
            raise ValueError(f"the bytes of {file} must be a whole number; got {shorten(entry['bytes'])}")
        _typed(entry["labels"], list, f"the labels of {file}")


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
    members = [member for shard in shards for member in shard.members]
    labels = _read_foreign(where, members, config)
    lengths = [len(shard.members) for shard in shards]
    every = {"train": np.arange(len(members))}  # a name that one split lacks is a class of the others
    classes = labels.outputs or tuple(sorted(labels.encode(where, every)[0], key=_by_number))
    source = ShardSource(shards, lengths, labels.table(classes))
    roles = [SPLIT_NAMES.get(re.split(r"[^a-zA-Z]", shard.name)[0].lower(), "train") for shard in shards]
    if len(set(roles)) == 1:
        return split_dataset(where, classes, source, config, task=labels.task, assumed=labels.assumed)
    refuse_split_file(config, where)
    owners = np.repeat(np.array(roles), lengths)
    splits = {role: source.select(np.flatnonzero(owners == role)) for role in dict.fromkeys(roles)}
    return Dataset(name=where, classes=classes, splits=splits, task=labels.task, assumed=labels.assumed)


def _by_number(name: str) -> tuple[int, str]:
    return int(name) if name.isdecimal() and len(name) <= MAX_DIGITS else -1, name


def _read_foreign(where: str, members: Sequence[Member], config: DataConfig) -> LabelColumns:
    """What the files beside the pictures say."""
    if config.label_kind == "none":
        return no_labels(len(members))
    named = [member.label for member in members if isinstance(member.label, dict)]
    if not named:
        return read_labels(where, {"label": [member.label for member in members]}, config)
    names = list(named[0])
    wrong = next((each for each in members if not isinstance(each.label, dict) or list(each.label) != names), None)
    if wrong is not None or config.label_kind not in (None, "values"):
        key = (wrong or members[0]).key
        raise DataError(f"{where}: some labels are the numbers {', '.join(names)}, so all must be; {key} differs.")
    return read_values(where, {name: [each[name] for each in named] for name in names})


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

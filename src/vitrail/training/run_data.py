"""The pictures of a run: a resumed one continues with those that it began with, which its split.csv names, in that
order, and notices by pictures.csv if they were replaced.

Of each file, pictures.csv has the size and time of change; and of an evenly spaced sample, which is all of a small
split, a hash of the contents. Whether a file whose time differs was replaced or only copied, its hash decides; a file
without one was copied if others of its split were.
"""

import csv
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

import numpy as np

from vitrail.data import Dataset, open_data
from vitrail.data.config import AUTO
from vitrail.data.source import FileSource, Source
from vitrail.data.sources.shards import ShardSource
from vitrail.data.split import SPLIT_NAMES, SPLITS, UNUSED
from vitrail.errors import DataError
from vitrail.files import atomic_path
from vitrail.registry import labels_of
from vitrail.storage import FileState
from vitrail.training.config import TrainConfig
from vitrail.training.setup import open_pictures, open_training_data
from vitrail.wording import agree, counted

CONTENTS = "pictures.csv"
COLUMNS = ("name", "bytes", "modified", "blake2b")
LOOKED_AT = 50_000  # files of a split
HASHED = 2_000  # and of those
SAMPLED = 256  # pictures of a split that are not files
ENDS = 1 << 19  # bytes at the start and at the end of a file that are hashed
SHOWN = 3  # names, as examples

Say = Callable[[str], None]


class Content(NamedTuple):
    """What is known of a file, or of a picture in memory, whose time is 0."""

    size: int
    modified: int  # ns
    digest: str  # "": not computed


def write_contents(dataset: Dataset, folder: Path) -> None:
    """Record what the pictures contain now."""
    known: dict[str, Content] = {}
    for source in dataset.splits.values():
        items = _items(source)
        for index, (name, item) in enumerate(items.items()):
            content = _look(item)
            if content is not None:
                known[name] = _hash(item, content) if index % _step(len(items), HASHED) == 0 else content
    _write(known, folder / CONTENTS)


def report_replaced(dataset: Dataset, folder: Path, say: Say) -> None:
    """Say which pictures have been replaced since they were recorded, and record what they are now."""
    path = folder / CONTENTS
    if not path.is_file():  # a run of an older version
        return
    known = _read(path)
    now: dict[str, Content] = {}
    for split, source in dataset.splits.items():
        items = _items(source)
        found, replaced = _compare(items, known)
        now |= found
        if replaced:
            shards = isinstance(source, ShardSource)
            whose = "of the run's" if shards or len(items) == len(source) else "of a sample of"
            what = agree(len(items), "shard" if shards else "picture")
            count = f"{len(replaced):,} {whose} {len(items):,} {split} {what}"
            advice = "do not compare accuracies from before and after" if split != "train" else "the run continues"
            have = agree(len(replaced), "has", "have")
            say(f"{count} {have} been replaced since the run began: {_some(replaced)}; {advice}")
    if now != {name: known[name] for name in now}:
        _write(known | now, path)


def contents_key(folder: Path, source: Source) -> str:
    """A hash of what is known of the contents of a source; "" in a run of an older version."""
    path = next((path / CONTENTS for path in (folder, folder.parent) if (path / CONTENTS).is_file()), None)
    if path is None:  # that of a probe is beside its folder
        return ""
    known = _read(path)
    text = "".join(f"{name}\0{known[name].digest}\n" for name in _items(source) if name in known)
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _items(source: Source) -> dict[str, Any]:
    """What is looked at, by name: files, the states of those in a store, or pictures in memory.

    Shards of a web server would have to be fetched for that.
    """
    if isinstance(source, ShardSource):
        return {shard.name: shard.state or shard.path for shard in source.shards if shard.state or shard.is_local}
    indices = range(0, len(source), _step(len(source), LOOKED_AT if isinstance(source, FileSource) else SAMPLED))
    if isinstance(source, FileSource):
        return {source.key(index): source.state(index) or source.picture(index) for index in indices}
    return {source.key(index): source.picture(index) for index in indices}


def _step(count: int, most: int) -> int:
    return -(-count // most) or 1


def _compare(items: Mapping[str, Any], known: Mapping[str, Content]) -> tuple[dict[str, Content], list[str]]:
    """What the recorded items contain now, and the names of those that were replaced."""
    now: dict[str, Content] = {}
    replaced: list[str] = []
    unsure: list[str] = []
    copied = False
    for name, item in items.items():
        old, new = known.get(name), _look(item)
        if old is None or new is None:  # a picture that is missing is reported as such
            continue
        if new[:2] == old[:2] and not (new.digest and new.digest != old.digest):
            new = old
        elif new.size == old.size and not old.digest:
            unsure.append(name)
        else:
            new = _hash(item, new)
            copied |= new.digest == old.digest
            replaced += [] if new.digest == old.digest else [name]
        now[name] = new
    if not copied:
        replaced += unsure
        now |= {name: _hash(items[name], now[name]) for name in unsure}
    return now, replaced


def _look(item: Any) -> Content | None:
    if isinstance(item, FileState):
        return Content(item.size, 0, item.version) if item.version else None
    if not isinstance(item, Path):
        return _hash(item, Content(0, 0, ""))
    try:
        status = item.stat()
    except OSError:
        return None
    return Content(status.st_size, status.st_mtime_ns, "") if S_ISREG(status.st_mode) else None


def _hash(item: Any, content: Content) -> Content:
    """The content with its hash, unless it cannot be read, which is reported elsewhere."""
    if isinstance(item, FileState):
        return content
    digest = hashlib.blake2b(digest_size=16)
    if not isinstance(item, Path):
        digest.update(item if isinstance(item, bytes) else np.asarray(item).tobytes())
        return content._replace(digest=digest.hexdigest())
    try:
        with item.open("rb") as file:
            digest.update(file.read(ENDS))
            file.seek(max(content.size - ENDS, ENDS))
            digest.update(file.read(ENDS))
    except OSError:
        return content
    return content._replace(digest=digest.hexdigest())


def _write(known: Mapping[str, Content], path: Path) -> None:
    with (
        atomic_path(path) as draft,
        draft.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        rows.writerows((name, *content) for name, content in known.items())


def _read(path: Path) -> dict[str, Content]:
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = csv.reader(file)
            if tuple(next(rows, ())) != COLUMNS:
                raise ValueError(f"it needs the columns {', '.join(COLUMNS)}")
            return {name: Content(int(size), int(modified), digest) for name, size, modified, digest in rows}
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is damaged ({str(error)[:200]}); remove it to continue without.") from error


class SplitRow(NamedTuple):
    """One line of split.csv."""

    key: str
    split: str
    name: str  # of the class, or the labels or values in one cell


def reopen_data(config: TrainConfig, split_file: Path, say: Say) -> Dataset:
    """The data of a begun run; `say` reports what is missing, new or now of another class."""
    if not config.data or not split_file.exists():  # data in memory with splits of their own have none
        return (open_pictures if config.pretrains else open_training_data)(config)
    rows = read_split_rows(split_file)
    task = "one" if config.source.task == AUTO else config.source.task  # others are recorded when a run begins
    everything = replace(config.source, val_rate=0.0, test_rate=0.0, split_file=None, exclude=(), task=task)
    dataset = open_data(config.data, everything)
    return keep_own(dataset if config.selection.folds is None else dataset.pooled(), rows, say)


def read_split_rows(path: Path) -> list[SplitRow]:
    """What split.csv says, line by line."""
    rows: list[SplitRow] = []
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            if not {"key", "split", "class"} <= set(reader.fieldnames or ()):
                raise DataError(f"{path} is damaged: it needs the columns key, split and class.")
            for number, line in enumerate(reader, start=2):
                key, name = line["key"], line["class"]
                split = UNUSED if line["split"] == UNUSED else SPLIT_NAMES.get(str(line["split"]))
                if not key or name is None or split is None or "\0" in key:
                    hint = "it must name a picture, its split and its label"
                    raise DataError(f"{path} is damaged at line {number}: {hint}.")
                rows.append(SplitRow(key, split, name))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from None
    except csv.Error as error:
        raise DataError(f"{path} is damaged: not a table ({error}).") from None
    return rows


def keep_own(dataset: Dataset, rows: Sequence[SplitRow], say: Say) -> Dataset:
    """The part of some data with which a run began, split and labelled as it was."""
    used, noun = dataset.labelling.used((row.name for row in rows), dataset.classes), dataset.labelling.noun
    lost = sorted(used - set(dataset.classes))
    if lost:
        raise DataError(
            f"{dataset.name}: the run's {noun} {lost[0][:100]} is no longer in the data; put it back to resume."
        )
    classes = tuple(name for name in dataset.classes if name in used)
    known = {row.key for row in rows}
    new = [key for source in dataset.splits.values() for key in _keys(source) if key not in known]
    if new:
        say(f"{_pictures(new)} new since the run began, and left out of it: {_some(new)}")
    splits: dict[str, Source] = {}
    for split in SPLITS:
        own = [row for row in rows if row.split == split]
        source = _find_source(dataset, split, own)
        if own and (part := _select(dataset, split, source, own, classes, say)) is not None:
            splits[split] = part
    made = dataset.made_split or not set(splits) <= set(dataset.splits)
    return replace(dataset, classes=classes, splits=splits, made_split=made)


def _find_source(dataset: Dataset, split: str, own: Sequence[SplitRow]) -> Source:
    """Where a split's pictures are: in the split of that name, or among all, from which it was made."""
    source = dataset.splits.get(split)
    keys = set() if source is None else set(_keys(source))
    return source if source is not None and any(row.key in keys for row in own) else dataset.split("train")


def _select(
    dataset: Dataset, split: str, source: Source, own: Sequence[SplitRow], classes: Sequence[str], say: Say
) -> Source | None:
    places = {key: index for index, key in enumerate(_keys(source))}
    missing = [row.key for row in own if row.key not in places]
    if missing:
        text = f"{len(missing):,} of the run's {len(own):,} {split} pictures cannot be found: {_some(missing)}"
        training = split == "train"
        few = isinstance(source, FileSource) and len(missing) <= dataset.max_broken_rate * len(own)
        if (training and not few) or (split == "val" and len(missing) == len(own)):
            raise DataError(f"{dataset.name}: {text}. Put them back to resume, or start a new run.")
        say(f"{text}; the run continues without them")
        if not training:
            own = [row for row in own if row.key in places]
    now = dict(dataset.cells(source, [places[row.key] for row in own if row.key in places]))
    changed = [row.key for row in own if now.get(row.key, row.name) != row.name]
    if changed:
        what = "now of another class; the run keeps the class that it began with"
        if labels_of(dataset.task) != "class":
            what = "now labelled otherwise; the run keeps the labels that it began with"
        say(f"{_pictures(changed)} {what}: {_some(changed)}")
    if not own:
        return None
    try:
        labels = dataset.labelling.parse([row.name for row in own], classes)
    except ValueError as error:
        raise DataError(f"{dataset.name}: the run's split.csv has labels of another task ({error}).") from None
    if isinstance(source, FileSource):  # a missing file keeps its index, or the order of all others would change
        return source.renamed([row.key for row in own], labels)
    part = source.select([places[row.key] for row in own])
    part.labels = labels
    return part


def _keys(source: Source) -> list[str]:
    return [source.key(index) for index in range(len(source))]


def _pictures(keys: Sequence[str]) -> str:
    return f"{counted(len(keys), 'picture')} {agree(len(keys), 'is', 'are')}"


def _some(keys: Sequence[str]) -> str:
    return ", ".join(key[:100] for key in keys[:SHOWN]) + (", …" if len(keys) > SHOWN else "")

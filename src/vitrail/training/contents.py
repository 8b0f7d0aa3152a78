"""`pictures.csv`: what a run's pictures contained when it began, so that it notices when they are replaced.

Of each file: its size and time of change; and of an evenly spaced sample, which is all of a small split, a hash of the
contents. Whether a file whose time differs was replaced or only copied, its hash decides; a file without one was copied
if others of its split were.
"""

import csv
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

import numpy as np

from vitrail.data import Dataset
from vitrail.data.source import FileSource, Source
from vitrail.data.sources.shards import ShardSource
from vitrail.errors import DataError
from vitrail.files import atomic_path
from vitrail.wording import agree

CONTENTS = "pictures.csv"
COLUMNS = ("name", "bytes", "modified", "blake2b")
LOOKED_AT = 50_000  # files of a split
HASHED = 2_000  # and of those
SAMPLED = 256  # pictures of a split that are not files
ENDS = 1 << 19  # bytes at the start and at the end of a file that are hashed
SHOWN = 3  # names of replaced files


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


def report_replaced(dataset: Dataset, folder: Path, say: Callable[[str], None]) -> None:
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
            names = ", ".join(name[:100] for name in replaced[:SHOWN]) + (", …" if len(replaced) > SHOWN else "")
            advice = "do not compare accuracies from before and after" if split != "train" else "the run continues"
            say(f"{count} {agree(len(replaced), 'has', 'have')} been replaced since the run began: {names}; {advice}")
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
    """What is looked at, by name: files, or pictures in memory. Shards elsewhere would have to be fetched for that."""
    if isinstance(source, ShardSource):
        return {shard.name: shard.path for shard in source.shards if not shard.is_remote}
    most = LOOKED_AT if isinstance(source, FileSource) else SAMPLED
    return {source.key(index): source.picture(index) for index in range(0, len(source), _step(len(source), most))}


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
    if not isinstance(item, Path):
        return _hash(item, Content(0, 0, ""))
    try:
        status = item.stat()
    except OSError:
        return None
    return Content(status.st_size, status.st_mtime_ns, "") if S_ISREG(status.st_mode) else None


def _hash(item: Any, content: Content) -> Content:
    """The content with its hash, unless it cannot be read, which is reported elsewhere."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(item, Path):
        try:
            with item.open("rb") as file:
                digest.update(file.read(ENDS))
                file.seek(max(content.size - ENDS, ENDS))
                digest.update(file.read(ENDS))
        except OSError:
            return content
        return content._replace(digest=digest.hexdigest())
    digest.update(item if isinstance(item, bytes) else np.asarray(item).tobytes())
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

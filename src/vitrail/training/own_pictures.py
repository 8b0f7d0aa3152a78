"""A resumed run continues with the pictures that it began with: those that its split.csv names, in that order."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitrail.data import Dataset, open_data
from vitrail.data.source import FileSource, Source
from vitrail.data.split import SPLIT_NAMES, SPLITS, UNUSED
from vitrail.errors import DataError
from vitrail.training.building import open_training_data
from vitrail.training.config import TrainConfig

Say = Callable[[str], None]
SHOWN = 3  # examples of a name


class Row(NamedTuple):
    """One line of split.csv."""

    key: str
    split: str
    name: str  # of the class


def reopen_data(config: TrainConfig, split_file: Path, say: Say) -> Dataset:
    """The data of a begun run; `say` reports what is missing, new or now of another class."""
    if not config.data or not split_file.exists():  # data in memory with splits of their own have none
        return open_training_data(config)
    rows = read_rows(split_file)
    everything = replace(config.source, val_rate=0.0, test_rate=0.0, split_file=None)
    return keep_own(open_data(config.data, everything), rows, say)


def read_rows(path: Path) -> list[Row]:
    """What split.csv says, line by line."""
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file)
            if not {"key", "split", "class"} <= set(reader.fieldnames or ()):
                raise DataError(f"{path} is damaged: it needs the columns key, split and class.")
            return [_parse(path, number, line) for number, line in enumerate(reader, start=2)]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from None
    except csv.Error as error:
        raise DataError(f"{path} is damaged: not a table ({error}).") from None


def _parse(path: Path, number: int, line: Mapping[str, str | None]) -> Row:
    key, name = line["key"], line["class"]
    split = UNUSED if line["split"] == UNUSED else SPLIT_NAMES.get(str(line["split"]))
    if not key or not name or split is None or "\0" in key:
        raise DataError(f"{path} is damaged at line {number}: it must name a picture, its split and its class.")
    return Row(key, split, name)


def keep_own(dataset: Dataset, rows: Sequence[Row], say: Say) -> Dataset:
    """The part of some data with which a run began, split and labelled as it was."""
    used = {row.name for row in rows}
    lost = sorted(used - set(dataset.classes))
    if lost:
        raise DataError(
            f"{dataset.name}: the run's class {lost[0][:100]} is no longer in the data; put it back to resume."
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


def _find_source(dataset: Dataset, split: str, own: Sequence[Row]) -> Source:
    """Where a split's pictures are: in the split of that name, or among all, from which it was made."""
    source = dataset.splits.get(split)
    keys = set() if source is None else set(_keys(source))
    return source if source is not None and any(row.key in keys for row in own) else dataset.split("train")


def _select(
    dataset: Dataset, split: str, source: Source, own: Sequence[Row], classes: Sequence[str], say: Say
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
    changed = [
        row.key for row in own if row.key in places and dataset.classes[source.labels[places[row.key]]] != row.name
    ]
    if changed:
        say(f"{_pictures(changed)} now of another class; the run keeps the class that it began with: {_some(changed)}")
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers[row.name] for row in own], dtype=np.int64)
    if not own:
        return None
    if isinstance(source, FileSource):  # a missing file keeps its index, or the order of all others would change
        return FileSource([row.key for row in own], labels, source.root)
    part = source.select([places[row.key] for row in own])
    part.labels = labels
    return part


def _keys(source: Source) -> list[str]:
    return [source.key(index) for index in range(len(source))]


def _pictures(keys: Sequence[str]) -> str:
    return "1 picture is" if len(keys) == 1 else f"{len(keys):,} pictures are"


def _some(keys: Sequence[str]) -> str:
    return ", ".join(key[:100] for key in keys[:SHOWN]) + (", …" if len(keys) > SHOWN else "")

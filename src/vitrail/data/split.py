"""Stratified splits that depend only on the samples' names, and the file that keeps them."""

import csv
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from vitrail.data.config import DataConfig
from vitrail.data.label_kinds import Labels
from vitrail.data.partition import divide, order_by_hash, quantile_bins
from vitrail.errors import ConfigError, DataError, shorten
from vitrail.files import atomic_path
from vitrail.rng import Integers
from vitrail.storage import open_file_store

# Folder or column value → the split that it means.
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
SPLITS = ("train", "val", "test")
UNUSED = "unused"  # in a split file: a sample that is in no split


def split_samples(
    config: DataConfig,
    keys: Sequence[str],
    labels: Sequence[int | str] | Labels,
    groups: Mapping[str, str] | None = None,
) -> dict[str, Integers]:
    """Split → indices, for data without splits: by the split file, or stratified; empty splits are left out.

    Of a split file, those that are `UNUSED` too. `groups` are those of the keys.
    """
    if config.split_file:
        parts = read_split(config.split_file, keys)
    else:
        rates = {"val": config.val_rate, "test": config.test_rate}
        parts = stratify(keys, labels, rates, config.split_seed, groups)
    return {name: indices for name, indices in parts.items() if len(indices)}


def refuse_split_file(config: DataConfig, name: str) -> None:
    """For data that have splits of their own: a split file would be ignored."""
    if config.split_file:
        raise DataError(f"{name}: has its own splits, so the split file {config.split_file} cannot be used.")


def stratify(
    keys: Sequence[str],
    labels: Sequence[int | str] | Labels,
    rates: Mapping[str, float],
    seed: int,
    groups: Mapping[str, str] | None = None,
) -> dict[str, Integers]:
    """Split → indices, all labels in the same proportions; "train" gets the rest and at least one of each label.

    A sample's position follows from the hash of its name, so neither the order of the files nor new ones move the
    others far. A class of n samples gives round(n × rate) to a split, and at least one as long as two remain. Several
    labels per picture, and pictures of the same group, which stay together, are divided by `partition.py`.
    """
    if not all(0 <= rate < 1 for rate in rates.values()) or sum(rates.values()) >= 1:
        raise ConfigError(f"split rates must be at least 0 and sum to less than 1; got {dict(rates)}.")
    array = np.asarray(labels)
    if groups or (array.ndim == 2 and array.dtype == np.uint8):
        shares = {"train": 1 - sum(rates.values()), **{name: rate for name, rate in rates.items() if rate}}
        part_of = divide(keys, array, list(shares.values()), seed, groups, first_has_all=True)
        parts = {name: np.flatnonzero(part_of == part).tolist() for part, name in enumerate(shares)}
        parts |= {name: [] for name in rates if name not in shares}
    else:
        order = order_by_hash(keys, seed)
        parts = _divide_classes(keys, array if array.ndim == 1 else quantile_bins(array), order, rates)
    return {name: np.array(sorted(indices), dtype=np.int64) for name, indices in parts.items()}


def _divide_classes(
    keys: Sequence[str], labels: Labels, order: Integers, rates: Mapping[str, float]
) -> dict[str, list[int]]:
    """Class by class, in the order given."""
    _, codes = np.unique(labels, return_inverse=True)
    order = order[np.argsort(codes[order], kind="stable")]  # class by class
    parts: dict[str, list[int]] = {name: [] for name in ("train", *rates)}
    for indices in np.split(order, np.cumsum(np.bincount(codes))[:-1]):
        start = 0
        for name, rate in rates.items():
            count = min(max(round(len(indices) * rate), 1 if rate else 0), len(indices) - start - 1)
            # Samples with the same name are the same picture: they stay together, or training pictures would be tested.
            while count > 0 and keys[indices[start + count - 1]] == keys[indices[start + count]]:
                count -= 1
            parts[name] += indices[start : start + count].tolist()
            start += count
        parts["train"] += indices[start:].tolist()
    return parts


def write_split(path: Path, rows: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write split → (key, class) as the CSV that `read_split` reads."""
    with atomic_path(path) as draft, draft.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        writer.writerow(("key", "split", "class"))
        for split, samples in rows.items():
            writer.writerows((key, split, name) for key, name in samples)


def read_split(path: str | Path, keys: Sequence[str]) -> dict[str, Integers]:
    """Split, or `UNUSED` → indices into `keys`, as written; every sample must be there, and no other."""
    with _open_rows(path, "split file", {"key", "split"}) as rows:
        where = _read_rows(path, rows)
    differences = [
        f"{len(some)} {what}: {', '.join(key[:100] for key in sorted(some)[:3])}…"
        for what, some in (
            ("are in it but not in the data", set(where) - set(keys)),
            ("are in the data but not in it", set(keys) - set(where)),
        )
        if some
    ]
    if differences:
        raise DataError(
            f"{path} was made for other pictures ({'; '.join(differences)}). Delete it to make a new split."
        )
    parts: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        parts.setdefault(where[key], []).append(index)
    return {name: np.array(indices, dtype=np.int64) for name, indices in parts.items()}


def read_excluded(path: Path) -> dict[str, set[str]]:
    """Key → the splits to leave it out of, as the table's column `split` says; none without such a column."""
    excluded: dict[str, set[str]] = {}
    with _open_rows(path, "list of excluded samples", {"key"}) as rows:
        for row in rows:
            key, split = str(row["key"]), row.get("split")
            excluded.setdefault(key, set()).update([_read_name(path, key, split)] if split else ())
    return excluded


@contextmanager
def _open_rows(path: str | Path, what: str, columns: set[str]) -> Generator[Iterable[Mapping[str, str | None]]]:
    """The rows of a table that has these columns."""
    try:
        store, name = open_file_store(path)
        with (
            store.open(name) as content,
            TextIOWrapper(content, newline="", encoding="utf-8-sig", errors="surrogateescape") as file,
        ):
            reader = csv.DictReader(file)
            if not columns <= set(reader.fieldnames or ()):
                needs = f"the column{'s' if len(columns) > 1 else ''} {' and '.join(sorted(columns))}"
                raise DataError(f"{path}: needs {needs}; got {shorten(reader.fieldnames)}.")
            yield reader
    except OSError as error:
        raise DataError(f"cannot read the {what} {path}: {error.strerror or 'no such file'}.") from None
    except csv.Error as error:
        raise DataError(f"{path}: not a table ({error}).") from None


def _read_rows(path: str | Path, rows: Iterable[Mapping[str, str | None]]) -> dict[str, str]:
    """Key → split; an unknown split would silently remove its samples from the run."""
    where: dict[str, str] = {}
    for row in rows:
        key, split = str(row["key"]), _read_name(path, str(row["key"]), row["split"])
        if where.setdefault(key, split) != split:
            raise DataError(f"{path}: {key[:100]} is in {where[key]} and in {split}; keep one.")
    return where


def _read_name(path: str | Path, key: str, text: str | None) -> str:
    """The split that a cell names."""
    name = str(text).strip().lower()
    split = UNUSED if name == UNUSED else SPLIT_NAMES.get(name)
    if split is None:
        raise DataError(f"{path}: {key[:100]} is in the split {shorten(text)}; must be one of {', '.join(SPLITS)}.")
    return split

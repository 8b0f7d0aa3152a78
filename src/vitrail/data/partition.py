"""Pictures divided into parts in which all labels have the same proportions, and of which groups are never split up.

Iterative stratification (Sechidis et al., 2011) of groups of pictures: the rarest label first, each group with it to
the part that lacks that label most. The paper breaks ties at random; here the hash of names and a seed decides, so that
neither the order of the pictures nor the machine matters.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.errors import DataError, list_names
from vitrail.rng import Floats, Integers
from vitrail.wording import counted

Labels = np.ndarray[Any, np.dtype[Any]]
MOST_BINS, IN_BIN = 10, 20  # quantiles of values, and the pictures that each must have


def order_by_hash(keys: Sequence[str], seed: int | str) -> Integers:
    """The order of names that follows from a seed: neither their own order nor other names change it."""
    texts = (f"{seed}:{key}".encode("utf-8", "surrogateescape") for key in keys)
    ranks = b"".join([hashlib.blake2b(text, digest_size=8).digest() for text in texts])
    return np.argsort(np.frombuffer(ranks, dtype=">u8"), kind="stable")


def quantile_bins(values: Labels) -> Labels:
    """The quantile that each picture's first value is in; enough pictures in each for all parts."""
    count = min(MOST_BINS, len(values) // IN_BIN)
    if count < 2 or not values.shape[1]:
        return np.zeros(len(values), dtype=np.int64)
    first = values[:, 0].astype(np.float64)
    return np.searchsorted(np.quantile(first, np.arange(1, count) / count), first, side="right")


class _Groups:
    """Pictures that stay together, in the order of their hashes; and how many of each group have which label."""

    def __init__(self, names: Sequence[str], labels: Labels, seed: int | str) -> None:
        known = list(dict.fromkeys(names))
        order = order_by_hash(known, seed)
        places = {known[int(index)]: place for place, index in enumerate(order)}
        self.of_picture: Integers = np.array([places[name] for name in names], dtype=np.int64)
        self.sizes = np.bincount(self.of_picture, minlength=len(known))
        groups, ids = _pairs(labels)
        width = int(ids.max()) + 1 if len(ids) else 1
        pairs, self.counts = np.unique(self.of_picture[groups] * width + ids, return_counts=True)
        self.groups, self.labels = pairs // width, pairs % width  # of each pair that occurs
        self.starts = np.searchsorted(self.groups, np.arange(len(known) + 1))
        self.totals = np.bincount(self.labels, weights=self.counts, minlength=width)

    def own(self, group: int) -> slice:
        """The pairs of a group."""
        return slice(int(self.starts[group]), int(self.starts[group + 1]))


def _pairs(labels: Labels) -> tuple[Integers, Integers]:
    """(picture, label) for each label of each picture; of values, their quantiles."""
    if labels.ndim == 2 and labels.dtype == np.uint8:
        pictures, ids = np.nonzero(labels)
        return pictures, ids
    _, codes = np.unique(labels if labels.ndim == 1 else quantile_bins(labels), return_inverse=True)
    return np.arange(len(labels)), codes.astype(np.int64)


def divide(
    keys: Sequence[str],
    labels: Labels,
    shares: Sequence[float],
    seed: int | str,
    groups: Mapping[str, str] | None = None,
    *,
    first_has_all: bool = False,
) -> Integers:
    """The part of each picture, 0 and up; pictures of one group, or of one name, are in the same part.

    Args:
        shares: of the pictures, for each part.
        groups: of each key.
        first_has_all: the first part gets at least one picture of each label.
    """
    units = _Groups([groups[key] for key in keys] if groups else keys, np.asarray(labels), seed)
    share = np.asarray(shares, dtype=np.float64) / sum(shares)
    wanted, room = share[:, None] * units.totals, share * len(keys)  # (parts, labels), (parts,)
    left, seen = units.totals.copy(), np.zeros(len(units.totals), dtype=bool)
    part_of = np.full(len(units.sizes), -1, dtype=np.int64)

    def place(group: int, desire: Floats) -> None:
        own = units.own(group)
        ids, counts = units.labels[own], units.counts[own]
        last = first_has_all and bool(((left[ids] <= counts) & ~seen[ids]).any())
        best = np.flatnonzero(desire >= desire.max() - 1e-9)
        part = 0 if last else int(best[room[best].argmax()])
        part_of[group] = part
        wanted[part, ids] -= counts
        room[part] -= units.sizes[group]
        left[ids] -= counts
        seen[ids] |= part == 0

    by_label = np.lexsort((units.groups, -units.counts, units.labels))  # of a label, the largest groups first
    bounds = np.searchsorted(units.labels[by_label], np.arange(len(units.totals) + 1))
    while (left > 0).any():
        label = int(np.where(left > 0, left, np.inf).argmin())
        for group in units.groups[by_label[bounds[label] : bounds[label + 1]]].tolist():
            if part_of[group] < 0:
                place(group, wanted[:, label])
    for group in np.flatnonzero(part_of < 0).tolist():  # without a label
        place(group, room)
    return part_of[units.of_picture]


def assign_folds(
    keys: Sequence[str],
    labels: Labels,
    names: Sequence[str],
    *,
    folds: int,
    repeats: int = 1,
    seed: int = 0,
    groups: Mapping[str, str] | None = None,
) -> Integers:
    """The fold of each picture, from 0, in each repeat: (repeats, N). `names` are those of the labels.

    Every fold must have pictures, and all labels must be in the training pictures of every fold.
    """
    units = len({groups[key] for key in keys} if groups else set(keys))
    if units < folds:
        what = counted(units, "group") if groups else counted(units, "picture")
        raise DataError(f"`folds={folds}` needs at least as many {'groups' if groups else 'pictures'}; got {what}.")
    rounds = [divide(keys, labels, [1 / folds] * folds, f"{seed}:{repeat}", groups) for repeat in range(repeats)]
    for parts in rounds:
        _check_folds(parts, labels, names, folds, grouped=bool(groups))
    return np.stack(rounds)


def _check_folds(parts: Integers, labels: Labels, names: Sequence[str], folds: int, *, grouped: bool) -> None:
    empty = [str(fold + 1) for fold in range(folds) if not (parts == fold).any()]
    if empty:
        raise DataError(
            f"fold {empty[0]} of {folds} would have no pictures: the groups are too uneven; use fewer folds."
        )
    if labels.dtype.kind == "f":
        return
    lonely: list[str] = []
    for index, name in enumerate(names):
        own = parts[labels == index] if labels.ndim == 1 else parts[labels[:, index] > 0]
        if len(set(own.tolist())) < 2:
            lonely.append(name)
    if lonely:
        few = "in two groups" if grouped else "pictures"
        raise DataError(
            f"folds need at least two {few} of each class, so that one can be held out: {list_names(lonely)} "
            f"{'has' if len(lonely) == 1 else 'have'} fewer. Add some, or remove the class."
        )

"""The same picture twice: exactly (equal pixels) or nearly (resized, recompressed, slightly brighter)."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from vitrail.data.check.scan import Facts

BANDS, BAND_BITS = 4, 16
MAX_BITS = BANDS - 1  # outlines that differ in at most 3 of 64 bits agree in at least one of four bands
MAX_DIFFERENCE = 4.0  # mean grey levels between thumbnails, of 255
MIN_SIDE = 32  # smaller pictures look alike too easily
MIN_CONTRAST = 4.0  # standard deviation of a thumbnail; below it there is nothing to compare
MAX_BUCKET = 4096


def exact_groups(facts: Sequence[Facts]) -> list[list[int]]:
    """Positions in `facts` of pictures with equal pixels, two or more each."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for position, fact in enumerate(facts):
        if not fact.trouble:
            found[fact.digest].append(position)
    return [group for group in found.values() if len(group) > 1]


def near_pairs(facts: Sequence[Facts]) -> list[tuple[int, int]]:
    """Positions in `facts` of pictures that are nearly, not exactly, the same."""
    large = [position for position, fact in enumerate(facts) if min(fact.width, fact.height) >= MIN_SIDE]
    if not large:
        return []
    thumbnails = np.stack([np.frombuffer(facts[i].thumbnail, dtype=np.uint8) for i in large]).astype(np.int16)
    outlines = np.array([facts[i].outline for i in large], dtype=np.uint64)
    clear = thumbnails.std(1) >= MIN_CONTRAST
    usable, thumbnails, outlines = np.array(large)[clear], thumbnails[clear], outlines[clear]
    pairs: set[tuple[int, int]] = set()
    for left, right in _candidates(outlines):
        bits = np.bitwise_count(outlines[left] ^ outlines[right])
        near = bits <= MAX_BITS
        left, right = left[near], right[near]
        difference = np.abs(thumbnails[left] - thumbnails[right]).mean(1)
        close = difference <= MAX_DIFFERENCE
        pairs.update(zip(usable[left[close]].tolist(), usable[right[close]].tolist(), strict=True))
    return sorted((a, b) for a, b in pairs if facts[a].digest != facts[b].digest)


def _candidates(outlines: np.ndarray[Any, Any]) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Pairs that agree in one band of their outlines."""
    for band in range(BANDS):
        part = (outlines >> np.uint64(band * BAND_BITS)) & np.uint64(0xFFFF)
        order = np.argsort(part, kind="stable")
        starts = np.flatnonzero(np.diff(part[order])) + 1
        for bucket in np.split(order, starts):
            if 1 < len(bucket) <= MAX_BUCKET:
                bucket = np.sort(bucket)
                left, right = np.triu_indices(len(bucket), 1)
                yield bucket[left], bucket[right]


def across_splits(facts: Sequence[Facts], group: Sequence[int]) -> bool:
    """Whether the same picture is in two splits: what was learned is then tested."""
    return len({facts[position].split for position in group}) > 1


def conflicting(facts: Sequence[Facts], group: Sequence[int]) -> bool:
    """Whether the same picture has two labels."""
    return len({facts[position].label for position in group}) > 1


def pair_names(facts: Sequence[Facts], group: Sequence[int]) -> Iterator[tuple[Facts, Facts]]:
    """The first of a group with each of the others."""
    return ((facts[a], facts[b]) for a, b in combinations(group, 2) if a == group[0])

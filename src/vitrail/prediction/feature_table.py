"""Features of many pictures as a table: a row for each, in memory or in a file, read in blocks."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from vitrail.prediction.results import Floats
from vitrail.rng import Integers
from vitrail.threads import in_chunks

BLOCK = 4096  # rows that are read or written together
TEXTS = ("picture", "label", "split")  # of each row; only the first, unless the pictures are of a data set

Texts = tuple[str, ...]  # of one row


class FeatureTable(ABC):
    """Rows of features (N, D), with the name of each picture and, of a data set, its label and split."""

    columns: tuple[str, ...]  # of the texts
    shape: tuple[int, int]

    @abstractmethod
    def feature_blocks(self) -> Iterator[Floats]:
        """All features, some rows at a time."""

    @abstractmethod
    def text_blocks(self, columns: Sequence[str]) -> Iterator[list[Texts]]:
        """The texts of the same rows in these columns."""

    @cached_property
    def features(self) -> Floats:
        """All features at once."""
        return join_blocks(self.feature_blocks(), self.shape)

    def texts(self, column: str) -> tuple[str, ...]:
        """All of one column, if there is such a column."""
        if column not in self.columns:
            return ()
        return tuple(text for block in self.text_blocks([column]) for (text,) in block)

    def rows(self) -> Iterator[tuple[Texts, Floats]]:
        """The texts and features of each row."""
        for texts, features in zip(self.text_blocks(self.columns), self.feature_blocks(), strict=True):
            yield from zip(texts, features, strict=True)

    def features_at(self, places: Integers) -> Floats:
        """The features of some rows, whose numbers must rise."""
        picked: list[Floats] = []
        start = 0
        for block in self.feature_blocks():
            inside = places[np.searchsorted(places, start) : np.searchsorted(places, start + len(block))]
            picked.append(block[inside - start])
            start += len(block)
        return np.concatenate(picked)

    def texts_at(self, column: str, places: Integers) -> tuple[str, ...]:
        """The texts of some rows, whose numbers must rise, in one column."""
        wanted = set(places.tolist())
        every = chain.from_iterable(self.text_blocks([column]))
        return tuple(text for place, (text,) in enumerate(every) if place in wanted)


def join_blocks(blocks: Iterable[Floats], shape: tuple[int, int]) -> Floats:
    """Blocks as one array of `shape`, to which the last block is cut; each may be freed when the next one is taken."""
    joined = np.empty(shape, np.float32)  # whose memory the system provides as it is filled
    start = 0
    for block in blocks:
        part = joined[start : start + len(block)]
        part[:] = block[: len(part)]
        start += len(part)
    return joined


class FeaturesInMemory(FeatureTable):
    """Features that no file holds."""

    def __init__(self, features: Floats, **texts: Sequence[str]) -> None:
        self.features = features
        self.columns, self._texts = tuple(texts), {name: tuple(column) for name, column in texts.items()}
        count, width = features.shape
        self.shape = (count, width)

    def feature_blocks(self) -> Iterator[Floats]:
        return (self.features[start : start + BLOCK] for start in range(0, len(self.features), BLOCK))

    def text_blocks(self, columns: Sequence[str]) -> Iterator[list[Texts]]:
        return in_chunks(zip(*(self._texts[column] for column in columns), strict=True), BLOCK)

    def texts(self, column: str) -> tuple[str, ...]:
        return self._texts.get(column, ())


def collect_features(rows: Iterable[tuple[Texts, Floats]], columns: Sequence[str], width: int) -> FeaturesInMemory:
    """All rows in memory, in blocks until their number is known; never twice."""
    texts: list[list[str]] = [[] for _ in columns]
    blocks: deque[Floats] = deque()
    count = 0
    for row, features in rows:
        if count % BLOCK == 0:
            blocks.append(np.empty((BLOCK, width), np.float32))
        blocks[-1][count % BLOCK] = features
        count += 1
        for column, text in zip(texts, row, strict=True):
            column.append(text)
    joined = join_blocks((blocks.popleft() for _ in range(len(blocks))), (count, width))
    return FeaturesInMemory(joined, **dict(zip(columns, texts, strict=True)))

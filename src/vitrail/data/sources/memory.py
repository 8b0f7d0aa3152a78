"""Pictures that Python holds: files by their paths, encoded pictures, PIL's, tensors; of any sizes."""

from collections.abc import Sequence

import numpy as np

from vitrail.data.label_kinds import Labels
from vitrail.data.pixels import Picture
from vitrail.data.source import Source
from vitrail.rng import Integers


class MemorySource(Source):
    """Pictures as they are, each with a name of its own."""

    def __init__(self, pictures: Sequence[Picture], labels: Sequence[int] | Labels, keys: Sequence[str]) -> None:
        super().__init__(labels)
        assert len(pictures) == len(self.labels) == len(keys)
        self._pictures, self._keys = pictures, keys

    def picture(self, index: int) -> Picture:
        return self._pictures[index]

    def key(self, index: int) -> str:
        return self._keys[index]

    def select(self, indices: Sequence[int] | Integers) -> "MemorySource":
        chosen: list[int] = np.asarray(indices, dtype=np.int64).tolist()
        pictures = [self._pictures[index] for index in chosen]
        return MemorySource(pictures, self.labels[chosen], [self._keys[index] for index in chosen])

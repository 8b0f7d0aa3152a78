"""The predictions for several pictures: a sequence that is computed as it is read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import cast, overload

import numpy as np
from PIL import Image

from vitrail.data.pixels import Picture, is_tensor
from vitrail.errors import InputError
from vitrail.prediction.results import Floats, Named, Prediction
from vitrail.wording import counted, markdown_cell

KEPT = 100_000  # predictions
SHOWN = 10  # in a notebook


class LazyPredictions(Sequence[Prediction]):
    """The predictions for several pictures, in their order: a sequence whose elements are computed when first needed.

    Reading it from start to end decodes only a little ahead. The latest 100,000 predictions are kept; older ones are
    computed again if they are needed again. For a single pass over more than that, `stream` keeps none.
    """

    def __init__(
        self,
        pictures: Callable[[], Iterable[Named]],
        compute: Callable[[Iterable[Named]], Iterator[Prediction]],
        batch_size: int,
    ) -> None:
        self._open = pictures
        self._compute = compute
        self._size = batch_size  # every batch begins at a multiple of it, so that answers do not depend on the order
        self._kept: dict[int, list[Prediction]] = {}  # index of the first → a batch

    @cached_property
    def _pictures(self) -> list[Named]:
        return list(self._open())

    def stream(self) -> Iterator[Prediction]:
        """Every prediction once, in order; none of them is kept."""
        return self._compute(self._open())

    def __len__(self) -> int:
        return len(self._pictures)

    def __iter__(self) -> Iterator[Prediction]:
        return self._rows(0, len(self))

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prediction]: ...
    def __getitem__(self, index: int | slice) -> Prediction | list[Prediction]:
        places = range(len(self))[index]
        if isinstance(places, int):
            return next(self._rows(places, places + 1))
        if places.step == 1:
            return list(self._rows(places.start, places.stop))
        return [self[place] for place in places]

    def __repr__(self) -> str:
        known = sum(map(len, self._kept.values()))
        return f"<Predictions for {counted(len(self), 'picture')}, {known:,} computed so far>"

    def _repr_markdown_(self) -> str:
        """In a notebook: the first rows."""
        lines = ["| picture | prediction | probability |", "|---|---|--:|"]
        for row in self[:SHOWN]:
            score = "" if row.score is None else f"{row.score:.1%}"
            lines.append(f"| {markdown_cell(row.picture)} | {markdown_cell(row.error or row.label or '')} | {score} |")
        more = len(self) - SHOWN
        return "\n".join([*lines, *(["", f"… and {counted(more, 'more picture')}"] if more > 0 else [])])

    def _rows(self, start: int, stop: int) -> Iterator[Prediction]:
        """Those from `start` to before `stop`; from the first batch that is not kept on, computed in one stream."""
        place = start - start % self._size
        while place < stop and place in self._kept:
            yield from self._kept[place][max(start - place, 0) : stop - place]
            place += self._size
        last = min(-(-stop // self._size) * self._size, len(self))
        computed = self._compute(self._pictures[index] for index in range(place, last))
        while place < stop:
            batch = list(islice(computed, self._size))
            self._kept[place] = batch
            if len(self._kept) * self._size > KEPT:
                del self._kept[next(iter(self._kept))]
            yield from batch[max(start - place, 0) : stop - place]
            place += self._size


def name_pictures(pictures: Iterable[Picture]) -> Iterator[Named]:
    """Paths are their own names; other pictures are numbered."""
    for index, picture in enumerate(pictures):
        yield str(picture) if isinstance(picture, str | Path) else f"picture {index}", picture


def is_one(pictures: object) -> bool:
    """Whether an argument is one picture, rather than several."""
    if isinstance(pictures, np.ndarray) or is_tensor(pictures):
        return cast("Floats", pictures).ndim < 4
    if not isinstance(pictures, str | Path | bytes | Image.Image | Iterable):
        raise InputError(f"a picture is a path, bytes, a PIL picture, an array or a tensor; got {pictures!r}.")
    return isinstance(pictures, str | Path | bytes | Image.Image)

"""What comes out of a `Predictor`: one result per picture; several, computed as they are read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, overload

import numpy as np

from vitrail.data.pixels import Picture
from vitrail.errors import ConfigError
from vitrail.runtimes.runtime import Runtime
from vitrail.tasks.familiarity import Familiarity
from vitrail.weights.metadata import Metadata
from vitrail.wording import counted, markdown_cell

Floats = np.ndarray[Any, np.dtype[np.float32]]
Named = tuple[str, Picture]  # the name of a picture, and the picture


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer for one picture, or why there is none.

    Of a model of one class per picture, the labels are the most likely classes, best first; of one of several labels,
    those that apply, perhaps none; one that measures has values instead.

    What the model cannot tell, or was not asked, is None: label sets, intervals and familiarity are for calibrated
    ones. A model that abstains gives no answer to what is not familiar.
    """

    picture: str  # its path, or its number among the pictures passed
    labels: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()  # probabilities
    indices: tuple[int, ...] = ()  # the indices of these classes in the model's head
    label_set: tuple[str, ...] | None = None  # holds the truth as often as the requested coverage says, best first
    values: tuple[float, ...] = ()  # in the order of the model's outputs
    intervals: tuple[tuple[float, float], ...] | None = None  # each holds the true value as often as the coverage says
    familiarity: float | None = None  # the share of validation pictures that are less familiar, from 0 to 1
    familiar: bool | None = None  # False: unlike anything seen in training
    error: str | None = None
    source: Picture | None = field(default=None, repr=False, compare=False)  # as passed, if it was the only picture

    @property
    def label(self) -> str | None:
        """The most likely class."""
        return self.labels[0] if self.labels else None

    @property
    def score(self) -> float | None:
        """Its probability."""
        return self.scores[0] if self.scores else None

    @property
    def value(self) -> float | None:
        """The only value, or the first."""
        return self.values[0] if self.values else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """What holds the true value as often as the coverage says."""
        return self.intervals[0] if self.intervals else None

    def describe(self) -> str:
        """The answer in a few words: the most likely class, the labels that apply, or the values."""
        if self.values:
            spans = [f" ({low:.4g} to {high:.4g})" for low, high in self.intervals or ()] or [""] * len(self.values)
            return ", ".join(f"{value:.4g}{span}" for value, span in zip(self.values, spans, strict=True))
        return self.label or ""

    def _repr_png_(self) -> bytes | None:
        """In a notebook: the picture beside bars of its classes."""
        if not self.labels:
            return None
        from vitrail.prediction.bars import plot_prediction, png_of  # matplotlib takes a while to load

        picture = Path(self.picture) if self.source is None else self.source
        return png_of(plot_prediction(picture, self.labels, self.scores))


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """The features of one picture, as the head gets them; or why there are none."""

    picture: str
    vector: Floats | None = None  # (D,)
    error: str | None = None


TOP_K = 5
CALIBRATE = "vitrail calibrate MODEL DATA measures that on pictures that it was not trained on"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to answer for each picture.

    Attributes:
        top_k: how many labels to give at most; None: five classes, or all labels that apply.
        coverage: also give the set of labels, or the interval of each value, that holds the truth this often.
        abstain: give no answer for what is unlike anything seen in training.
    """

    top_k: int | None = None
    coverage: float | None = None
    abstain: bool = False

    def check(self, facts: Metadata, runtime: Runtime) -> None:
        """Refuse what this model cannot answer, before there are pictures."""
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1; got {self.top_k}.")
        if self.top_k is not None and facts.task.labels == "values":
            raise ConfigError("is about labels, and this model measures values; omit it.", field="top_k")
        if self.coverage is not None:
            if facts.trust is None:
                raise ConfigError(f"needs a calibrated model, and this one is not: {CALIBRATE}.", field="coverage")
            facts.trust.check_coverage(self.coverage)
        if self.abstain:
            require_familiarity(facts, runtime, "`abstain=`")

    def limit(self, facts: Metadata, count: int) -> int:
        """The largest number of labels of a picture, of a model with `count` outputs."""
        usual = TOP_K if facts.task.labels == "class" else count
        return min(usual if self.top_k is None else self.top_k, count)


class Options(TypedDict, total=False):
    """What `Predictor.predict` takes beside pictures, for editors."""

    top_k: int | None
    coverage: float | None
    abstain: bool
    batch_size: int | None


def familiarity_of(facts: Metadata, runtime: Runtime) -> Familiarity | None:
    """What tells how familiar a picture is; None where the model or its runtime cannot."""
    return facts.trust.familiarity if facts.trust is not None and runtime.has_features else None


def require_familiarity(facts: Metadata, runtime: Runtime, argument: str) -> None:
    """Refuse an argument that needs a model that can tell how familiar a picture is."""
    if familiarity_of(facts, runtime) is None:
        why = f"it was not calibrated: {CALIBRATE}"
        if facts.trust is not None and facts.trust.familiarity is not None:
            why = f"this export, on {runtime.name}, gives no features; export the checkpoint again"
        raise ConfigError(f"{argument} needs a model that can tell what is unfamiliar; {why}.")


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
            lines.append(f"| {markdown_cell(row.picture)} | {markdown_cell(row.error or row.describe())} | {score} |")
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

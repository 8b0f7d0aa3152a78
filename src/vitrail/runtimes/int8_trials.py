"""What is measured of an 8-bit candidate, and the table of all that was tried."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.pixels import normalize_array
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, DataError
from vitrail.runtimes.manifest import Manifest
from vitrail.runtimes.runtime import Floats, backend_of, batch_for
from vitrail.timing import repeat
from vitrail.weights.metadata import Metadata
from vitrail.weights.resolve import files_of
from vitrail.wording import counted

AGREEMENT = 0.99
WARM_UP, TIMED = 3, 20  # calls with one picture
NOISE = 0.1  # neighbouring pixels of real pictures are related far more closely

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What an 8-bit export must reach to be accepted: one of the two."""

    agreement: float = AGREEMENT  # share of held-out pictures that get the same answer as in float32
    max_loss: float | None = None  # percentage points of accuracy

    def __post_init__(self) -> None:
        if not 0 < self.agreement <= 1:
            raise ConfigError(
                f"is a share of pictures, such as 0.99, and at most 1; got {self.agreement}.", field="agreement"
            )
        if self.max_loss is not None and not 0 <= self.max_loss < 100:
            raise ConfigError(
                f"is in percentage points of accuracy, such as 0.5; got {self.max_loss}.", field="max_loss"
            )

    def __str__(self) -> str:
        loss = "" if self.max_loss is None else f" or an accuracy loss of at most {self.max_loss:g} points"
        return f"an agreement of at least {self.agreement:.2%}{loss}"


@dataclass(frozen=True, kw_only=True, eq=False)
class ByteImages:
    """Pictures as bytes (N, C, H, W), a quarter of what floats would take, which are normalised when they are used."""

    pixels: Bytes
    spec: Preprocess
    targets: Integers | None = None  # the places of their classes in the model's head, where they are known

    def __len__(self) -> int:
        return len(self.pixels)

    def batches(self, size: int) -> Iterator[Floats]:
        for start in range(0, len(self), size):
            yield self._floats(self.pixels[start : start + size])

    def one(self, index: int) -> Floats:
        """One picture as a batch."""
        return self._floats(self.pixels[index : index + 1])

    def _floats(self, pixels: Bytes) -> Floats:
        images = np.empty(pixels.shape, dtype=np.float32)
        normalize_array(pixels, self.spec, images)
        return images


@dataclass(frozen=True, kw_only=True, eq=False)
class CalibrationSet:
    """Pictures for ranges, others to choose among the candidates, and others again to accept the chosen one."""

    ranges: ByteImages
    choosing: ByteImages
    accepting: ByteImages

    def describe(self) -> str:
        return (
            f"calibrated on {counted(len(self.ranges), 'picture')}, chosen on {len(self.choosing):,} others, accepted "
            f"on {len(self.accepting):,} others again"
        )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was measured of one graph."""

    method: str
    part: str  # choosing or accepting: which pictures it was measured on
    pictures: int
    agreement: float  # share with the same answer as in float32
    accuracy: float | None  # None where the classes are unknown
    megabytes: float
    milliseconds: float  # for one picture, on all cores

    @property
    def cells(self) -> tuple[str, ...]:
        """What a table shows of it, below `HEAD`."""
        accuracy = "–" if self.accuracy is None else f"{self.accuracy:.2%}"
        numbers = (f"{self.agreement:.2%}", accuracy, f"{self.megabytes:.1f}", f"{self.milliseconds:.2f}")
        return (self.method, f"{self.pictures:,} for {self.part}", *numbers)


HEAD = ("method", "pictures", "agreement", "accuracy", "MB", "ms")


def format_trials(trials: Sequence[Trial]) -> str:
    """The table as plain text."""
    rows = [HEAD, *(trial.cells for trial in trials)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


class Candidate:
    """A written graph in its own runtime, measured on pictures."""

    def __init__(self, method: str, path: Path, target: str, manifest: Manifest) -> None:
        self.method, self.path = method, path
        self._run = backend_of(target).open_draft(path)
        self._facts = manifest.facts
        self._scores = manifest.outputs.index(manifest.scores)
        self._batch = batch_for(manifest.tokens)
        self._milliseconds: float | None = None

    def logits(self, pictures: ByteImages) -> Floats:
        return np.concatenate([self._compute(images) for images in pictures.batches(self._batch)])

    def try_on(self, pictures: ByteImages, part: str, expected: Floats) -> tuple[Trial, Floats]:
        """The figures beside the logits of float32, and its own logits."""
        logits, facts = self.logits(pictures), self._facts
        answers = logits.argmax(axis=1)
        trial = Trial(
            method=self.method,
            part=part,
            pictures=len(pictures),
            agreement=float(facts.task.same_answers(expected, logits, facts.trust).mean()),
            accuracy=None if pictures.targets is None else float((answers == pictures.targets).mean()),
            megabytes=size_of(self.path) / 1e6,
            milliseconds=self._time(pictures),
        )
        return trial, logits

    def _compute(self, images: Floats) -> Floats:
        return self._run(images)[self._scores]

    def _time(self, pictures: ByteImages) -> float:
        """Milliseconds for one picture: the median of some calls, taken once."""
        if self._milliseconds is None:
            times = repeat(partial(self._compute, pictures.one(0)), times=TIMED, warm_up=WARM_UP)
            self._milliseconds = 1000 * float(np.median(times))
        return self._milliseconds


def check_telling(pictures: ByteImages, expected: Floats, goal: Goal, facts: Metadata) -> None:
    """Raise where agreement would prove nothing: the pictures are noise, or one answer would do for all of them."""
    if _relation(pictures.pixels) < NOISE:
        raise DataError(
            "the held-out pictures are noise: neighbouring pixels have nothing in common, so they cannot show what 8 "
            "bits do to real pictures; calibrate with pictures like those that the model will see."
        )
    noun, nouns = facts.task.noun
    constant = _most_common(expected, facts)
    if constant >= goal.agreement:
        raise DataError(
            f"the model gives {facts.task.same} to {constant:.1%} of {counted(len(expected), 'held-out picture')}, so "
            f"a graph that always gave this {noun} would be accepted; calibrate with more pictures, of several {nouns}."
        )
    if pictures.targets is None:
        return
    answers = expected.argmax(axis=1)
    accuracy = float((answers == pictures.targets).mean())
    most = max(Counter(pictures.targets.tolist()).values()) / len(answers)
    if accuracy <= most and accuracy < goal.agreement:
        raise DataError(
            f"in float32, the model is right on {accuracy:.1%} of {counted(len(answers), 'held-out picture')}, no more "
            f"than one answer for all of them would be ({most:.1%}): the labels are not what this model learned. Pass "
            "its own kind of data, or a folder of pictures without labels."
        )


def _most_common(expected: Floats, facts: Metadata) -> float:
    """The largest share of pictures for which one of their answers would do."""
    return max(
        float(facts.task.same_answers(expected, np.broadcast_to(row, expected.shape), facts.trust).mean())
        for row in expected
    )


def _relation(pixels: Bytes) -> float:
    """The correlation of pixels with their neighbours to the right."""
    values = pixels.astype(np.float32)
    left, right = values[..., :-1].ravel(), values[..., 1:].ravel()
    left -= left.mean()
    right -= right.mean()
    spread = float(np.sqrt((left**2).mean() * (right**2).mean()))
    return float((left * right).mean()) / spread if spread else 1.0


def size_of(path: Path) -> int:
    """Bytes of an export: of its files, and of what lies beside an ONNX file that is too large for one."""
    files = list(path.iterdir()) if path.is_dir() else {*files_of(path), *path.parent.glob(f"{path.name}*")}
    return sum(file.stat().st_size for file in files)

"""How far a model's answers can be trusted: facts from validation pictures, which go with the model. No torch."""

import base64
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from vitrail.errors import ConfigError
from vitrail.schema import validate
from vitrail.wording import counted

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Scores = Literal["softmax", "sigmoid"]  # one label among all; or each label by itself, as SigLIP was trained
UNFAMILIAR_RATE = 0.05  # of validation pictures, which count as unfamiliar
FLOOR = 0.01  # the share of its probability that every class keeps when smoothing is undone


@dataclass(frozen=True, kw_only=True)
class LabelSets:
    """How many of the most likely labels make a set that holds the truth as often as requested.

    Conformal prediction (APS and RAPS: Romano et al., 2020; Angelopoulos et al., 2021) without random numbers. A
    label's score is the probability of all labels ahead of it, plus a penalty for each rank beyond the first few; a set
    holds the labels whose score is at most the threshold of its level. The most likely label has the score 0: no set is
    empty, and the same picture always gets the same set.
    """

    levels: tuple[float, ...]  # shares of pictures whose set holds the truth, ascending
    thresholds: tuple[float, ...]  # one for each level
    free_ranks: int  # ranks without a penalty
    penalty: float  # for each further rank

    def __post_init__(self) -> None:
        validate(self)
        if not self.levels or len(self.levels) != len(self.thresholds):
            raise ConfigError(f"there must be a threshold for each level; got {len(self.thresholds)}.")
        for values in (self.levels, self.thresholds):
            if not all(map(math.isfinite, values)) or list(values) != sorted(values):
                raise ConfigError("levels and thresholds must ascend.")

    def threshold(self, coverage: float) -> float:
        """The threshold of the lowest level that is at least this coverage."""
        if not 0 < coverage < 1:
            raise ConfigError(f"must be between 0 and 1, such as 0.95; got {coverage:g}.", field="coverage")
        for level, threshold in zip(self.levels, self.thresholds, strict=True):
            if level >= coverage - 1e-9:
                return threshold
        raise ConfigError(
            f"`coverage={coverage:g}` is more than the calibration of this model can promise, which is at most "
            f"{self.levels[-1]:g}; more validation pictures allow more."
        )

    def scores(self, shares: Floats) -> Floats:  # (N, classes), both
        """The scores of all labels, in the order of their ranks, in which they ascend."""
        ranked = -np.sort(-shares, axis=1)
        ahead = np.cumsum(ranked, axis=1) - ranked
        ranks = np.arange(1, shares.shape[1] + 1)
        return ahead + self.penalty * np.maximum(ranks - self.free_ranks, 0)

    def sizes(self, shares: Floats, coverage: float) -> Integers:  # (N, classes) → (N,)
        """How many of the most likely labels are in each set."""
        return np.maximum((self.scores(shares) <= self.threshold(coverage)).sum(axis=1), 1)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """An array as text: half-precision numbers, relative to the largest of them, in base64."""

    shape: tuple[int, ...]  # of the array
    scale: float  # what the stored numbers are multiplied by
    base64: str  # little-endian float16, row by row

    def __post_init__(self) -> None:
        validate(self)
        whole = min(self.shape, default=0) > 0 and len(self._bytes) == 2 * math.prod(self.shape)
        if not whole or not np.isfinite(self.values).all():
            raise ConfigError(f"an array of shape {self.shape} must have as many numbers, all of them finite.")

    @cached_property
    def values(self) -> Floats:
        return np.frombuffer(self._bytes, dtype="<f2").astype(np.float64).reshape(self.shape) * self.scale

    @cached_property
    def _bytes(self) -> bytes:
        return base64.b64decode(self.base64, validate=True)


def pack(values: Floats) -> Packed:
    """An array to be stored as text."""
    scale = float(np.abs(values).max()) or 1.0
    text = base64.b64encode((values / scale).astype("<f2").tobytes()).decode()
    return Packed(shape=values.shape, scale=scale, base64=text)


@dataclass(frozen=True, kw_only=True)
class Familiarity:
    """Where the features of training pictures lie, to tell what is unlike all of them.

    A score is the negative squared Mahalanobis distance to the nearest centre (Lee et al., 2018), with one covariance
    for all centres: its main directions, and the same variance in all others.
    """

    centres: Packed  # (centres, D): the mean of each class, or one for all where the classes are many
    directions: Packed  # (D, R), orthonormal
    variances: tuple[float, ...]  # (R,) along these directions
    rest: float  # the variance in every other direction
    quantiles: tuple[float, ...]  # of the scores of validation pictures, at equal steps from the lowest to the highest

    def __post_init__(self) -> None:
        validate(self)
        fits = len(self.centres.shape) == len(self.directions.shape) == 2 and len(self.quantiles) > 1
        if not fits or self.directions.shape != (self.centres.shape[1], len(self.variances)):
            raise ConfigError("the centres, directions and variances of the features must fit each other.")
        if min(*self.variances, self.rest) <= 0 or not all(map(math.isfinite, (*self.variances, *self.quantiles))):
            raise ConfigError("the variances of the features must be above 0.")
        if list(self.quantiles) != sorted(self.quantiles):
            raise ConfigError("the quantiles of familiarity must ascend.")

    def check_width(self, width: int) -> None:
        """Refuse to judge features of another width."""
        if self.centres.shape[1] != width:
            raise ConfigError(f"familiarity is about features of width {self.centres.shape[1]}; the model has {width}.")

    def scores(self, features: Any) -> Floats:  # (N, D) → (N,)
        """Higher is more familiar; 0 is the highest."""
        numbers = np.asarray(features).astype(np.float64)
        directions, scales = self._basis, np.array(self.variances)
        along, nearest = numbers @ directions, np.full(len(numbers), np.inf)
        for centre in self.centres.values:
            offset, part = numbers - centre, along - centre @ directions
            beside = np.maximum((offset**2).sum(axis=1) - (part**2).sum(axis=1), 0)
            nearest = np.minimum(nearest, (part**2 / scales).sum(axis=1) + beside / self.rest)
        return -nearest

    @cached_property
    def _basis(self) -> Floats:
        """The directions, at right angles again after their rounding."""
        return np.linalg.qr(self.directions.values)[0]

    def shares(self, scores: Floats) -> Floats:
        """The shares of validation pictures that are less familiar, from 0 to 1."""
        return np.interp(scores, self.quantiles, np.linspace(0, 1, len(self.quantiles)))


def is_familiar(shares: Any) -> Any:
    """Whether a picture is like those seen in training: 95 % of the validation pictures are, by definition."""
    return shares >= UNFAMILIAR_RATE


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What a calibration found; `vitrail.calibrate`, and every training run with a validation split, make one."""

    data: str  # whose pictures, and which split: "digits, val"
    pictures: int  # how many
    temperature: float  # logits are divided by this before they become probabilities
    smoothing: float = 0.0  # the share of the probability that the model wrongly spreads over all classes
    sets: LabelSets | None = None
    familiarity: Familiarity | None = None

    def __post_init__(self) -> None:
        validate(self)
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ConfigError(f"a temperature must be above 0; got {self.temperature}.")
        if not 0 <= self.smoothing < 1:
            raise ConfigError(f"a share of the probability must be from 0 to below 1; got {self.smoothing}.")

    def __repr__(self) -> str:
        return f"<Trust {'; '.join(self.describe())}>"

    def facts(self) -> dict[str, Any]:
        """The numbers that people and programs ask for."""
        return {
            "data": self.data,
            "pictures": self.pictures,
            "temperature": self.temperature,
            "smoothing": self.smoothing,
            "highest_coverage": None if self.sets is None else self.sets.levels[-1],
            "familiarity": self.familiarity is not None,
        }

    def describe(self) -> list[str]:
        """The same as lines of text."""
        even = f", label smoothing of {self.smoothing:.1%} undone" if self.smoothing else ""
        lines = [f"on {counted(self.pictures, 'picture')} of {self.data}: temperature {self.temperature:g}{even}"]
        lines += [f"label sets for a coverage of up to {self.sets.levels[-1]:g}"] if self.sets else []
        known = self.familiarity
        return lines + ([f"tells unfamiliar pictures by {counted(known.centres.shape[0], 'centre')}"] if known else [])


def probabilities(logits: Any, trust: Trust | None = None, scores: Scores = "softmax") -> Floats:  # (…, classes), each
    """Logits as probabilities, in double precision, as a calibration found them to mean; without one, by `scores`."""
    if trust is None and scores == "sigmoid":
        return 1 / (1 + np.exp(-np.asarray(logits).astype(np.float64)))
    return np.exp(log_probabilities(logits, trust))


def log_probabilities(logits: Any, trust: Trust | None = None) -> Floats:
    """Their logarithms; the order of the classes stays."""
    return calibrate(logits, *((1.0, 0.0) if trust is None else (trust.temperature, trust.smoothing)))


def calibrate(logits: Any, temperature: float, smoothing: float) -> Floats:
    """Divide logits by a temperature, and undo the smoothing: remove the probability that is spread evenly.

    Training with smoothed labels or mixed pictures teaches a model to spread a share over all classes, which no
    temperature undoes. Of a class that has less than its part of it, 1 % is left.
    """
    logs = _log_softmax(np.asarray(logits).astype(np.float64) / temperature)
    if not smoothing:
        return logs
    with np.errstate(over="ignore"):  # a class with no probability at all
        kept = 1 - smoothing / logs.shape[-1] * np.exp(-logs)
    return _log_softmax(logs + np.log(np.maximum(kept, FLOOR)))


def restore_logits(shares: Any, trust: Trust | None, scores: Scores = "softmax") -> Floats:  # (…, classes), each
    """The logits, up to a constant for each picture, of which `probabilities` made these."""
    shares = np.maximum(np.asarray(shares).astype(np.float64), np.finfo(np.float32).tiny)
    if trust is None and scores == "sigmoid":
        return np.log(shares) - np.log(np.maximum(1 - shares, np.finfo(np.float32).tiny))
    if trust is None:
        return np.log(shares)
    if trust.smoothing:
        # What was left of q is min(l + part, l / FLOOR) of l = shares · total; the k largest have the first form, and
        # q sums to 1 at the largest of the totals that each k would have.
        part = trust.smoothing / shares.shape[-1]
        ranked = np.cumsum(-np.sort(-shares, axis=-1), axis=-1)
        counts = np.arange(1, shares.shape[-1] + 1)
        totals = (1 - counts * part) / (ranked + (ranked[..., -1:] - ranked) / FLOOR)
        left = shares * totals.max(axis=-1, keepdims=True)
        shares = np.minimum(left + part, left / FLOOR)
    return trust.temperature * np.log(shares)


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

"""How familiar a picture is: where the features of training pictures lie, to tell what is unlike them. No torch."""

import base64
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from vitrail.errors import ConfigError
from vitrail.schema import IF_USED, validate
from vitrail.wording import counted

Floats = np.ndarray[Any, np.dtype[np.float64]]
UNFAMILIAR_RATE = 0.05  # of validation pictures, unless a calibration sets another


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
class Usual:
    """Of training pictures: the usual distance to the nearest centre, and the usual spread of the logits."""

    distance: float  # the mean of the Mahalanobis distance (not squared)
    distance_std: float  # its standard deviation
    spread: float  # the mean of the standard deviation of a picture's logits
    spread_std: float  # its standard deviation
    weight: float  # of the spread beside the distance

    def __post_init__(self) -> None:
        validate(self)
        positive = (self.distance_std, self.spread_std, self.weight)
        if not all(map(math.isfinite, (self.distance, self.spread, *positive))) or min(positive) <= 0:
            raise ConfigError("the usual distance and spread must be finite, their deviations and the weight above 0.")


@dataclass(frozen=True, kw_only=True)
class Familiarity:
    """Where the features of training pictures lie, to tell what is unlike all of them.

    A score is the negative squared Mahalanobis distance to the nearest centre (Lee et al., 2018), with one covariance
    for all centres: its main directions, and the same variance in all others. A model that was trained with outliers
    shows by its logits too that it is unsure, since they differ less: then a score is their weighted spread minus the
    distance, each in standard deviations.
    """

    centres: Packed  # (centres, D): the mean of each class, or one for all where the classes are many
    directions: Packed  # (D, R), orthonormal
    variances: tuple[float, ...]  # (R,) along these directions
    rest: float  # the variance in every other direction
    quantiles: tuple[float, ...]  # of the scores of validation pictures, at equal steps from the lowest to the highest
    usual: Usual | None = field(default=None, metadata=IF_USED)  # of a model that was trained with outliers
    unfamiliar_rate: float = field(
        default=UNFAMILIAR_RATE, metadata=IF_USED
    )  # of validation pictures, which count as unfamiliar

    def __post_init__(self) -> None:
        validate(self)
        fits = len(self.centres.shape) == len(self.directions.shape) == 2 and len(self.quantiles) > 1
        if not fits or self.directions.shape != (self.centres.shape[1], len(self.variances)):
            raise ConfigError("the centres, directions and variances of the features must fit each other.")
        if min(*self.variances, self.rest) <= 0 or not all(map(math.isfinite, (*self.variances, *self.quantiles))):
            raise ConfigError("the variances of the features must be above 0.")
        if list(self.quantiles) != sorted(self.quantiles):
            raise ConfigError("the quantiles of familiarity must ascend.")
        check_unfamiliar_rate(self.unfamiliar_rate)

    def describe(self) -> str:
        """What it goes by, in a few words."""
        logits = " and its logits" if self.usual else ""
        by = f"tells unfamiliar pictures by {counted(self.centres.shape[0], 'centre')}{logits}"
        return f"{by}; {100 * self.unfamiliar_rate:.3g}% of ordinary pictures are marked too"

    def check_width(self, width: int) -> None:
        """Refuse to judge features of another width."""
        if self.centres.shape[1] != width:
            raise ConfigError(f"familiarity is about features of width {self.centres.shape[1]}; the model has {width}.")

    def scores(self, features: Any, logits: Any = None) -> Floats:  # (N, D), (N, classes) → (N,)
        """Higher is more familiar; the logits are needed where there is something usual about them."""
        squares, usual = self.squared_distances(features), self.usual
        if usual is None:
            return -squares
        spread = (spreads(logits) - usual.spread) / usual.spread_std
        return usual.weight * spread - (np.sqrt(squares) - usual.distance) / usual.distance_std

    def squared_distances(self, features: Any) -> Floats:  # (N, D) → (N,)
        """The squared Mahalanobis distance to the nearest centre."""
        numbers = np.asarray(features).astype(np.float64)
        directions, scales = self._basis, np.array(self.variances)
        along, nearest = numbers @ directions, np.full(len(numbers), np.inf)
        for centre in self.centres.values:
            offset, part = numbers - centre, along - centre @ directions
            beside = np.maximum((offset**2).sum(axis=1) - (part**2).sum(axis=1), 0)
            nearest = np.minimum(nearest, (part**2 / scales).sum(axis=1) + beside / self.rest)
        return nearest

    @cached_property
    def _basis(self) -> Floats:
        """The directions, at right angles again after their rounding."""
        return np.linalg.qr(self.directions.values)[0]

    def shares(self, scores: Floats) -> Floats:
        """The shares of validation pictures that are less familiar, from 0 to 1."""
        return np.interp(scores, self.quantiles, np.linspace(0, 1, len(self.quantiles)))

    def accepts(self, shares: Any) -> Any:
        """Whether pictures with these shares are familiar: like those seen in training."""
        return shares >= self.unfamiliar_rate


def spreads(logits: Any) -> Floats:  # (N, classes) → (N,)
    """The standard deviation of each picture's logits, which no constant that is added to all of them changes."""
    return np.asarray(logits).astype(np.float64).std(axis=1)


def check_unfamiliar_rate(rate: float) -> None:
    """Refuse a share that no pictures can have, or that would mark everything."""
    if not 0 <= rate < 1:
        raise ConfigError(f"must be at least 0 and below 1; got {rate}.", field="unfamiliar_rate")

"""What conformal prediction can promise: levels of coverage, and the score at which each of them holds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitrail.errors import ConfigError, DataError
from vitrail.wording import counted

Floats = np.ndarray[Any, np.dtype[np.float64]]
FEWEST = 50  # pictures of a calibration
# Coverages that a table holds: in between, the next higher one counts.
LEVELS = (*(number / 200 for number in range(100, 198)), *(number / 1000 for number in range(990, 1000)))
CURVE = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)  # coverages at which a calibration is measured


def refuse_few(pictures: int, data: str) -> None:
    """An error for a calibration on too few pictures."""
    if pictures < FEWEST:
        count = counted(pictures, "picture")
        raise DataError(f"a calibration needs at least {FEWEST} pictures; of {data}, {count} could be read.")


def score_levels(scores: Floats) -> dict[float, Floats]:  # (N, …) → level → (…)
    """The score of every level that this number of pictures can promise, for each column of their scores.

    Of n scores, the one at place ⌈(n + 1) · level⌉ in ascending order: a new picture that is like these scores at most
    that much with a probability of at least the level, whatever the scores are.
    """
    ascending = np.sort(scores, axis=0)
    places = {level: math.ceil(round((len(scores) + 1) * level, 6)) for level in LEVELS}
    return {level: ascending[place - 1] for level, place in places.items() if place <= len(scores)}


def find_level(levels: Sequence[float], coverage: float) -> int:
    """Where the lowest level that is at least this coverage stands among ascending ones."""
    if not 0 < coverage < 1:
        raise ConfigError(f"must be between 0 and 1, such as 0.95; got {coverage:g}.", field="coverage")
    for index, level in enumerate(levels):
        if level >= coverage - 1e-9:
            return index
    raise ConfigError(
        f"`coverage={coverage:g}` is more than the calibration of this model can promise, which is at most "
        f"{levels[-1]:g}; more validation pictures allow more."
    )

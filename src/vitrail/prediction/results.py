"""What comes out of a `Predictor`, one per picture."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.pixels import Picture

Floats = np.ndarray[Any, np.dtype[np.float32]]
Named = tuple[str, Picture]  # the name of a picture, and the picture


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The most likely classes of one picture, best first; or why there are none.

    What the model cannot tell, or was not asked, is None: label sets and familiarity are for calibrated ones. A model
    that abstains gives no labels to what is not familiar.
    """

    picture: str  # its path, or its number among the pictures passed
    labels: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()  # probabilities
    indices: tuple[int, ...] = ()  # the indices of these classes in the model's head
    label_set: tuple[str, ...] | None = None  # holds the truth as often as the requested coverage says, best first
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

    def _repr_png_(self) -> bytes | None:
        """In a notebook: the picture beside bars of its classes."""
        if not self.labels:
            return None
        from vitrail.prediction.plots import plot_prediction, png_of  # matplotlib takes a while to load

        picture = Path(self.picture) if self.source is None else self.source
        return png_of(plot_prediction(picture, self.labels, self.scores))


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """The features of one picture, as the head gets them; or why there are none."""

    picture: str
    vector: Floats | None = None  # (D,)
    error: str | None = None

"""Back from the model's input to the picture: which part of it the model saw, and where each patch is in it."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.model.config import Pair


@dataclass(frozen=True, kw_only=True)
class View:
    """The rectangle of a picture that became the model's input, in pixels of the picture (fractions are normal)."""

    picture: Pair  # (height, width) of the upright picture
    top: float
    left: float
    height: float
    width: float

    @property
    def seen(self) -> tuple[int, int, int, int]:
        """The (top, left, bottom, right) of the pixels whose centres the model saw."""
        sides = ((self.top, self.height, self.picture[0]), (self.left, self.width, self.picture[1]))
        starts = [max(math.ceil(start - 0.5), 0) for start, _, _ in sides]
        ends = [min(math.ceil(start + length - 0.5), limit) for start, length, limit in sides]
        return starts[0], starts[1], ends[0], ends[1]


def view_of(spec: Preprocess, picture: Pair) -> View:
    """What `spec` cuts out of an upright picture of this (height, width)."""
    resized = spec.resized(*picture)
    top, left = spec.corner(*resized)
    scales = (picture[0] / resized[0], picture[1] / resized[1])
    return View(
        picture=picture,
        top=top * scales[0],
        left=left * scales[1],
        height=spec.size[0] * scales[0],
        width=spec.size[1] * scales[1],
    )


def spread(cells: Tensor, view: View, how: Literal["smooth", "blocks"] = "smooth", rows: Pair | None = None) -> Tensor:
    """A map over the patches (h, w) → over the `view.seen` pixels of the picture, each patch where the model saw it.

    "smooth" is linear between the centres of the patches; "blocks" shows the patches themselves. `rows` keeps those
    rows of the picture only.
    """
    top, left, bottom, right = view.seen
    top, bottom = (top, bottom) if rows is None else rows
    shares = _weights(cells.shape[0], top, bottom, view.top, view.height, how).to(cells.dtype).to(cells.device)
    columns = _weights(cells.shape[1], left, right, view.left, view.width, how).to(cells.dtype).to(cells.device)
    return shares @ cells @ columns.T


def _weights(count: int, start: int, end: int, origin: float, length: float, how: str) -> Tensor:
    """How much of each of `count` cells is in each pixel of one axis: (pixels, cells), rows sum to 1."""
    pixels = torch.arange(start, end, dtype=torch.float64) + 0.5
    places = ((pixels - origin) / length * count).clamp(0, count)  # in cells; cell i reaches from i to i + 1
    if how == "blocks":
        return torch.nn.functional.one_hot(places.long().clamp(max=count - 1), count).double()
    centres = (places - 0.5).clamp(0, count - 1)
    below = centres.floor().long().clamp(max=max(count - 2, 0))
    share = (centres - below)[:, None]
    above = (below + 1).clamp(max=count - 1)
    one_hot = torch.nn.functional.one_hot
    return one_hot(below, count) * (1 - share) + one_hot(above, count) * share

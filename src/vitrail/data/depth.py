"""How deep the pictures of a data set are, judged by a few of them before anything is trained."""

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vitrail.data.pixels import fetched, read_raster
from vitrail.data.preprocess import Range
from vitrail.data.rasters import Raster
from vitrail.data.source import ArraySource, Source
from vitrail.data.transform import as_raster
from vitrail.errors import ConfigError, InputError
from vitrail.wording import counted

PROBES = 16  # pictures that are decoded
FULL_SCALES = (1023, 4095, 16383, 65535)  # the highest values of 10, 12, 14 and 16 bits


@dataclass(frozen=True, kw_only=True)
class Depth:
    """What some pictures hold that bytes of grey or RGB cannot."""

    num_pictures: int  # that were looked at
    num_deep: int  # of which have more than 8 bits
    kind: str  # of their values: "16 bits", "float32"
    low: float
    high: float
    channels: frozenset[int]  # the numbers of channels; of usual pictures, 3

    @property
    def suggested_range(self) -> Range:
        """The full scale of the fewest bits that hold the integers; of floats, the range itself."""
        if "float" in self.kind or self.low < 0 or self.high > FULL_SCALES[-1]:
            return self.low, self.high if self.high > self.low else self.low + 1
        return 0, next(scale for scale in FULL_SCALES if self.high <= scale)


def observe_depth(source: Source, channels: int | None = None) -> Depth | None:
    """The depth of some pictures of a source, or None if none of them can be read."""
    if isinstance(source, ArraySource) or not len(source):
        return None
    indices = np.linspace(0, len(source) - 1, min(PROBES, len(source))).astype(int).tolist()
    source.prefetch(indices)
    rasters: list[Raster | None] = []
    for index in indices:
        try:
            picture, name = source.picture(index), source.key(index)
            is_array = isinstance(picture, np.ndarray | Tensor)
            rasters.append(as_raster(picture) if is_array else read_raster(fetched(picture), name, channels))
        except (InputError, OSError):
            continue
    deep = [raster for raster in rasters if raster is not None and raster.values.dtype != np.uint8]
    finite = [raster.values[np.isfinite(raster.values)] for raster in deep]
    finite = [values for values in finite if values.size]
    if not rasters:
        return None
    return Depth(
        num_pictures=len(rasters),
        num_deep=len(deep),
        kind=deep[0].depth if deep else "8 bits",
        low=min((float(values.min()) for values in finite), default=0.0),
        high=max((float(values.max()) for values in finite), default=255.0),
        channels=frozenset(3 if raster is None else _count(raster) for raster in rasters),
    )


def _count(raster: Raster) -> int:
    """Channels that the model must have; grey becomes RGB, and alpha is dropped."""
    count = len(raster.values) - raster.alpha
    return 3 if count == 1 else count


def check_channels(depth: Depth, name: str, channels: int) -> None:
    """Refuse pictures of which the model would see other channels than they have."""
    if channels in (1, 3) and len(depth.channels) == 1 and (own := next(iter(depth.channels))) not in (1, 3):
        raise ConfigError(
            f"{name}: the pictures have {counted(own, 'channel')}, and the model {channels}; pass `channels={own}`."
        )


def refuse_unknown_range(depth: Depth, name: str) -> None:
    """Refuse pictures of more than 8 bits where nothing says which of their values are black and white."""
    if not depth.num_deep:
        return
    low, high = (f"{value:g}" if abs(value) < math.inf else str(value) for value in depth.suggested_range)
    raise ConfigError(
        f"{name}: {depth.num_deep} of {counted(depth.num_pictures, 'picture')} that were looked at have {depth.kind}, "
        f"with values from {depth.low:g} to {depth.high:g}, and nothing says which are black and white; pass "
        f"`value_range=({low}, {high})` or what your instrument gives. It is stored with the model."
    )

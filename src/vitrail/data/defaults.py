"""How pictures are prepared for a model that has not been trained yet."""

from dataclasses import replace

from vitrail.data.preprocess import Preprocess, preset
from vitrail.data.source import ArraySource, Dataset

SMALL_SIDE = 64  # pictures up to this side are not cropped, since every pixel counts


def default_preprocess(
    dataset: Dataset, size: tuple[int, int] | int | None = None, family: str | None = None
) -> Preprocess:
    """A family's preset if one is named; else the pictures' own size and channels in memory, 224 for files."""
    source = dataset.split("train")
    channels = 3
    if isinstance(source, ArraySource):
        channels, height, width = source.images.shape[1:]
        size = (height, width) if size is None else size
    if family is not None:
        return preset(family, size, channels)
    spec = preset("timm", size, channels)
    return replace(spec, interpolation="bilinear", crop=1.0 if max(spec.size) <= SMALL_SIDE else spec.crop)

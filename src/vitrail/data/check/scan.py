"""Examining every picture of a data set once, in threads."""

import hashlib
import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.data.config import check_workers
from vitrail.data.label_kinds import Labelling
from vitrail.data.pixels import EXTENSIONS, ImageLike, decode, fetched, has_alpha, opened, orientation, read_raster
from vitrail.data.preprocess import Preprocess
from vitrail.data.rasters import START, Raster, sniff
from vitrail.data.source import Dataset, FileSource, Source
from vitrail.data.transform import as_raster, look_at_raster
from vitrail.errors import InputError
from vitrail.wording import reason

THUMBNAIL = 16
_COLOR = Preprocess()  # how pictures are decoded to be compared: RGB, upright
_BATCH, _CHUNK = 256, 16  # pictures after which progress is shown; that one thread examines


@dataclass(frozen=True, kw_only=True)
class PictureFacts:
    """What one picture is."""

    split: str
    index: int
    key: str
    label: Any  # equal for equal labels: the class, the labels that apply, or the values
    trouble: str = ""  # why it cannot be read; the rest is then empty
    width: int = 0
    height: int = 0
    kind: str = ""  # JPEG, PNG, …, or "array"
    traits: tuple[str, ...] = ()  # what is unusual in the file: grey, alpha, CMYK, …
    extension: str = ""  # of the file, if it belongs to another format
    digest: bytes = field(default=b"", repr=False)  # of the decoded pixels
    thumbnail: bytes = field(default=b"", repr=False)  # 16×16 grey levels


def scan(dataset: Dataset, workers: int, progress: Callable[[int], None] = lambda _: None) -> Iterator[PictureFacts]:
    """The facts of every sample, split after split, in order."""
    check_workers(workers)
    for source in dataset.splits.values():
        source.require_room()
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        for split, source in dataset.splits.items():
            for start in range(0, len(source), _BATCH):
                stop = min(start + _BATCH, len(source))
                parts = [range(first, min(first + _CHUNK, stop)) for first in range(start, stop, _CHUNK)]
                yield from chain.from_iterable(pool.map(partial(_examine, source, split, dataset.labelling), parts))
                progress(stop - start)


def _examine(source: Source, split: str, labelling: Labelling, indices: range) -> list[PictureFacts]:
    source.prefetch(indices)
    return [examine(source, split, labelling, index) for index in indices]


def examine(source: Source, split: str, labelling: Labelling, index: int) -> PictureFacts:
    """The facts of one sample; a picture that cannot be read is a fact too."""
    label = labelling.identity(source.labels[index])
    fact = PictureFacts(split=split, index=index, key=source.key(index), label=label)
    try:
        picture = source.picture(index)
        if isinstance(picture, np.ndarray | Tensor):
            return _measure_raster(replace(fact, kind="array"), as_raster(picture))
        picture = fetched(picture)
        own = fact.key if isinstance(source, FileSource) else picture
        if (raster := read_raster(picture, fact.key)) is not None:
            kind = _kind(picture)
            fact = replace(fact, kind=kind, traits=_depth(raster), extension=_wrong_extension(own, kind))
            return _measure_raster(fact, raster)
        with opened(picture, fact.key) as image:
            kind, traits = image.format or "picture", tuple(_traits(image))
            fact = replace(fact, kind=kind, traits=traits, extension=_wrong_extension(own, kind))
            return _measure(fact, decode(image, _COLOR, fact.key))
    except (InputError, OSError) as error:
        return replace(fact, trouble=reason(error))


def _traits(image: Image.Image) -> Iterator[str]:
    if image.mode in ("1", "L", "LA"):
        yield "grey"
    if has_alpha(image):
        yield "alpha"
    if image.mode == "CMYK":
        yield "CMYK"
    if image.mode in ("P", "PA"):
        yield "palette"
    if getattr(image, "n_frames", 1) > 1 and image.format != "MPO":
        yield "animated"
    if orientation(image) != 1:
        yield "rotated by EXIF"


def _kind(picture: ImageLike) -> str:
    """The format of a picture that is read as a raster."""
    if isinstance(picture, Image.Image):
        return picture.format or "picture"
    with io.BytesIO(picture) if isinstance(picture, bytes) else Path(picture).open("rb") as file:
        return sniff(file.read(START)) or "PNG"


def _depth(raster: Raster) -> tuple[str, ...]:
    count = len(raster.values)
    deep = () if raster.values.dtype == np.uint8 else (raster.depth,)
    return (*deep, *((f"{count} channels",) if count not in (1, 3) else ()))


def _wrong_extension(picture: ImageLike, kind: str) -> str:
    if not isinstance(picture, str | Path):
        return ""
    extension = Path(picture).suffix.lower()
    same = EXTENSIONS.get(extension) == ("JPEG" if kind == "MPO" else kind)
    return "" if same else extension or "none"


def _measure_raster(fact: PictureFacts, raster: Raster) -> PictureFacts:
    return _measure(fact, look_at_raster(raster), raster.values.tobytes())


def _measure(fact: PictureFacts, image: Image.Image, pixels: bytes | None = None) -> PictureFacts:
    """The size, and the fingerprints by which duplicates are found; `pixels` are those that the image cannot hold."""
    digest = hashlib.blake2b(f"{image.size}".encode(), digest_size=16)
    digest.update(image.tobytes() if pixels is None else pixels)
    grey = image.convert("L")
    return replace(
        fact,
        width=image.width,
        height=image.height,
        digest=digest.digest(),
        thumbnail=grey.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX).tobytes(),
    )

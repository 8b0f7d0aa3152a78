"""The pictures that a verb gets: any kind of picture, and names that stand for several."""

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image

from vitrail.data.pixels import Picture, is_tensor
from vitrail.errors import InputError
from vitrail.prediction.arguments import check_standard_input
from vitrail.prediction.pictures import (
    check_pictures,
    count_pictures,
    find_pictures,
    first_pictures,
    name_paths,
    read_list,
    stands_for_several,
)
from vitrail.prediction.predictions import is_one
from vitrail.prediction.predictor import Named

Pictures = Picture | Iterable[Picture]


def stream_pictures(pictures: Pictures | None, list_file: str | Path | None = None) -> Iterator[Named]:
    """Names and pictures, in order, then those of the list; a folder or a pattern stands for all its pictures.

    In a sequence, a name that stands for nothing is an error before the first picture is read. The list may name some
    that are not there.
    """
    given: Iterable[Picture] = ()
    alone = pictures is not None and is_one(pictures)
    if pictures is not None:
        given = [cast("Picture", pictures)] if alone else cast("Iterable[Picture]", pictures)
    file = None if list_file is None else str(list_file)
    if isinstance(given, Sequence):
        names = [str(picture) for picture in given if isinstance(picture, str | Path)]
        if len(names) == len(given):
            check_standard_input(names, file)
        check_pictures(names)

    def everything() -> Iterator[Named]:
        for place, picture in enumerate(given):
            if isinstance(picture, str | Path):
                yield from find_pictures([str(picture)])
            else:
                yield "picture" if alone else f"picture {place}", picture
        if file is not None:
            yield from name_paths(read_list(file))

    return everything()


def size_up(pictures: Pictures | None, list_file: str | Path | None) -> tuple[int | None, Iterable[Picture]]:
    """How many pictures there are, None for a stream, and the first of them."""
    file = None if list_file is None else str(list_file)
    several: Iterable[Picture] = ()
    if pictures is not None:
        several = [cast("Picture", pictures)] if is_one(pictures) else cast("Iterable[Picture]", pictures)
    if not isinstance(several, Sized):
        return None, ()
    names = [str(picture) for picture in several if isinstance(picture, str | Path)]
    others = [picture for picture in several if not isinstance(picture, str | Path)]
    count = count_pictures(names, file)
    return None if count is None else count + len(others), chain(others, first_pictures(names, file))


def gather_pictures(pictures: Pictures) -> dict[str, Picture]:
    """Name → picture, all of them at once; a path that is named twice counts once."""
    listed = pictures if is_one(pictures) else list(cast("Iterable[Picture]", pictures))
    gathered = dict(stream_pictures(listed))
    for name, picture in gathered.items():
        if not (isinstance(picture, str | Path | bytes | Image.Image | np.ndarray) or is_tensor(picture)):
            raise InputError(f"{name} must be a path, bytes, PIL, array or tensor; got {type(picture)}.")
    return gathered


def is_single(pictures: Pictures) -> bool:
    """Whether the argument is one picture, rather than several or a name that stands for several."""
    return is_one(pictures) and not (isinstance(pictures, str | Path) and stands_for_several(str(pictures)))

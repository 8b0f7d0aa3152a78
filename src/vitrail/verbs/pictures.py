"""The pictures that a verb gets: any kind of picture, and names that stand for several."""

from collections.abc import Iterable
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.data.transform import Picture
from vitrail.errors import InputError
from vitrail.prediction.arguments import check_standard_input
from vitrail.prediction.pictures import find_pictures, stands_for_several

Pictures = Picture | Iterable[Picture]


def gather_pictures(pictures: Pictures) -> dict[str, Picture]:
    """Name → picture; a folder or a pattern stands for all its pictures, and a path that occurs twice counts once.

    A name that stands for nothing is an error before the first picture is read.
    """
    listed = [cast("Picture", pictures)] if _is_one(pictures) else list(cast("Iterable[Picture]", pictures))
    paths = [str(picture) for picture in listed if isinstance(picture, str | Path)]
    if len(paths) == len(listed):
        check_standard_input(paths, None)
        return dict(find_pictures(paths))
    streams = {path: find_pictures([path]) for path in paths}  # which checks them all
    gathered: dict[str, Picture] = {}
    for index, picture in enumerate(listed):
        if isinstance(picture, str | Path):
            gathered.update(streams[str(picture)])
        elif isinstance(picture, bytes | Image.Image | np.ndarray | Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            gathered["picture" if len(listed) == 1 else f"picture {index}"] = picture
        else:
            raise InputError(f"picture {index} must be a path, bytes, PIL, array or tensor; got {type(picture)}.")
    return gathered


def is_single(pictures: Pictures) -> bool:
    """Whether the argument is one picture, rather than several or a name that stands for several."""
    return _is_one(pictures) and not (isinstance(pictures, str | Path) and stands_for_several(str(pictures)))


def _is_one(pictures: Pictures) -> bool:
    if isinstance(pictures, np.ndarray | Tensor):
        return pictures.ndim < 4
    if not isinstance(pictures, str | Path | bytes | Image.Image | Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"a picture is a path, bytes, a PIL picture, an array or a tensor; got {pictures!r}.")
    return isinstance(pictures, str | Path | bytes | Image.Image)

"""What scikit-learn passes to an estimator: pictures in any of their forms as `X`, labels or numbers as `y`."""

import hashlib
from collections.abc import Iterable, Sized
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from PIL import Image
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from vitrail.data.label_kinds import Labels
from vitrail.data.pixels import Picture, orientation, read_address
from vitrail.data.source import ArraySource, FileSource, Source
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import InputError, SamplesError, shorten
from vitrail.storage import is_address
from vitrail.training.feature_cache import DIGEST_BYTES
from vitrail.wording import counted

PICTURES = "X must hold pictures: paths, arrays (H, W, C), one 4-D array, or PIL pictures"
EMBEDDINGS = "Embeddings that you have already are for scikit-learn's own estimators, such as LogisticRegression."
CHANNELS = 4  # of one picture at most: a longer side is one of a grey picture


class Samples(NamedTuple):
    """The pictures of `X`, with digests of what they contain; None for what cannot be read."""

    pictures: list[Picture]
    digests: list[str | None]

    @property
    def keys(self) -> list[str]:
        """Their names: files have their paths, all others their contents."""
        return [
            str(picture)
            if isinstance(picture, str)
            else picture.as_posix()
            if isinstance(picture, Path)
            else digest or f"X[{index}]"
            for index, (picture, digest) in enumerate(zip(*self, strict=True))
        ]

    def named(self, indices: Iterable[int]) -> Iterable[tuple[str, Picture]]:
        """Some of them, each by its index and, if it is a file, its path."""
        return ((describe(self.pictures[index], index), self.pictures[index]) for index in indices)

    def source(self, labels: Labels) -> Source:
        """What training reads; pictures with the same name stay together when some are set aside for validation."""
        pictures, keys = self.pictures, self.keys
        if all(isinstance(picture, Path) for picture in pictures):
            return FileSource(keys, labels, Path())
        shapes = {picture.shape if _is_bytes(picture) else None for picture in cast("list[Any]", pictures)}
        if len(shapes) == 1 and None not in shapes:
            return ArraySource(torch.stack(cast("list[torch.Tensor]", pictures)), labels, keys)
        return MemorySource(pictures, labels, keys)


class Targets(NamedTuple):
    """What `y` says."""

    task: str
    names: tuple[str, ...]  # of the model's outputs
    labels: Labels  # as a `Source` has them
    classes: np.ndarray[Any, Any] | None  # the labels as the user spells them, in the order of the outputs


def describe(picture: Picture, index: int) -> str:
    """One of several pictures, in messages."""
    return f"X[{index}] ({picture})" if isinstance(picture, str | Path) else f"X[{index}]"


def read_samples(x: Any) -> Samples:
    """The pictures of `X`: a list, an array or a column of paths, arrays or PIL pictures."""
    pictures = [_read_picture(item, index) for index, item in enumerate(_items(x))]
    if not pictures:
        raise SamplesError(f"{PICTURES}; got none.")
    return Samples(pictures, [_digest(picture) for picture in pictures])


def _items(x: Any) -> Iterable[Any]:
    if hasattr(x, "iloc") and hasattr(x, "columns"):
        if len(x.columns) != 1:
            raise SamplesError(
                f"a DataFrame must have one column, of pictures; got {list(x.columns)[:10]}; pass one of them, or "
                "choose it with a ColumnTransformer."
            )
        return x.iloc[:, 0]
    if isinstance(x, str | PathLike | bytes | Image.Image):
        raise SamplesError(f"{PICTURES}, several of them; for one picture, pass a list with it.")
    if isinstance(x, np.ndarray | torch.Tensor):
        return _rows(x)
    if hasattr(x, "toarray") or not isinstance(x, Iterable) or not isinstance(x, Sized):
        raise SamplesError(f"{PICTURES}; got {type(x).__name__}.")
    return cast("Iterable[Any]", x)


def _rows(x: Any) -> Iterable[Any]:
    """The items of an array."""
    shape = tuple(x.shape)
    if not isinstance(x, torch.Tensor) and x.dtype.kind in "OUST":  # paths, or pictures of any kind
        if len(shape) == 2 and shape[1] == 1:
            return x[:, 0]
        if len(shape) == 1:
            return x
        raise SamplesError(f"{PICTURES}; got an array of the shape {shape}.")
    if len(shape) == 4 or (len(shape) == 3 and shape[0 if isinstance(x, torch.Tensor) else 2] > CHANNELS):
        return x
    if len(shape) == 3:
        raise SamplesError(f"{PICTURES}; got one picture, {shape}: pass X[None].")
    raise SamplesError(f"{PICTURES}; got numbers of the shape {shape}. {EMBEDDINGS}")


def _read_picture(item: Any, index: int) -> Picture:
    """One picture, arrays as tensors (C, H, W)."""
    if isinstance(item, str):
        return str(item) if is_address(item) else Path(item)
    if isinstance(item, PathLike):
        return Path(fspath(cast("PathLike[str]", item)))
    if isinstance(item, bytes | Image.Image):
        return item
    if isinstance(item, np.ndarray | torch.Tensor) and item.ndim in (2, 3):
        return _as_tensor(item)
    hint = f" {EMBEDDINGS}" if isinstance(item, int | float | list | tuple | np.generic | np.ndarray) else ""
    raise SamplesError(f"{PICTURES}; X[{index}] is {shorten(item)}.{hint}")


def _as_tensor(array: Any) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        return array.detach().cpu() if array.ndim == 3 else array.detach().cpu()[None]
    if array.dtype.kind not in "fu" or array.dtype.itemsize > 8:
        raise SamplesError(f"{PICTURES}, as bytes or floats from 0 to 1; got {array.dtype}.")
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    tensor = torch.as_tensor(native if native.flags.writeable else native.copy())
    return tensor.permute(2, 0, 1) if tensor.ndim == 3 else tensor[None]


def _is_bytes(picture: Any) -> bool:
    return isinstance(picture, torch.Tensor) and picture.dtype == torch.uint8


def _digest(picture: Picture) -> str | None:
    """A hash of what a picture contains; None for a file that cannot be read, which is reported where it is decoded."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    if isinstance(picture, Image.Image):
        try:
            pixels, turned = picture.tobytes(), orientation(picture)
        except OSError:
            return None
        digest.update(repr(("PIL", picture.mode, picture.size, turned, picture.info.get("transparency"))).encode())
        digest.update(bytes(picture.getpalette() or ()))
        digest.update(pixels)
    elif isinstance(picture, str | Path | bytes):
        try:
            digest.update(b"file")
            digest.update(picture if isinstance(picture, bytes) else _contents(picture))
        except (OSError, InputError):
            return None
    else:
        tensor = cast("torch.Tensor", picture)
        digest.update(f"array {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _contents(file: str | Path) -> bytes:
    return read_address(file) if isinstance(file, str) else file.read_bytes()


def read_classes(y: Any, count: int) -> Targets:
    """One class per picture, of any type that can be sorted; or 0 and 1 for each of several labels."""
    y = _check_length(y, count)
    check_classification_targets(y)
    if not type_of_target(y, input_name="y").startswith("multilabel"):
        classes, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        names = tuple(map(str, classes.tolist()))
        if len(classes) < 2:
            raise SamplesError(f"a classifier needs pictures of at least two classes; got one class: {names[0]}.")
        if len(set(names)) < len(names):
            raise SamplesError(f"the labels of y must differ as texts too; got {shorten(names)}.")
        return Targets("one", names, labels.astype(np.int64), classes)
    matrix = np.asarray(y.toarray() if hasattr(y, "toarray") else y).astype(np.uint8)
    return Targets("several", _columns(y, matrix.shape[1], "label"), matrix, np.arange(matrix.shape[1]))


def read_numbers(y: Any, count: int) -> Targets:
    """A number for each picture (N,), or several (N, K)."""
    y = _check_length(y, count)
    try:
        values = np.asarray(y, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise SamplesError(f"y must hold numbers; {error}.") from None
    if values.ndim not in (1, 2) or 0 in values.shape:
        raise SamplesError(f"y must have the shape (N,) or (N, K); got {values.shape}.")
    if not np.isfinite(values).all():
        raise SamplesError("y must hold finite numbers; Input y contains NaN or infinity.")
    matrix = values.reshape(count, -1)
    return Targets("number", _columns(y, matrix.shape[1], "value"), matrix, None)


def _check_length(y: Any, count: int) -> Any:
    """The labels, of which there must be a row for each picture."""
    if y is None:
        raise SamplesError("This estimator requires y to be passed, but the target y is None.")
    y = y if isinstance(y, Sized) else np.asarray(y)
    length = y.shape[0] if getattr(y, "shape", ()) else len(y) if np.ndim(y) else 0
    if length != count:
        raise SamplesError(
            f"X and y must have the same length; X has {counted(count, 'picture')}, and y {counted(length, 'row')}."
        )
    if count < 2:
        raise SamplesError("training needs at least two pictures; got 1 sample.")
    return y


def _columns(y: Any, count: int, noun: str) -> tuple[str, ...]:
    """The names of what is learned: those of a table's columns, or numbers."""
    if hasattr(y, "columns"):
        names = tuple(map(str, y.columns))
        if len(set(names)) == count and all(names):
            return names
    return (noun,) if count == 1 else tuple(f"{noun} {index}" for index in range(count))

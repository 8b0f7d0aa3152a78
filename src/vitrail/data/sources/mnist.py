"""MNIST-style idx files, plain or gzipped, and scikit-learn's handwritten digits (1,797 of 8×8, no download)."""

import gzip
import math
import zlib
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from vitrail.data.config import DataConfig
from vitrail.data.source import ArraySource, Dataset, split_dataset
from vitrail.errors import DataError
from vitrail.untrusted import check_regular

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
MAX_BYTES = 1 << 34  # no data set in memory is larger
MAX_RATIO, SMALL = 100, 1 << 26  # pictures do not shrink a hundredfold; a few blank ones may
# Split → its pictures and labels, plain or gzipped.
IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def is_whole_idx(folder: Path) -> bool:
    """Whether a folder holds all of MNIST's four files."""
    return all(_find(folder, name) for names in IDX_FILES.values() for name in names)


def is_idx(folder: Path) -> bool:
    """Whether a folder is meant to hold MNIST's four files, judging by their usual names."""
    return folder.is_dir() and _find(folder, IDX_FILES["train"][0]) is not None


def open_idx(folder: Path, classes: tuple[str, ...] | None = None) -> Dataset:
    """The data set in a folder of idx files. Without class names, the labels' numbers are their names."""
    arrays: dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}
    for split, names in IDX_FILES.items():
        files = [_find(folder, name) for name in names]
        if files[0] is None or files[1] is None:
            missing = names[0] if files[0] is None else names[1]
            raise DataError(f"{folder}: {missing} (or .gz) is missing.")
        pictures, labels = read_idx(files[0]), read_idx(files[1])
        if pictures.ndim != 3 or labels.shape != pictures.shape[:1]:
            raise DataError(f"{folder}: {split} has pictures {pictures.shape} and labels {labels.shape}.")
        arrays[split] = (pictures, labels)
    if classes is None and "fashion" in folder.resolve().as_posix().lower():
        classes = FASHION
    highest = max(int(labels.max()) for _, labels in arrays.values())
    classes = classes or tuple(str(number) for number in range(highest + 1))
    if highest >= len(classes):
        raise DataError(f"{folder}: has the label {highest}, but there are only {len(classes)} class names.")
    splits = {
        split: ArraySource(torch.as_tensor(pictures[:, None].copy()), labels, f"{folder.name}/{split}")
        for split, (pictures, labels) in arrays.items()
    }
    return Dataset(name=folder.name, classes=classes, splits=splits)


def _find(folder: Path, name: str) -> Path | None:
    candidates = (name, f"{name}.gz", name.replace("-idx", ".idx"))
    return next((folder / candidate for candidate in candidates if (folder / candidate).is_file()), None)


def _read(file: IO[bytes], count: int) -> bytes:
    """Up to `count` bytes. Piece by piece: a damaged header may promise any number of them."""
    pieces: list[bytes] = []
    while count > 0 and (piece := file.read(min(count, 1 << 24))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def read_idx(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of one idx file, in its shape."""
    check_regular(path)
    try:
        with cast("IO[bytes]", gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
                raise DataError(f"{path}: not an idx file of bytes; it starts with {magic!r}.")
            header = file.read(4 * magic[3])
            shape = tuple(int(size) for size in np.frombuffer(header[: len(header) // 4 * 4], dtype=">u4"))
            expected = math.prod(shape)
            if path.suffix == ".gz" and expected > max(SMALL, MAX_RATIO * path.stat().st_size):
                raise DataError(f"{path}: unpacks to {expected:,} bytes, over {MAX_RATIO} times its size: refused.")
            data = _read(file, expected + 1) if len(shape) == magic[3] and expected <= MAX_BYTES else b""
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated ({error}).") from None
    if len(shape) != magic[3] or len(data) != expected or not expected:
        raise DataError(f"{path}: truncated or damaged: {shape} needs {expected:,} bytes; got {len(data):,}.")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


LEVELS = 16  # the pixels are 0 … 16


def open_digits() -> Dataset:
    """The digits with a fixed stratified split."""
    levels, labels = _read_levels()
    grey = np.round(levels * (255 / LEVELS)).astype(np.uint8)
    source = ArraySource(torch.as_tensor(grey[:, None]), labels, "digits")
    return replace(split_dataset("digits", tuple("0123456789"), source, DataConfig()), made_split=False)


def _read_levels() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Levels (N, 8, 8) and labels, from scikit-learn's file: to import it takes a second, to read that, a moment."""
    spec = find_spec("sklearn")
    folders = (spec and spec.submodule_search_locations) or ()
    files = [file for folder in folders if (file := Path(folder, "datasets", "data", "digits.csv.gz")).is_file()]
    if not files:  # in a version that keeps it elsewhere
        bunch = cast("Any", import_module("sklearn.datasets")).load_digits()
        return np.asarray(bunch.images, dtype=np.float64), np.asarray(bunch.target, dtype=np.int64)
    table = np.loadtxt(files[0], delimiter=",", dtype=np.int64)  # (N, 65)
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1]

"""CIFAR-10 and CIFAR-100: the binary version, or the Python version read without executing its pickles."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch

from vitrail.data.source import ArraySource, Dataset
from vitrail.data.sources.inert import InertArray, as_text, load_inert
from vitrail.errors import DataError, shorten
from vitrail.untrusted import check_regular, files_of, open_tar, read_bytes, read_member

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PICTURE_BYTES = 3 * 32 * 32

# Split → its files. CIFAR-100's and CIFAR-10's are distinguished by their names.
BINARY = {
    10: {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]},
    100: {"train": ["train.bin"], "test": ["test.bin"]},
}
PICKLED = {
    10: {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]},
    100: {"train": ["train"], "test": ["test"]},
}
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-100-binary", "cifar-100-python")
# Files of which a folder with batches has one group.
BATCHES = (("data_batch_1.bin",), ("data_batch_1",), ("fine_label_names.txt",), ("train", "test", "meta"))
ARCHIVES = tuple(f"cifar-{number}-{kind}.tar.gz" for number in (10, 100) for kind in ("binary", "python"))

MAX_BYTES = 400_000_000  # the whole of CIFAR-10 or CIFAR-100 has 190

Read = Callable[[str], bytes]


def is_cifar(path: Path) -> bool:
    """Whether a path is CIFAR's archive, or a folder that holds its batches."""
    if path.is_file():
        return path.name in ARCHIVES
    return any(all((path / name).is_file() for name in group) for group in BATCHES)


def open_cifar(path: Path) -> Dataset:
    """The data set in an archive as downloaded, or in the folder that it unpacks to."""
    read = _reader(path)
    for load, layout in ((_load_binary, BINARY), (_load_pickled, PICKLED)):
        for num_classes, files in layout.items():
            if read(files["train"][0]):
                splits = {split: load(read, num_classes, names, split) for split, names in files.items()}
                return Dataset(name=f"cifar{num_classes}", classes=_classes(read, num_classes), splits=splits)
    raise DataError(f"{path}: holds no CIFAR batches (data_batch_1.bin, data_batch_1, train.bin or train).")


def _reader(path: Path) -> Read:
    """The content of a file by its name; nothing if there is no such file."""
    if path.is_file():
        contents = read_archive(path)
        return lambda name: contents.get(name, b"")
    return lambda name: read_bytes(path / name, MAX_BYTES) if (path / name).exists() else b""


def read_archive(path: Path) -> dict[str, bytes]:
    """CIFAR's files in an archive, by name, in whichever folder they are; more than CIFAR's size is refused."""
    layouts = [names for layout in (BINARY, PICKLED) for files in layout.values() for names in files.values()]
    known = {"meta", "fine_label_names.txt", *(name for names in layouts for name in names)}
    check_regular(path)
    contents: dict[str, bytes] = {}
    total = 0
    with cast("IO[bytes]", gzip.open(path)) as file, open_tar(file, str(path), 2 * MAX_BYTES, packed=True) as archive:
        for entry in files_of(archive):
            if Path(entry.name).name in known:
                total += entry.size
                if total > MAX_BYTES:
                    raise DataError(f"{path}: unpacks to {total:,} bytes, and CIFAR has at most {MAX_BYTES:,}.")
                contents[Path(entry.name).name] = read_member(archive, entry)
    return contents


def _load_binary(read: Read, num_classes: int, names: list[str], split: str) -> ArraySource:
    header = 1 if num_classes == 10 else 2  # CIFAR-100 has the coarse label first
    batches: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
    for name in names:
        data = read(name)
        if not data or len(data) % (header + PICTURE_BYTES):
            raise DataError(f"{name}: must hold records of {header + PICTURE_BYTES} bytes; got {len(data)} bytes.")
        batches.append(np.frombuffer(data, dtype=np.uint8).reshape(-1, header + PICTURE_BYTES))
    records = np.concatenate(batches)
    return _source(records[:, header:], records[:, header - 1], num_classes, split)


def _load_pickled(read: Read, num_classes: int, names: list[str], split: str) -> ArraySource:
    pictures: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
    labels: list[int] = []
    for name in names:
        batch = load_inert(read(name), name)
        data, batch_labels = batch.get("data"), batch.get("labels" if num_classes == 10 else "fine_labels")
        if not isinstance(data, InertArray) or not isinstance(batch_labels, list):
            raise DataError(f"{name}: not a batch of CIFAR-{num_classes}, which has an array and a list of labels.")
        try:
            pictures.append(data.array().reshape(-1, PICTURE_BYTES))
        except (DataError, ValueError) as error:
            raise DataError(f"{name}: not a batch of CIFAR-{num_classes} ({error}).") from None
        labels += _check_labels(cast("list[Any]", batch_labels), num_classes, name)
    return _source(np.concatenate(pictures), np.array(labels), num_classes, split)


def _check_labels(labels: list[Any], num_classes: int, name: str) -> list[int]:
    for label in labels:
        if type(label) is not int or not 0 <= label < num_classes:
            raise DataError(f"{name}: has labels that do not fit CIFAR-{num_classes}; the first: {shorten(label)}.")
    return labels


def _source(
    pictures: np.ndarray[Any, np.dtype[np.uint8]], labels: np.ndarray[Any, Any], num_classes: int, split: str
) -> ArraySource:
    if len(pictures) != len(labels) or not len(labels) or labels.max() >= num_classes or labels.min() < 0:
        raise DataError(f"CIFAR-{num_classes} {split}: {len(pictures)} pictures, {len(labels)} labels that do not fit.")
    images = torch.as_tensor(np.array(pictures).reshape(-1, 3, 32, 32))
    return ArraySource(images, labels.astype(np.int64), f"cifar{num_classes}/{split}")


def _classes(read: Read, num_classes: int) -> tuple[str, ...]:
    if num_classes == 10:
        return CIFAR10_CLASSES
    try:
        names = as_text(read("fine_label_names.txt")).split()
        if not names and read("meta"):
            listed: Any = load_inert(read("meta"), "meta").get("fine_label_names", [])
            names = [as_text(name) for name in (cast("list[Any]", listed) if isinstance(listed, list) else [])]
    except DataError as error:
        raise DataError(f"CIFAR-{num_classes}: the class names cannot be read ({error})") from None
    return tuple(names) if len(names) == 100 else tuple(f"class {number:02d}" for number in range(100))

"""CIFAR-10 and CIFAR-100: the binary version, or the Python version read without executing its pickles."""

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from vitrail.data.source import ArraySource, Dataset
from vitrail.errors import DataError

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PICTURE_BYTES = 3 * 32 * 32

# Split → its files. CIFAR-100's are told from CIFAR-10's by their names.
BINARY = {
    10: {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]},
    100: {"train": ["train.bin"], "test": ["test.bin"]},
}
PICKLED = {
    10: {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]},
    100: {"train": ["train"], "test": ["test"]},
}
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar-100-binary", "cifar-100-python")
ARCHIVES = (
    "cifar-10-binary.tar.gz",
    "cifar-10-python.tar.gz",
    "cifar-100-binary.tar.gz",
    "cifar-100-python.tar.gz",
)

MAX_BYTES = 400_000_000  # the whole of CIFAR-10 or CIFAR-100 has 190

Read = Callable[[str], bytes]


def is_cifar(path: Path) -> bool:
    """Whether a path is CIFAR's archive, or a folder that holds its batches."""
    if path.is_file():
        return path.name in ARCHIVES
    names = {"data_batch_1.bin", "data_batch_1", "fine_label_names.txt"}
    return any((path / name).is_file() for name in names) or all(
        (path / name).is_file() for name in ("train", "test", "meta")
    )


def open_cifar(path: Path) -> Dataset:
    """The data set in an archive as downloaded, or in the folder that it unpacks to."""
    read = _archive_reader(path) if path.is_file() else _folder_reader(path)
    for load, layout in ((_load_binary, BINARY), (_load_pickled, PICKLED)):
        for num_classes, files in layout.items():
            if read(files["train"][0]):
                splits = {split: load(read, num_classes, names, split) for split, names in files.items()}
                return Dataset(name=f"cifar{num_classes}", classes=_classes(read, num_classes), splits=splits)
    raise DataError(f"{path}: holds no CIFAR batches (data_batch_1.bin, data_batch_1, train.bin or train).")


def _folder_reader(folder: Path) -> Read:
    return lambda name: (folder / name).read_bytes() if (folder / name).is_file() else b""


def _archive_reader(path: Path) -> Read:
    """The CIFAR files of an archive in memory. Nothing is unpacked to disk, and nothing that is too large."""
    layouts = [names for layout in (BINARY, PICKLED) for files in layout.values() for names in files.values()]
    known = {"meta", "fine_label_names.txt", *(name for names in layouts for name in names)}
    try:
        with tarfile.open(path) as archive:
            members = [item for item in archive if item.isfile() and Path(item.name).name in known]
            total = sum(member.size for member in members)
            if total > MAX_BYTES:
                raise DataError(f"{path}: unpacks to {total:,} bytes, and CIFAR has at most {MAX_BYTES:,}.")
            contents = {Path(member.name).name: cast("Any", archive.extractfile(member)).read() for member in members}
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated archive ({error}); download it again.") from None
    return lambda name: contents.get(name, b"")


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
        try:
            data, found = batch["data"], batch["labels" if num_classes == 10 else "fine_labels"]
            pictures.append(data.array().reshape(-1, PICTURE_BYTES))
            labels += [int(label) for label in found]
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            raise DataError(f"{name}: not a batch of CIFAR-{num_classes} ({type(error).__name__}: {error}).") from None
    return _source(np.concatenate(pictures), np.array(labels), num_classes, split)


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
    names = read("fine_label_names.txt").decode().split()
    if not names and read("meta"):
        names = [_text(name) for name in load_inert(read("meta"), "meta").get("fine_label_names", [])]
    return tuple(names) if len(names) == 100 else tuple(f"class {number:02d}" for number in range(100))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def load_inert(data: bytes, name: str) -> Mapping[str, Any]:
    """A pickled dictionary of plain values and byte arrays; anything else in it is refused, and nothing runs."""
    try:
        value = _InertUnpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle raises anything
        raise DataError(f"{name}: damaged or truncated ({type(error).__name__}: {error}).") from None
    if not isinstance(value, dict):
        raise DataError(f"{name}: must hold a dictionary; got {type(value).__name__}.")
    return {_text(key): item for key, item in cast("dict[Any, Any]", value).items()}


class _InertArray:
    """What a pickle says about a numpy array, kept until `array` has checked it."""

    def __init__(self, *_arguments: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        _, shape, dtype, fortran, data = self.state
        if not isinstance(dtype, _InertType) or _text(dtype.code) not in ("u1", "|u1") or not isinstance(data, bytes):
            raise ValueError("the array must hold unsigned bytes")
        return np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


class _InertType:
    def __init__(self, code: Any = "", *_arguments: Any) -> None:
        self.code = code

    def __setstate__(self, _state: Any) -> None:
        pass


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if _text(encoding) not in ("latin1", "latin-1"):
        raise DataError(f"the pickle wants the unexpected encoding {encoding!r}.")
    return text.encode("latin1") if isinstance(text, str) else bytes(text)


class _InertUnpickler(pickle.Unpickler):
    """Gives inert stand-ins for the few names that CIFAR's files use, and refuses all others."""

    def find_class(self, module: str, name: str, /) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _InertArray
        if module == "numpy" and name in ("ndarray", "dtype"):
            return _InertType
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise DataError(f"the pickle asks for {module}.{name}, which no CIFAR file needs: refused, nothing was run.")

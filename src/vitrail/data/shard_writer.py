"""Writing a data set as webdataset tar shards, with the `shards.json` that lets us read them by index."""

import io
import json
import shlex
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.data.pixels import FORMATS, RASTERS, Picture, open_picture, read_raster
from vitrail.data.preprocess import Preprocess, preset
from vitrail.data.rasters import START, sniff
from vitrail.data.source import TOGETHER, Dataset, Source
from vitrail.data.sources.shards import INDEX
from vitrail.data.transform import as_pixels, to_pil
from vitrail.errors import DataError, InputError
from vitrail.files import sweep_drafts, workshop_in
from vitrail.progress import ending, left_out
from vitrail.registry import labels_of
from vitrail.rng import permutation
from vitrail.threads import in_chunks
from vitrail.untrusted import read_bytes
from vitrail.wording import counted, reason

MAX_FILE = 1 << 30  # bytes of one picture
_COLOR, _GREY = Preprocess(), preset("google", channels=1)


@dataclass(frozen=True, kw_only=True)
class WrittenShards:
    """What `write_shards` did."""

    files: tuple[Path, ...]
    num_samples: int
    skipped: dict[str, str]  # the samples that could not be read, and why

    @property
    def exit_code(self) -> int:
        """1: some pictures could not be read and were left out."""
        return int(bool(self.skipped))

    def lines(self) -> Iterator[Any]:
        """What the command prints."""
        yield f"{counted(self.num_samples, 'picture')} in {counted(len(self.files) - 1, 'shard')}"
        yield from left_out(self.skipped)
        yield from ending([self.files[-1]], shlex.join(["vitrail", "data", "check", str(self.files[-1].parent)]))


def write_shards(
    dataset: Dataset,
    folder: Path,
    *,
    max_bytes: int = 200_000_000,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> WrittenShards:
    """Write every split, shuffled once, so that neighbours in a shard differ in class. Files are copied unchanged.

    Nothing is in its place before everything is written, so an interrupted set is absent, and can be written anew.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder}: must be a folder, new or empty; it is a file.")
    skipped: dict[str, str] = {}
    index: dict[str, list[dict[str, Any]]] = {}
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep_drafts(folder)
        if any(folder.iterdir()):
            raise DataError(f"{folder}: must be empty or not exist, so that old and new shards do not mix.")
        with workshop_in(folder) as workshop:  # inside, since the folder may be a mounted disk
            for split, source in dataset.splits.items():
                samples = _samples(dataset, source, seed, skipped, progress)
                index[split] = list(_write_split(samples, workshop, split, max_bytes))
            content = {**_header(dataset), "classes": list(dataset.classes), "splits": index}
            (workshop / INDEX).write_text(json.dumps(content), encoding="utf-8")
            entries = [entry for some in index.values() for entry in some]
            names = [entry["file"] for entry in entries]
            _move([INDEX, *names], workshop, folder)  # the index first: it refuses a set of which a shard is missing
    except OSError as error:
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise DataError(f"{folder}: cannot be written ({reason(error)}).") from error
    files = tuple(folder / name for name in (*names, INDEX))
    return WrittenShards(files=files, num_samples=sum(len(entry["labels"]) for entry in entries), skipped=skipped)


def _move(names: Sequence[str], workshop: Path, folder: Path) -> None:
    """All files, or none."""
    try:
        for name in names:
            (workshop / name).replace(folder / name)
    except OSError:
        for name in reversed(names):
            (folder / name).unlink(missing_ok=True)
        raise


class _Sample(NamedTuple):
    """One picture as it is written."""

    picture: bytes
    extension: str
    label: Any  # in shards.json
    beside: tuple[str, bytes]  # the extension and content of the file that has the label


def _header(dataset: Dataset) -> dict[str, Any]:
    """What shards.json says of its labels: nothing of classes, which older versions read too."""
    kind = labels_of(dataset.task)
    return {"format": 1} if kind == "class" else {"format": 2, "labels": kind}


def _describe(row: Any, dataset: Dataset) -> tuple[Any, tuple[str, bytes]]:
    """A label in shards.json, and in the file beside its picture."""
    kind, names = labels_of(dataset.task), dataset.classes
    if kind == "class":
        return int(row), ("cls", str(int(row)).encode())
    if kind == "set":
        places: list[int] = np.flatnonzero(row).tolist()
        return places, ("json", json.dumps({"label": [names[place] for place in places]}).encode())
    values: list[float] = np.asarray(row).tolist()
    return values, ("json", json.dumps({"label": dict(zip(names, values, strict=True))}).encode())


def _samples(
    dataset: Dataset, source: Source, seed: int, skipped: dict[str, str], progress: Callable[[int], None]
) -> Iterator[_Sample]:
    """The pictures in a shuffled order."""
    for some in in_chunks(permutation(seed, 0, len(source), "shards").tolist(), TOGETHER):
        source.prefetch(some)
        for index in some:
            progress(1)
            try:
                data, extension = encode(source.picture(index))
            except (InputError, OSError) as error:
                skipped[source.key(index)] = reason(error)
                continue
            yield _Sample(data, extension, *_describe(source.labels[index], dataset))


def encode(picture: Picture) -> tuple[bytes, str]:
    """A picture's file content and extension; one that is not a file yet becomes a PNG."""
    if isinstance(picture, np.ndarray | Tensor):
        picture = to_pil(as_pixels(picture, _GREY if 1 in picture.shape or picture.ndim == 2 else _COLOR))
    if isinstance(picture, Image.Image):
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        return buffer.getvalue(), "png"
    data = picture if isinstance(picture, bytes) else read_bytes(Path(picture), MAX_FILE, InputError)
    if (kind := sniff(data[:START])) and read_raster(data, "picture") is not None:
        return data, (RASTERS.get(kind) or FORMATS[kind])[0].lstrip(".")
    with open_picture(data) as image:
        return data, FORMATS["JPEG" if image.format == "MPO" else str(image.format)][0].lstrip(".")


def _write_split(samples: Iterator[_Sample], folder: Path, split: str, max_bytes: int) -> Iterator[dict[str, Any]]:
    """Fill one shard after another and list the contents of each."""
    number, waiting = 0, next(samples, None)
    while waiting is not None:
        path = folder / f"{split}-{number:06d}.tar"
        labels: list[Any] = []
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            while waiting is not None and (not labels or archive.offset + len(waiting.picture) <= max_bytes):
                name = f"{number:06d}{len(labels):06d}"
                _add(archive, f"{name}.{waiting.extension}", waiting.picture)
                _add(archive, f"{name}.{waiting.beside[0]}", waiting.beside[1])
                labels.append(waiting.label)
                waiting = next(samples, None)
        yield {"file": path.name, "bytes": path.stat().st_size, "labels": labels}
        number += 1


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)  # without times and owners: the same data give the same shards
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))

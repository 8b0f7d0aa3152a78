"""What every picture source provides: pictures by index, their labels, and a name for each sample."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Self

import numpy as np

from vitrail.data.config import MAX_BROKEN_RATE, DataConfig
from vitrail.data.label_kinds import LABELLINGS, Labelling, Labels, as_labels
from vitrail.data.labels import Doubt, doubt_labels
from vitrail.data.pixels import Picture
from vitrail.data.preprocess import Preprocess, Range, preset
from vitrail.data.split import UNUSED, split_samples, stratify
from vitrail.errors import DataError, list_names, shorten
from vitrail.registry import NO_TASK, labels_of
from vitrail.rng import Integers
from vitrail.storage import FileState, is_address
from vitrail.threads import in_chunks
from vitrail.wording import counted

if TYPE_CHECKING:
    from torch import Tensor


TABLES = (".csv", ".tsv", ".parquet")
# Names that reveal nothing about a folder or a table, and folders that are never named after data.
GENERIC = frozenset(
    {"data", "dataset", "datasets", "images", "imgs", "pictures", "photos", "train", "training", "test", "val"}
    | {"labels", "annotations", "metadata", "extracted", "unzipped", "download", "downloads"}
)
ELSEWHERE = frozenset({"", "tmp", "home", "root", "mnt", "media", "users", "content", "workspace", "work"})
TOGETHER = 64  # pictures that are fetched at once
SMALL_SIDE = 64  # pictures up to this side are not cropped, since every pixel counts


class Source(ABC):
    """The pictures and labels of one split."""

    def __init__(self, labels: Sequence[int] | Labels) -> None:
        self.labels = as_labels(labels)  # a row for each picture

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def picture(self, index: int) -> Picture:
        """One picture, still encoded if that is how the source holds it."""

    def require_room(self) -> None:  # noqa: B027 - most have nothing to fetch
        """Raise if all pictures will be fetched, and the disk has no room for them."""

    def prefetch(self, indices: Sequence[int] | Integers) -> None:  # noqa: B027
        """Have some pictures at hand that are needed next: those of a store are fetched many at once."""

    def stream(self, indices: Iterable[int]) -> Iterator[tuple[str, Picture]]:
        """Samples by their names, one after the other."""
        for some in in_chunks(indices, TOGETHER):
            self.prefetch(some)
            for index in some:
                yield self.key(index), self.offer(index)

    def offer(self, index: int) -> Picture:
        """A picture, or what raises when it is opened: where it should be."""
        return self.picture(index)

    @abstractmethod
    def key(self, index: int) -> str:
        """The name of one sample, the same every time: what messages, split files and reports show."""

    def keys(self) -> list[str]:
        """The names of all samples."""
        return [self.key(index) for index in range(len(self))]

    @abstractmethod
    def select(self, indices: Sequence[int] | Integers) -> "Source":
        """A part of this source, in the order given."""

    @property
    def blocks(self) -> Sequence[int] | None:
        """The lengths of the blocks (shards) that are best read one after another, if there are any."""
        return None


class ArraySource(Source):
    """Pictures that live in memory: bytes (N, C, H, W)."""

    def __init__(self, images: "Tensor", labels: Sequence[int] | Labels, keys: Sequence[str] | str) -> None:
        super().__init__(labels)
        assert images.ndim == 4
        assert len(images) == len(self.labels)
        self.images = images
        self._keys = keys  # one per sample, or the prefix of "prefix/index"

    def picture(self, index: int) -> "Tensor":
        return self.images[index]

    def key(self, index: int) -> str:
        return f"{self._keys}/{index}" if isinstance(self._keys, str) else self._keys[index]

    def select(self, indices: Sequence[int] | Integers) -> "ArraySource":
        chosen = np.asarray(indices, dtype=np.int64)
        return ArraySource(self.images[chosen], self.labels[chosen], [self.key(index) for index in chosen.tolist()])


class FileSource(Source):
    """Pictures that are files, by their names below `root`: texts, since a `Path` for each of millions takes long."""

    def __init__(self, names: Sequence[str], labels: Sequence[int] | Labels, root: Path) -> None:
        super().__init__(labels)
        self.names = names  # with "/" between folders on every system; absolute for a file elsewhere
        self.root = root

    def picture(self, index: int) -> Path | bytes:
        return self.root / self.names[index]

    def key(self, index: int) -> str:
        return self.names[index]

    def keys(self) -> list[str]:
        return list(self.names)

    def state(self, index: int) -> FileState | None:
        """What tells whether a file was replaced, if that is known without looking."""
        return None

    def size(self, index: int) -> int:
        """The bytes of a file; -1 if it is gone, which is reported when it is read."""
        try:
            return (self.root / self.names[index]).stat().st_size
        except OSError:
            return -1

    def renamed(self, names: Sequence[str], labels: Sequence[int] | Labels) -> "FileSource":
        """Other files of the same place."""
        return FileSource(names, labels, self.root)

    def select(self, indices: Sequence[int] | Integers) -> "FileSource":
        chosen: list[int] = np.asarray(indices, dtype=np.int64).tolist()
        return FileSource([self.names[index] for index in chosen], self.labels[chosen], self.root)


class RowSource(Source):
    """Pictures that are rows of something, which samples are named after; a part of it keeps the rows' numbers."""

    def __init__(self, name: str, labels: Sequence[int] | Labels, rows: Integers | None = None) -> None:
        super().__init__(labels)
        self.name = name
        self.rows = np.arange(len(self.labels)) if rows is None else rows  # of each sample, (N,) or (N, …)

    def key(self, index: int) -> str:
        return f"{self.name}:{self.rows[index]}"

    def select(self, indices: Sequence[int] | Integers) -> Self:
        part, chosen = copy(self), np.asarray(indices, dtype=np.int64)
        part.rows, part.labels = self.rows[chosen], self.labels[chosen]
        return part


class JoinedSource(Source):
    """Several sources, one after the other; or those of their pictures that were chosen."""

    def __init__(self, parts: Sequence[Source], chosen: Integers | None = None) -> None:
        labels = np.concatenate([part.labels for part in parts])
        self._chosen = np.arange(len(labels)) if chosen is None else chosen
        super().__init__(labels[self._chosen])
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def _locate(self, index: int) -> tuple[Source, int]:
        place = int(self._chosen[index])
        part = int(np.searchsorted(self._ends, place, side="right"))
        return self._parts[part], place - int(self._ends[part]) + len(self._parts[part])

    def picture(self, index: int) -> Picture:
        part, offset = self._locate(index)
        return part.picture(offset)

    def require_room(self) -> None:
        for part in self._parts:
            part.require_room()

    def prefetch(self, indices: Sequence[int] | Integers) -> None:
        places: dict[int, list[int]] = {}
        for index in indices:
            part, offset = self._locate(int(index))
            places.setdefault(self._parts.index(part), []).append(offset)
        for part, offsets in places.items():
            self._parts[part].prefetch(offsets)

    def offer(self, index: int) -> Picture:
        part, offset = self._locate(index)
        return part.offer(offset)

    def key(self, index: int) -> str:
        part, offset = self._locate(index)
        return part.key(offset)

    def select(self, indices: Sequence[int] | Integers) -> Source:
        return JoinedSource(self._parts, self._chosen[np.asarray(indices)])


def join_sources(first: Source, second: Source) -> Source:
    """The pictures of both, one after the other: of the same kind, where they can be."""
    labels = np.concatenate([first.labels, second.labels])
    if isinstance(first, ArraySource) and isinstance(second, ArraySource):
        import torch

        return ArraySource(torch.cat([first.images, second.images]), labels, first.keys() + second.keys())
    if type(first) is FileSource and type(second) is FileSource and first.root == second.root:
        return first.renamed(first.keys() + second.keys(), labels)
    return JoinedSource([first, second])


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set: what its labels mean, the names of the model's outputs, and its splits."""

    name: str
    classes: tuple[str, ...]  # or the labels, or the names of the values
    splits: Mapping[str, Source]
    task: str = "one"  # what a label is: `registry.TASKS`
    made_split: bool = False  # vitrail made the splits, so a run should record them
    ignored: tuple[str, ...] = ()  # skipped files: not a picture, or without a class
    unused: tuple[tuple[str, str], ...] = ()  # samples left out, and their classes: `sample`, and of a split file
    excluded: Mapping[str, Source] = field(
        default_factory=dict[str, Source], repr=False
    )  # split → left out by the user
    groups: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # of each key, if they stay together
    max_broken_rate: float = MAX_BROKEN_RATE  # of a split's pictures; they are left out
    named_task: bool = False  # by the user, who need not be asked whether another one is meant
    assumed: tuple[str, ...] = ()  # what was chosen from the data, a sentence each

    def __post_init__(self) -> None:
        labelling = self.labelling
        if len(self.classes) < labelling.fewest:
            needs = "two classes" if labelling.fewest > 1 else f"one {labelling.noun}"
            raise DataError(f"{self.name}: needs at least {needs}; got {list_names(self.classes) or 'none'}.")
        if "train" not in self.splits or not len(self.splits["train"]):
            raise DataError(f"{self.name}: has no training pictures; got {_sizes(self.splits)}.")
        for name, source in self.splits.items():
            if not labelling.fits(source.labels, len(self.classes)):
                form = f"{source.labels.dtype} {source.labels.shape}"
                raise DataError(f"{self.name}: the labels of {name} must be those of `task={self.task}`; got {form}.")
        if empty := labelling.missing(self.splits["train"].labels, self.classes):
            noun = labelling.noun
            raise DataError(f"{self.name}: no training pictures of {list_names(empty)}; add some or remove the {noun}.")

    def __repr__(self) -> str:
        return f"<Dataset {self.name}: {self.described_outputs}; {_sizes(self.splits)}>"

    @property
    def labelling(self) -> Labelling:
        """What depends on the kind of the labels."""
        return LABELLINGS[labels_of(self.task)]

    @property
    def described_outputs(self) -> str:
        """How many classes, labels or values there are, in words."""
        return counted(len(self.classes), self.labelling.noun) if self.task != NO_TASK else self.labelling.what

    def require_classes(self, what: str) -> None:
        """Raise unless each picture has one class, which `what` needs."""
        if labels_of(self.task) != "class":
            raise DataError(
                f"{self.name}: {what} needs one class per picture; these data have {self.labelling.what} "
                f"(`task={self.task}`)."
            )

    def caption(self, split: str, index: int) -> str:
        """The label of one picture, for people."""
        return self.labelling.caption(self.splits[split].labels[index], self.classes)

    def cells(self, source: Source, indices: Iterable[int]) -> list[tuple[str, str]]:
        """Samples by their names, each with its label as split.csv has it."""
        cell = self.labelling.cell
        return [(source.key(index), cell(source.labels[index], self.classes)) for index in indices]

    @property
    def num_pictures(self) -> int:
        """The pictures of all splits."""
        return sum(len(source) for source in self.splits.values())

    def doubt_labels(self) -> Doubt | None:
        """Why the labels are probably not the ones to learn, if they look wrong."""
        if labels_of(self.task) != "class":
            return None
        doubt = doubt_labels(self.classes, self.num_pictures)
        return None if doubt is not None and doubt.kind is not None and self.named_task else doubt

    def refuse_labels(self) -> None:
        """Raise for labels that are almost certainly a mistake."""
        doubt = self.doubt_labels()
        if doubt is not None and doubt.certain:
            how = "If these are the classes you mean, `check=False` trains on them."
            raise DataError(f"{self.name}: {doubt.what}, such as {shorten(doubt.example)}: {doubt.detail}. {how}")

    def split(self, name: str) -> Source:
        """One split by its name."""
        if name not in self.splits:
            raise DataError(f"{self.name}: has no split {name!r}; got {_sizes(self.splits)}.")
        return self.splits[name]

    def without_labels(self) -> "Dataset":
        """The same pictures, for what needs no labels."""
        splits = {name: _without_labels(source) for name, source in self.splits.items()}
        return replace(self, splits=splits, classes=(), task=NO_TASK, assumed=())

    def with_validation(self, rate: float = 0.1, seed: int = 0) -> "Dataset":
        """The same data with a validation split: its own, or else a stratified part of the training pictures."""
        if "val" in self.splits:
            return self
        train, rest = self.splits["train"], self.excluded.get("train")
        keys, labels = train.keys(), train.labels
        if rest is not None:  # which decide with the others where the border is, so that it stays where it was
            keys, labels = keys + rest.keys(), np.concatenate([labels, rest.labels])
        parts = stratify(keys, labels, {"val": rate}, seed, self.groups)
        parts = {name: indices[indices < len(train)] for name, indices in parts.items()}
        made = {name: train.select(indices) for name, indices in parts.items() if len(indices)}
        return replace(self, splits={**self.splits, **made}, made_split=True)

    def pooled(self) -> "Dataset":
        """The same data with the validation pictures among those for training: folds hold out their own."""
        rest = {name: source for name, source in self.splits.items() if name != "val"}
        if "val" in self.splits:
            rest["train"] = join_sources(self.splits["train"], self.splits["val"])
        return replace(self, splits=rest, made_split=True)

    def sample(self, share: float, seed: int = 0) -> "Dataset":
        """A share of each split, the classes in the same proportions, and at least one picture of each."""
        splits: dict[str, Source] = {}
        unused: list[tuple[str, str]] = []
        for name, source in self.splits.items():
            keys = source.keys()
            parts = stratify(keys, source.labels, {"unused": 1 - share}, seed)
            splits[name] = source.select(parts["train"])
            unused += self.cells(source, parts["unused"].tolist())
        return replace(self, splits=splits, unused=(*self.unused, *unused), made_split=True)


def _without_labels(source: Source) -> Source:
    part = source.select(np.arange(len(source)))
    part.labels = as_labels(np.zeros((len(source), 0), dtype=np.float32))
    return part


def split_dataset(
    name: str,
    classes: Sequence[str],
    source: Source,
    config: DataConfig,
    ignored: Sequence[str] = (),
    *,
    task: str = "one",
    assumed: tuple[str, ...] = (),
) -> Dataset:
    """A data set of pictures that come without splits, split as configured."""
    parts = split_samples(config, source.keys(), source.labels)
    unused = parts.pop(UNUSED, np.zeros(0, dtype=np.int64)).tolist()
    dataset = Dataset(
        name=name,
        classes=tuple(classes),
        splits={split: source.select(indices) for split, indices in parts.items()},
        made_split=config.split_file is None,
        ignored=tuple(ignored),
        task=task,
        assumed=assumed,
    )
    return replace(dataset, unused=tuple(dataset.cells(source, unused))) if unused else dataset


def list_broken(broken: Mapping[str, str], most: int = 5) -> str:
    """The first pictures that cannot be read, and why, as the end of an error: a line for each."""
    some = "".join(f"\n  {key}: {why}" for key, why in list(broken.items())[:most])
    return some + (f"\n  and {len(broken) - most:,} more" if len(broken) > most else "")


def refuse_broken(broken: Mapping[str, str], count: int, rate: float | None = None, share: float = 0.0) -> None:
    """Raise if too many of `count` pictures cannot be read: picture → why.

    `rate` is the user's `max_broken_rate`, None where there is no such setting; `share` the highest of any split.
    """
    most, share = MAX_BROKEN_RATE if rate is None else rate, max(share, len(broken) / count)
    if share <= most and len(broken) < count:
        return
    skip = f", or leave them out with `max_broken_rate={math.ceil(100 * share) / 100:g}`"
    raise DataError(
        f"{len(broken):,} of {counted(count, 'picture')} cannot be read, more than {100 * most:.3g} % of a split:"
        f"{list_broken(broken)}\nRepair or remove them (vitrail data check lists them all)"
        f"{'' if rate is None or share >= 1 else skip}."
    )


def _sizes(splits: Mapping[str, Source]) -> str:
    return ", ".join(f"{name} ({len(source)})" for name, source in splits.items()) or "no split"


def align_labels(name: str, names: Mapping[str, Sequence[str]], *, same_everywhere: bool = False) -> tuple[str, ...]:
    """The class names, sorted, that all splits agree on: split → the names it uses."""
    classes = sorted(set(names.get("train", ())))
    for split, used in names.items():
        unknown = sorted(set(used) - set(classes))
        if unknown:
            every = [label for labels in names.values() for label in labels]
            doubt = doubt_labels(sorted(set(every)), len(every))
            advice = f"{doubt.what}: {doubt.detail}" if doubt else "Rename them or add training pictures"
            raise DataError(
                f"{name}: {split} has classes that train lacks: {list_names(unknown)}; "
                f"train has: {list_names(classes)}. {advice}."
            )
        missing = sorted(set(classes) - set(used))
        if missing and same_everywhere:
            raise DataError(
                f"{name}: {split} lacks the classes {list_names(missing)} that train has. "
                f"Add pictures, or an empty folder if that is intended."
            )
    return tuple(classes)


def name_after(where: str | Path) -> str:
    """The name of data in a folder or a file: `flowers` for flowers/dataset and for flowers/labels.csv."""
    if is_address(where):
        own = PurePosixPath(str(where).partition("://")[2])
        first = own.stem if own.suffix.lower() in TABLES else own.name
    else:
        own = Path(where).absolute()
        first = own.stem if own.is_file() else own.name
    if first.lower() not in GENERIC:
        return first
    for folder in own.parents:
        if folder.name.lower() in ELSEWHERE:
            break
        if folder.name.lower() not in GENERIC:
            return folder.name
    return first


def default_preprocess(
    dataset: Dataset,
    size: tuple[int, int] | int | None = None,
    family: str | None = None,
    channels: int | None = None,
    value_range: Range | None = None,
) -> Preprocess:
    """A family's preset if one is named; else the pictures' own size and channels in memory, 224 and RGB for files."""
    source = dataset.split("train")
    if isinstance(source, ArraySource):
        own, height, width = source.images.shape[1:]
        channels = channels or own
        size = (height, width) if size is None else size
    spec = replace(preset(family or "timm", size, channels or 3), value_range=value_range)
    if family is not None:
        return spec
    return replace(spec, interpolation="bilinear", crop=1.0 if max(spec.size) <= SMALL_SIDE else spec.crop)

"""Sheets for people: the data set class by class, and what the model really sees of it."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.augment.config import Augment
from vitrail.data.check.report import Report
from vitrail.data.chunks import ChunkMaker
from vitrail.data.preprocess import Preprocess
from vitrail.data.sheet import Row, Tile, draw_sheet
from vitrail.data.source import Dataset, Source
from vitrail.data.transform import denormalize, pixels, to_pil
from vitrail.draws import Draws, permutation
from vitrail.errors import InputError
from vitrail.wording import counted

COLUMNS = 8
MAX_CLASSES = 24
MAX_PAIRS = 12
_COLOR = Preprocess()


def contact_sheet(report: Report) -> Image.Image:
    """Some pictures of every class, and duplicates side by side."""
    dataset, counts = report.dataset, report.counts()
    rows = [
        Row(
            title=name,
            note="  ".join(f"{split} {count:,}" for split, count in counts[name].items()),
            tiles=list(_class_tiles(dataset, label)),
        )
        for label, name in enumerate(dataset.classes[:MAX_CLASSES])
    ]
    rows += _duplicate_rows(report)
    total = sum(len(source) for source in dataset.splits.values())
    shown = "" if len(dataset.classes) <= MAX_CLASSES else f", the first {MAX_CLASSES} shown"
    return draw_sheet(
        f"{dataset.name}: {counted(total, 'picture')}, {counted(len(dataset.classes), 'class')}{shown}",
        rows,
        smooth=False,
    )


def _class_tiles(dataset: Dataset, label: int) -> Iterator[Tile]:
    """Pictures of a class from all its splits, most of them from training."""
    others = [name for name in dataset.splits if name != "train"]
    for split, share in (("train", COLUMNS - len(others)), *((name, 1) for name in others)):
        source = dataset.splits[split]
        members = np.flatnonzero(source.labels == label)
        chosen = members[permutation(0, 0, len(members))[:share]]
        for index in chosen.tolist():
            yield Tile(image=_load(source, index), caption=split)


def _duplicate_rows(report: Report) -> list[Row]:
    """The pairs that matter most: pictures in two splits or two classes."""
    serious = [item.pair for item in report.findings if item.pair and "two" in item.what][:MAX_PAIRS]
    pairs: list[Tile] = []
    for fact in (fact for pair in serious for fact in pair):
        image = _load(report.dataset.splits[fact.split], fact.index)
        pairs.append(Tile(image=image, caption=f"{fact.split} {report.dataset.classes[fact.label]}"))
    title = "the same picture, or nearly, in two splits or classes"
    return [
        Row(title=title if start == 0 else "", tiles=pairs[start : start + COLUMNS])
        for start in range(0, len(pairs), COLUMNS)
    ]


def _load(source: Source, index: int) -> Image.Image | None:
    """One picture, or nothing if it cannot be read."""
    try:
        return to_pil(pixels(source.picture(index), _COLOR))
    except (InputError, OSError):
        return None


def augmentation_sheet(
    dataset: Dataset, preprocess: Preprocess, augment: Augment, *, seed: int = 0, num_pictures: int = 8
) -> Image.Image:
    """Training pictures as the model gets them: in evaluation, then in one epoch after the other."""
    source = dataset.split("train")
    samples = permutation(seed, 0, len(source))[: min(num_pictures, len(source))]
    columns: list[list[Tile]] = []
    for column in range(COLUMNS):
        epoch, repeat = divmod(max(column - 1, 0), augment.repeats)
        maker = ChunkMaker(source, preprocess, augment if column else None, len(dataset.classes))
        images = torch.empty(len(samples), preprocess.channels, *preprocess.size)
        draws = Draws(seed, epoch, samples, repeat)
        chunk = maker.make(samples, draws, images, substitute=True)
        shown = denormalize(images, preprocess)
        columns.append(
            [
                Tile(
                    image=to_pil(_visible(image)), caption=_caption(target, dataset.classes, epoch if column else None)
                )
                for image, target in zip(shown, chunk.targets, strict=True)
            ]
        )
    rows = [Row(title="", tiles=tiles) for tiles in zip(*columns, strict=True)]
    height, width = preprocess.size
    heading = f"{dataset.name} at {width}×{height}: in evaluation (left), then in training, epoch after epoch"
    return draw_sheet(heading, rows, smooth=False)


def _visible(image: Tensor) -> Tensor:
    return image if len(image) in (1, 3) else image[:1]


def _caption(target: Tensor, classes: Sequence[str], epoch: int | None) -> str:
    if epoch is None:
        return classes[int(target if target.ndim == 0 else target.argmax())]
    if target.ndim == 0:
        return f"epoch {epoch}"
    shares = [(float(target[label]), name) for label, name in enumerate(classes) if target[label] >= 0.005]
    return "\n".join(f"{share:.0%} {name}" for share, name in sorted(shares, reverse=True))

"""Sheets of pictures for people: the data set class by class, and what the model really sees of it, as one PNG."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vitrail.data.check.findings import Report
from vitrail.data.chunks import ChunkMaker
from vitrail.data.config import Augment
from vitrail.data.pixels import Picture
from vitrail.data.preprocess import Preprocess
from vitrail.data.source import Dataset, Source
from vitrail.data.transform import denormalize, look_at_picture, to_pil
from vitrail.errors import InputError
from vitrail.registry import LabelKind, labels_of
from vitrail.rng import Draws, permutation
from vitrail.wording import counted

TILE = 112
GAP = 8
CAPTION = 17  # pixels of one caption line
TITLE = 30
HEADING = 22  # pixels of each further line of the heading
MARGIN = 16
PAPER, INK, FAINT, EMPTY = "#ffffff", "#1b1b1f", "#6b6b76", "#ececf1"
COLUMNS = 8  # tiles of a row
MAX_CLASSES, MAX_PAIRS = 24, 12  # that are shown


@dataclass(frozen=True)
class Tile:
    """One picture with a line or two below it; without a picture, an empty space."""

    image: Image.Image | None
    caption: str = ""


@dataclass(frozen=True)
class SheetRow:
    """Tiles under one title."""

    title: str
    tiles: Sequence[Tile]
    note: str = ""  # beside the title, fainter


def draw_sheet(heading: str, rows: Sequence[SheetRow], *, smooth: bool = True, tile: int = TILE) -> Image.Image:
    """All rows below one another, tiles `tile` wide; small pictures keep their pixels visible unless `smooth`."""
    columns = max((len(row.tiles) for row in rows), default=1)
    heights = [_row_height(row, tile) for row in rows]
    width = max(2 * MARGIN + columns * (tile + GAP) - GAP, 480)
    lines = wrap_text(heading, width - 2 * MARGIN, font_of(17))
    head = TITLE + HEADING * (len(lines) - 1)
    sheet = Image.new("RGB", (width, 2 * MARGIN + head + sum(heights)), PAPER)
    pen = ImageDraw.Draw(sheet)
    for number, line in enumerate(lines):
        pen.text((MARGIN, MARGIN + HEADING * number), line, INK, font=font_of(17))
    top = MARGIN + head + 4
    for row, height in zip(rows, heights, strict=True):
        _draw_row(sheet, pen, row, top, width, smooth, tile)
        top += height
    return sheet


def _row_height(row: SheetRow, side: int) -> int:
    lines = max((len(tile.caption.splitlines()) for tile in row.tiles), default=0)
    return (TITLE - 6 if row.title else 0) + _picture_height(row, side) + CAPTION * lines + GAP + 4


def _picture_height(row: SheetRow, side: int) -> int:
    """The height of the row's tallest picture."""
    return max((_size(tile.image, side)[1] if tile.image else side for tile in row.tiles), default=side)


def _draw_row(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, row: SheetRow, top: int, width: int, smooth: bool, side: int
) -> None:
    if row.title:
        bold = font_of(13, bold=True)
        title = _shorten(row.title, width // 2, bold)
        pen.text((MARGIN, top), title, INK, font=bold)
        pen.text((MARGIN + bold.getlength(title) + 10, top), drawable(row.note), FAINT, font=font_of(13))
        top += TITLE - 6
    height = _picture_height(row, side)
    for column, tile in enumerate(row.tiles):
        left = MARGIN + column * (side + GAP)
        if tile.image is None:
            pen.rectangle((left, top, left + side - 1, top + height - 1), EMPTY)
        else:
            pixelated = max(tile.image.size) < side and not smooth
            kernel = Image.Resampling.NEAREST if pixelated else Image.Resampling.BICUBIC
            small = tile.image.convert("RGB").resize(_size(tile.image, side), kernel)
            sheet.paste(small, (left + (side - small.width) // 2, top + (height - small.height) // 2))
        large = side >= 2 * TILE
        small_print = font_of(13 if large else 11)
        for line, text in enumerate(tile.caption.splitlines()):
            corner = (left, top + height + 1 + line * (CAPTION - 2))
            ink = INK if large and line == 0 else FAINT
            pen.text(corner, _shorten(text, side, small_print), ink, font=small_print)


def _size(image: Image.Image, side: int) -> tuple[int, int]:
    """Width and height, the longer of which is `side`."""
    scale = side / max(image.size)
    return max(round(image.width * scale), 1), max(round(image.height * scale), 1)


def drawable(text: str) -> str:
    """A text on one line, all of which can be drawn: names may hold line breaks, control codes, lone surrogates."""
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else "\ufffd" for sign in text[:1000])


def font_of(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """matplotlib's font, which has more scripts than Pillow's."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, size)


def wrap_text(text: str, width: float, font: ImageFont.FreeTypeFont) -> list[str]:
    """A text broken between words, so that each line fits; a word that is longer than a line is shortened."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return [_shorten(line, width, font) for line in lines]


def _shorten(text: str, width: float, font: ImageFont.FreeTypeFont) -> str:
    text = drawable(text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def contact_sheet(report: Report) -> Image.Image:
    """Some pictures of every class, and duplicates side by side."""
    dataset, counts = report.dataset, report.counts()
    rows: list[SheetRow] = []
    for label, name in enumerate(dataset.classes[:MAX_CLASSES]):
        note = "  ".join(f"{split} {count:,}" for split, count in counts[name].items())
        rows.append(SheetRow(name, list(TILES[labels_of(dataset.task)](dataset, label)), note))
    shown = "" if len(dataset.classes) <= MAX_CLASSES else f", the first {MAX_CLASSES} shown"
    size = f"{counted(dataset.num_pictures, 'picture')}, {dataset.described_outputs}"
    return draw_sheet(f"{dataset.name}: {size}{shown}", rows + _duplicate_rows(report), smooth=False)


def _class_tiles(dataset: Dataset, label: int) -> Iterator[Tile]:
    """Pictures of a class from all its splits, most of them from training."""
    others = [name for name in dataset.splits if name != "train"]
    for split, share in (("train", COLUMNS - len(others)), *((name, 1) for name in others)):
        source = dataset.splits[split]
        members = np.flatnonzero(source.labels == label if source.labels.ndim == 1 else source.labels[:, label])
        chosen = members[permutation(0, 0, len(members))[:share]]
        source.prefetch(chosen)
        for index in chosen.tolist():
            also = "" if source.labels.ndim == 1 else f"\n{dataset.caption(split, index)}"
            yield Tile(load_picture(source, index), f"{split}{also}")


def _value_tiles(dataset: Dataset, place: int) -> Iterator[Tile]:
    """Training pictures from the smallest value to the largest, in even steps of their ranks."""
    source = dataset.splits["train"]
    order = np.argsort(source.labels[:, place], kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, COLUMNS).round().astype(np.int64))]
    source.prefetch(chosen)
    for index in chosen.tolist():
        yield Tile(load_picture(source, index), f"{dataset.classes[place]} {source.labels[index, place]:.4g}")


TILES: dict[LabelKind, Callable[[Dataset, int], Iterator[Tile]]] = {
    "class": _class_tiles,
    "set": _class_tiles,
    "values": _value_tiles,
}


def _duplicate_rows(report: Report) -> list[SheetRow]:
    """The pairs that matter most: pictures in two splits or two classes."""
    serious = [item.pair for item in report.findings if item.pair and "two" in item.what][:MAX_PAIRS]
    pairs: list[Tile] = []
    for fact in (fact for pair in serious for fact in pair):
        image = load_picture(report.dataset.splits[fact.split], fact.index)
        pairs.append(Tile(image, f"{fact.split} {report.dataset.caption(fact.split, fact.index)}"))
    return wrap_tiles("the same picture, or nearly, in two splits or classes", pairs)


def wrap_tiles(title: str, tiles: Sequence[Tile]) -> list[SheetRow]:
    """Rows of at most `COLUMNS` tiles, with the title at the first."""
    return [
        SheetRow(title=title if start == 0 else "", tiles=tiles[start : start + COLUMNS])
        for start in range(0, len(tiles), COLUMNS)
    ]


def load_picture(source: Source, index: int) -> Image.Image | None:
    """One picture of a data set, or nothing if it cannot be read."""
    try:
        return draw_picture(source.picture(index))
    except (InputError, OSError):
        return None


def draw_picture(picture: Picture) -> Image.Image | None:
    """A picture as it can be drawn, or nothing if it cannot be read."""
    try:
        return look_at_picture(picture)
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
        when = epoch if column else None
        columns.append(
            [
                Tile(to_pil(image), _caption(target, dataset, when))
                for image, target in zip(shown, chunk.targets, strict=True)
            ]
        )
    rows = [SheetRow(title="", tiles=tiles) for tiles in zip(*columns, strict=True)]
    height, width = preprocess.size
    heading = f"{dataset.name} at {width}×{height}: in evaluation (left), then in training, epoch after epoch"
    return draw_sheet(heading, rows, smooth=False)


def _caption(target: Tensor, dataset: Dataset, epoch: int | None) -> str:
    """What a picture is labelled as in evaluation; of mixed ones, the shares of its labels, or its values."""
    if epoch is None:
        return dataset.labelling.caption(target.numpy(), dataset.classes)
    if not target.is_floating_point():
        return f"epoch {epoch}"
    if labels_of(dataset.task) == "values":
        return f"epoch {epoch}\n{dataset.labelling.caption(target.numpy(), dataset.classes)}"
    if labels_of(dataset.task) == "class" and bool((target == target[0]).all()):
        return "an outlier,\nof no class"
    shares = [(float(target[label]), name) for label, name in enumerate(dataset.classes) if target[label] >= 0.005]
    return "\n".join(f"{share:.0%} {name}" for share, name in sorted(shares, reverse=True))

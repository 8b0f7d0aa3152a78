"""Sheets of pictures that a person looks at: rows of tiles with captions, as one PNG."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

TILE = 112
GAP = 8
CAPTION = 17  # pixels of one caption line
TITLE = 30
MARGIN = 16
PAPER, INK, FAINT, EMPTY = "#ffffff", "#1b1b1f", "#6b6b76", "#ececf1"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One picture with a line or two below it; without a picture, an empty place."""

    image: Image.Image | None
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Tiles under one title."""

    title: str
    tiles: Sequence[Tile]
    note: str = ""  # beside the title, fainter


def draw_sheet(heading: str, rows: Sequence[Row], *, smooth: bool = True) -> Image.Image:
    """All rows below one another; small pictures keep their pixels visible unless `smooth`."""
    columns = max((len(row.tiles) for row in rows), default=1)
    heights = [_row_height(row) for row in rows]
    width = max(2 * MARGIN + columns * (TILE + GAP) - GAP, 480)
    sheet = Image.new("RGB", (width, 2 * MARGIN + TITLE + sum(heights)), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN), _shorten(heading, width - 2 * MARGIN, _font(17)), INK, font=_font(17))
    top = MARGIN + TITLE + 4
    for row, height in zip(rows, heights, strict=True):
        _draw_row(sheet, pen, row, top, width, smooth)
        top += height
    return sheet


def _row_height(row: Row) -> int:
    lines = max((len(tile.caption.splitlines()) for tile in row.tiles), default=0)
    return (TITLE - 6 if row.title else 0) + TILE + CAPTION * lines + GAP + 4


def _draw_row(sheet: Image.Image, pen: ImageDraw.ImageDraw, row: Row, top: int, width: int, smooth: bool) -> None:
    if row.title:
        bold = _font(13, bold=True)
        title = _shorten(row.title, width // 2, bold)
        pen.text((MARGIN, top), title, INK, font=bold)
        pen.text((MARGIN + bold.getlength(title) + 10, top), row.note, FAINT, font=_font(13))
        top += TITLE - 6
    for column, tile in enumerate(row.tiles):
        left = MARGIN + column * (TILE + GAP)
        if tile.image is None:
            pen.rectangle((left, top, left + TILE - 1, top + TILE - 1), EMPTY)
        else:
            small = _shrink(tile.image, smooth)
            sheet.paste(small, (left + (TILE - small.width) // 2, top + (TILE - small.height) // 2))
        for line, text in enumerate(tile.caption.splitlines()):
            place = (left, top + TILE + 1 + line * (CAPTION - 2))
            pen.text(place, _shorten(text, TILE, _font(11)), FAINT, font=_font(11))


def _shrink(image: Image.Image, smooth: bool) -> Image.Image:
    image = image.convert("RGB")
    scale = TILE / max(image.size)
    size = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
    enlarged = scale > 1 and not smooth
    return image.resize(size, Image.Resampling.NEAREST if enlarged else Image.Resampling.BICUBIC)


def _font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """matplotlib's font, which has more scripts than Pillow's."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, size)


def _shorten(text: str, width: float, font: ImageFont.FreeTypeFont) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"

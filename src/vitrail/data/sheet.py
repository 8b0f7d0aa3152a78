"""Sheets of pictures for people: rows of tiles with captions, as one PNG."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

TILE = 112
GAP = 8
CAPTION = 17  # pixels of one caption line
TITLE = 30
HEADING = 22  # pixels of each further line of the heading
MARGIN = 16
PAPER, INK, FAINT, EMPTY = "#ffffff", "#1b1b1f", "#6b6b76", "#ececf1"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One picture with a line or two below it; without a picture, an empty space."""

    image: Image.Image | None
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Tiles under one title."""

    title: str
    tiles: Sequence[Tile]
    note: str = ""  # beside the title, fainter


def draw_sheet(heading: str, rows: Sequence[Row], *, smooth: bool = True, tile: int = TILE) -> Image.Image:
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


def _row_height(row: Row, side: int) -> int:
    lines = max((len(tile.caption.splitlines()) for tile in row.tiles), default=0)
    return (TITLE - 6 if row.title else 0) + _picture_height(row, side) + CAPTION * lines + GAP + 4


def _picture_height(row: Row, side: int) -> int:
    """The height of the row's tallest picture."""
    return max((_size(tile.image, side)[1] if tile.image else side for tile in row.tiles), default=side)


def _draw_row(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, row: Row, top: int, width: int, smooth: bool, side: int
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
            small = _shrink(tile.image, smooth, side)
            sheet.paste(small, (left + (side - small.width) // 2, top + (height - small.height) // 2))
        large = side >= 2 * TILE
        small_print = font_of(13 if large else 11)
        for line, text in enumerate(tile.caption.splitlines()):
            corner = (left, top + height + 1 + line * (CAPTION - 2))
            ink = INK if large and line == 0 else FAINT
            pen.text(corner, _shorten(text, side, small_print), ink, font=small_print)


def _shrink(image: Image.Image, smooth: bool, side: int) -> Image.Image:
    enlarged = max(image.size) < side and not smooth
    kernel = Image.Resampling.NEAREST if enlarged else Image.Resampling.BICUBIC
    return image.convert("RGB").resize(_size(image, side), kernel)


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

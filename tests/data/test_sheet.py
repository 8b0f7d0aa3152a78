"""Sheets of pictures: their heading is whole, whatever their width."""

import numpy as np
from PIL import Image

from vitrail.data.sheet import MARGIN, SheetRow, Tile, draw_sheet, font_of, wrap_text


def test_a_long_heading_takes_more_lines_and_is_not_cut() -> None:
    rows = [SheetRow(title="", tiles=[Tile(image=Image.new("RGB", (8, 8), "red"))])]
    words = "a-photograph-of-something.jpg: attention of [cls] to the patches, mean of the heads, layer by layer"
    short, long = draw_sheet("short", rows), draw_sheet(words, rows)
    lines = wrap_text(words, long.width - 2 * MARGIN, font_of(17))
    assert " ".join(lines) == words
    assert len(lines) > 1
    assert long.width == short.width
    assert long.height > short.height
    below = short.height - 50  # the tile and what is below it have only moved down
    assert np.array_equal(np.array(long)[-below:], np.array(short)[-below:])


def test_a_word_that_is_longer_than_the_sheet_is_shortened() -> None:
    (line,) = wrap_text("x" * 500, 400, font_of(17))
    assert line.endswith("…")
    assert font_of(17).getlength(line) <= 400
    assert wrap_text("", 400, font_of(17)) == [""]

"""How maps are drawn: overlays in the picture's own resolution, sheets of them, heads as a grid, layers as a strip.

The colours are matplotlib's inferno, which is perceptually uniform: equal steps of a map look equal. What the model
did not see, because the preprocessing cut it off, is grey with stripes, never coloured. A picture below 224 pixels is
enlarged by a whole number, so that its pixels stay what they are and the map can be seen.
"""

import io
from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw
from torch import Tensor

from vitrail.data.sheet import (
    FAINT,
    GAP,
    INK,
    MARGIN,
    PAPER,
    SheetRow,
    Tile,
    draw_sheet,
    font_of,
    wrap_text,
    wrap_tiles,
)
from vitrail.data.transform import to_pil, to_tensor
from vitrail.explanation.raw_attention import AttentionMaps
from vitrail.explanation.saliency import Explanation, Subject, View, spread

Array = np.ndarray[Any, Any]

COLOURS = "inferno"
SLAB = 1 << 20  # pixels that are blended at once, so that a large photo is never all floats
SMALLEST = 224  # the shorter side of a drawn picture
GREY = 0.5  # how far the picture below the colours is desaturated
FAINTEST, STRONGEST = 0.35, 0.8  # share of the colour where the map is lowest and highest
SHEET_TILE, STRIP_TILE = 320, 160
MOST_PIXELS = 4_000_000  # of an enlarged picture
PAIRS = 3  # pictures beside one another on a sheet
BAR, LINE = 120, 20  # pixels of the colour bar, and of one line below a sheet


def overlay(subject: Subject, cells: Tensor) -> Image.Image:
    """The whole picture, and in colour where the model looked the map over its patches (h, w)."""
    subject = enlarge(subject)
    canvas = np.array(picture_of(subject))  # (H, W, 3)
    top, left, bottom, right = subject.view.seen
    strength = scale_map(cells)
    table = np.array(matplotlib.colormaps[COLOURS](np.arange(256))[:, :3] * 255, dtype=np.float32)
    step = max(1, SLAB // canvas.shape[1])
    for start in range(top, bottom, step):
        end = min(start + step, bottom)
        values = spread(strength, subject.view, rows=(start, end)).clamp(0, 1).numpy()
        share = (FAINTEST + (STRONGEST - FAINTEST) * values)[..., None]
        faded = _faded(canvas[start:end, left:right], GREY)
        canvas[start:end, left:right] = (
            (1 - share) * faded + share * table[(values * 255).round().astype(int)]
        ).round()
    _hide_unseen(canvas, subject.view)
    return Image.fromarray(canvas)


def scale_map(cells: Tensor) -> Tensor:
    """A map in [0, 1]: from its lowest value, or 0 if some are negative (they count against), to its highest."""
    high = cells.max()
    low = cells.min() if high <= 0 else cells.min().clamp(min=0)
    return ((cells - low) / (high - low)).clamp(0, 1)


def enlarge(subject: Subject) -> Subject:
    """A small picture with each pixel as a square, so that its shorter side is `SMALLEST`, unless it gets too large."""
    view = subject.view
    factor = min(-(-SMALLEST // min(view.picture)), isqrt(MOST_PIXELS // (view.picture[0] * view.picture[1])))
    if factor <= 1:
        return subject
    pixels = subject.pixels.repeat_interleave(factor, dim=-2).repeat_interleave(factor, dim=-1)
    return replace(subject, pixels=pixels, view=view.scaled((pixels.shape[-2], pixels.shape[-1])))


def picture_of(subject: Subject) -> Image.Image:
    """The picture in RGB; the first three of more channels."""
    return to_pil(subject.pixels).convert("RGB")


def draw_pair(subject: Subject, explanation: Explanation, full: Image.Image) -> tuple[Tile, Tile]:
    """A picture with its prediction and its overlay, small enough for a sheet, so that many fit into memory."""
    answer = "features, no classes"
    if explanation.predicted:
        answer = f"{explanation.predicted}  {explanation.task.show(explanation.confidence)}"
    why = f"why {explanation.label}?\n" if explanation.label else ""
    if explanation.label != explanation.predicted:
        why = f"why {explanation.label} ({explanation.task.show(explanation.probability)})?\n"
    return (
        Tile(image=shrink(picture_of(subject), SHEET_TILE), caption=f"{answer}\n{subject.name}"),
        Tile(image=shrink(full, SHEET_TILE), caption=why + explanation.method),
    )


def explanation_sheet(heading: str, note: str, pairs: Sequence[tuple[Tile, Tile]]) -> Image.Image:
    """All pictures with their predictions, beside their overlays."""
    columns = min(PAIRS, len(pairs))
    starts = range(0, len(pairs), columns)
    rows = [SheetRow(title="", tiles=[tile for pair in pairs[at : at + columns] for tile in pair]) for at in starts]
    return _with_legend(draw_sheet(heading, rows, smooth=False, tile=SHEET_TILE), note)


def heads_sheet(heading: str, subject: Subject, attention: AttentionMaps, heads: Sequence[int]) -> Image.Image:
    """Each head of each layer on what the model saw."""
    seen = seen_part(subject)
    rows: list[SheetRow] = []
    for name, count, maps in zip(attention.names, attention.heads, attention.maps[0], strict=True):
        tiles = [
            Tile(image=overlay(seen, cells), caption=f"head {head}")
            for head, cells in zip(heads, maps, strict=True)
            if head < count
        ]
        rows += wrap_tiles(_layer(name), tiles)
    return _with_legend(draw_sheet(heading, rows, tile=STRIP_TILE), "each head on its own scale")


def layers_sheet(heading: str, subject: Subject, attention: AttentionMaps) -> Image.Image:
    """The mean of the heads of each layer on what the model saw, from the first layer to the last."""
    seen = seen_part(subject)
    means = attention.maps[0].nanmean(dim=1)  # (layers, h, w)
    tiles = [
        Tile(image=overlay(seen, cells), caption=_layer(name))
        for name, cells in zip(attention.names, means, strict=True)
    ]
    return _with_legend(draw_sheet(heading, wrap_tiles("", tiles), tile=STRIP_TILE), "each layer on its own scale")


def _layer(name: str) -> str:
    return "pooling" if name == "pool" else f"layer {name}"


def shrink(image: Image.Image, side: int) -> Image.Image:
    """A picture whose longer side is at most `side`."""
    if max(image.size) <= side:
        return image
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small


def png_bytes(image: Image.Image) -> bytes:
    """A picture as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def seen_part(subject: Subject, side: int = SMALLEST) -> Subject:
    """What the model saw, as a picture of its own, no longer than `side`."""
    top, left, bottom, right = subject.view.seen
    part = shrink(picture_of(subject).crop((left, top, right, bottom)), side)
    whole = View(picture=(part.height, part.width), top=0, left=0, height=part.height, width=part.width)
    return replace(subject, pixels=to_tensor(part), view=whole)


def _faded(pixels: Array, amount: float) -> Array:
    """Pixels (…, 3), partly desaturated."""
    floats = pixels.astype(np.float32)
    grey = floats @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    return (1 - amount) * floats + amount * grey[..., None]


def _hide_unseen(canvas: Array, view: View) -> None:
    """Grey and stripes over what the preprocessing cut off, in place."""
    height, width = view.picture
    top, left, bottom, right = view.seen
    bands = [(0, top, 0, width), (bottom, height, 0, width), (top, bottom, 0, left), (top, bottom, right, width)]
    period = max(6, min(height, width) // 40)
    for first, last, start, end in bands:
        if last <= first or end <= start:
            continue
        step = max(1, SLAB // (end - start))
        for row in range(first, last, step):
            stop = min(row + step, last)
            y, x = np.arange(row, stop)[:, None], np.arange(start, end)[None]
            stripes = ((x + y) % period < max(1, period // 6))[..., None]
            part = 0.45 * _faded(canvas[row:stop, start:end], 1.0) + 0.55 * 205
            canvas[row:stop, start:end] = np.where(stripes, 0.8 * part, part).round()


def _with_legend(sheet: Image.Image, note: str) -> Image.Image:
    """The sheet with lines below it: what was done, and what the colours mean."""
    font, low, high = font_of(13), "least", "counts most"
    legend = int(font.getlength(low) + font.getlength(high)) + BAR + 2 * GAP
    lines = wrap_text(note, sheet.width - 2 * MARGIN, font)
    apart = len(lines) > 1 or font.getlength(note) + legend + 3 * MARGIN > sheet.width
    height = LINE * (len(lines) + apart)
    extended = Image.new("RGB", (sheet.width, sheet.height + height + 12), PAPER)
    extended.paste(sheet, (0, 0))
    pen, top = ImageDraw.Draw(extended), sheet.height - 4
    for number, line in enumerate(lines):
        pen.text((MARGIN, top + number * LINE), line, INK, font=font)
    top += height - LINE
    left = MARGIN if apart else sheet.width - MARGIN - legend
    pen.text((left, top), low, FAINT, font=font)
    left += int(font.getlength(low)) + GAP
    bar = Image.fromarray(np.array(matplotlib.colormaps[COLOURS](np.linspace(0, 1, BAR))[None, :, :3] * 255, np.uint8))
    extended.paste(bar.resize((BAR, 12)), (left, top + 2))
    pen.text((left + BAR + GAP, top), high, FAINT, font=font)
    return extended

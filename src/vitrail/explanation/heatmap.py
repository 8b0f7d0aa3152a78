"""Explained pictures: overlays in the picture's own resolution, sheets of them, heads as a grid, layers as a strip.

The colours are matplotlib's inferno, which is perceptually uniform: equal steps of a map look equal. What the model
did not see, because the preprocessing cut it off, is grey with stripes, never coloured. A picture below 224 pixels is
enlarged by a whole number, so that its pixels stay what they are and the map can be seen.
"""

import io
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from pathlib import Path
from typing import Any, overload

import matplotlib
import numpy as np
from PIL import Image, ImageDraw
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from vitrail.data.pixels import Picture
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
from vitrail.errors import ConfigError
from vitrail.explanation.faithfulness import Faithfulness, MethodChoice
from vitrail.explanation.raw_attention import AttentionMaps, attention_maps
from vitrail.explanation.saliency import Explanation, Method, Subject, View, open_subject, spread
from vitrail.files import atomic_path
from vitrail.prediction import Predictor
from vitrail.prediction.inputs import STDIN
from vitrail.progress import Progress, pick_progress, table
from vitrail.wording import counted, plain, reason

Array = np.ndarray[Any, Any]

SCORES = ("deletion ↓", "insertion ↑", "score")
COLOURS = "inferno"
SLAB = 1 << 20  # pixels that are blended at once, so that a large photo is never all floats
SMALLEST = 224  # the shorter side of a drawn picture
GREY = 0.5  # how far the picture below the colours is desaturated
FAINTEST, STRONGEST = 0.35, 0.8  # share of the colour where the map is lowest and highest
SHEET_TILE, STRIP_TILE = 320, 160
MOST_PIXELS = 4_000_000  # of an enlarged picture
PAIRS = 3  # pictures beside one another on a sheet
MOST_ON_SHEET = 60
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
    pixels = subject.pixels if len(subject.pixels) in (1, 3) else subject.pixels[:1]
    return to_pil(pixels).convert("RGB")


def draw_pair(subject: Subject, explanation: Explanation, full: Image.Image) -> tuple[Tile, Tile]:
    """A picture with its prediction and its overlay, small enough for a sheet, so that many fit into memory."""
    answer = "features, no classes"
    if explanation.predicted:
        answer = f"{explanation.predicted}  {explanation.confidence:.1%}"
    why = f"why {explanation.label}?\n" if explanation.label else ""
    if explanation.label != explanation.predicted:
        why = f"why {explanation.label} ({explanation.probability:.1%})?\n"
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


LONGEST_STEM = 200  # bytes; on most disks a name with its ending has at most 255
SHOWN = 640  # pixels of the longer side in a notebook


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One picture with its explanation. The picture is opened again when it is drawn, so that many take no memory."""

    source: str  # its path, or its number among the pictures passed
    stem: str  # the name of its files
    explanation: Explanation
    faithfulness: Faithfulness | None = None  # deletion and insertion, if they were measured
    choice: MethodChoice | None = None  # how method "auto" chose
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    picture: Picture = field(repr=False)
    predictor: Predictor = field(repr=False)

    @property
    def name(self) -> str:
        """The picture's name without its folder."""
        return Path(self.source).name

    @property
    def map(self) -> Tensor:
        """(h, w): one number per patch; higher counted more."""
        return self.explanation.map

    @property
    def method(self) -> Method:
        return self.explanation.method

    @property
    def overlay(self) -> Image.Image:
        """The whole picture with the map over what the model saw of it."""
        return self.draw()[2]

    def open(self) -> Subject:
        """The picture itself, ready to be drawn on."""
        return open_subject(self.picture, self.predictor.preprocess, self.name)

    def draw(self) -> tuple[Subject, Explanation, Image.Image]:
        """The picture itself, its explanation, and the overlay."""
        subject = self.open()
        return subject, self.explanation, overlay(subject, self.map)

    def save(self, path: str | Path) -> Path:
        """Write the overlay as a picture of the kind that the name ends with."""
        path = Path(path)
        if path.suffix.lower() not in Image.registered_extensions():
            raise ConfigError(f"an overlay is saved as a picture, such as why.png; got {path}.")
        picture = self.overlay
        try:
            with atomic_path(path) as draft:
                picture.save(draft)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({reason(error)}).") from error
        return path

    def _repr_png_(self) -> bytes:
        return png_bytes(shrink(self.overlay, SHOWN))


@dataclass(frozen=True, kw_only=True)
class Explanations(Sequence[Explained]):
    """Several pictures explained by one method."""

    model: str  # the name of the model
    method: Method
    choice: MethodChoice | None = None  # how method "auto" chose
    pictures: tuple[Explained, ...]
    failures: dict[str, str] = field(default_factory=dict[str, str])  # picture → why it could not be explained
    source: str = field(default="", repr=False)  # where the model is from
    targeted: bool = field(default=False, repr=False)  # a class was asked for, rather than the predicted one
    written: tuple[Path, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.pictures)

    @overload
    def __getitem__(self, index: int) -> Explained: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Explained, ...]: ...
    def __getitem__(self, index: int | slice) -> Explained | tuple[Explained, ...]:
        return self.pictures[index]

    @property
    def sheet(self) -> Image.Image:
        """All pictures beside their overlays, or the first ones if there are many."""
        return self._sheet([draw_pair(*explained.draw()) for explained in self.pictures[:MOST_ON_SHEET]])

    def save(self, folder: str | Path, *, progress: bool | Progress = False) -> tuple[Path, ...]:
        """Write a sheet of all pictures, and for each its overlay, heads, layers and raw maps; the paths written."""
        folder = Path(folder)
        written: list[Path] = []
        pairs: list[tuple[Tile, Tile]] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with pick_progress(progress)("drawing", len(self.pictures)) as advance:
                for explained in self.pictures:
                    drawn = explained.draw()
                    written += _write(explained, drawn[0], drawn[2], folder)
                    if len(pairs) < MOST_ON_SHEET:
                        pairs.append(draw_pair(*drawn))
                    advance(1)
            with atomic_path(folder / "sheet.png") as draft:
                self._sheet(pairs).save(draft)
        except OSError as error:
            raise ConfigError(f"{folder}: the explanations cannot be written there ({reason(error)}).") from error
        return folder / "sheet.png", *written

    def _sheet(self, pairs: Sequence[tuple[Tile, Tile]]) -> Image.Image:
        note = self.choice.reason if self.choice else f"method {self.method}"
        if len(pairs) < len(self.pictures):
            note = f"the first {len(pairs)} of {counted(len(self.pictures), 'picture')}; {note}"
        return explanation_sheet(f"{self.model}: why?", note, pairs)

    def _repr_png_(self) -> bytes:
        return png_bytes(self.sheet)

    @property
    def exit_code(self) -> int:
        """1: some pictures could not be explained."""
        return int(bool(self.failures))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        choice = self.choice
        return {
            "method": self.method,
            "reason": choice.reason if choice else "as requested",
            "methods": {} if choice is None else {name: _scores(score) for name, score in choice.scores.items()},
            "method_failures": {} if choice is None else choice.failures,
            "pictures": [
                {
                    "name": explained.name,
                    "predicted": explained.explanation.predicted,
                    "confidence": _number(explained.explanation.confidence),
                    "target": explained.explanation.label,
                    "probability": _number(explained.explanation.probability),
                    "faithfulness": None if explained.faithfulness is None else _scores(explained.faithfulness),
                }
                for explained in self
            ],
            "failures": self.failures,
            "written": [str(path) for path in self.written],
        }

    def lines(self) -> Iterator[RenderableType]:
        """What the command prints."""
        scored = any(explained.faithfulness for explained in self)
        names = ["picture", "predicted", "", *(["explained", ""] if self.targeted else [])]
        yield table(map(self._cells, self), *names, *(SCORES[:2] if scored else ()), left=len(names), edge=False)
        if self.choice is None:
            yield f"\nmethod {self.method}"
        else:
            yield from _choice_lines(self.choice)
        for path, why in self.failures.items():
            yield Text("not explained ", style="yellow") + Text(plain(why if path in why else f"{path}: {why}"))
        if not self.written:
            return
        inside = any(path.stem.endswith("heads") for path in self.written)  # which an export does not show
        files = f"overlays, {'heads, layers, ' if inside else ''}raw maps (npz)"
        yield f"\nwrote {plain(str(self.written[0]))} and {counted(len(self.written) - 1, 'file')} beside it: {files}"
        yield f"next: {shlex.join(['vitrail', 'figures' if inside else 'predict', self.source, self[0].source])}"

    def _cells(self, explained: Explained) -> list[str]:
        explanation, score = explained.explanation, explained.faithfulness
        cells = [explained.name, explanation.predicted, _percent(explanation.confidence)]
        cells += [explanation.label, _percent(explanation.probability)] if self.targeted else []
        return cells + ([] if score is None else [f"{score.deletion:.3f}", f"{score.insertion:.3f}"])


def _choice_lines(choice: MethodChoice) -> Iterator[RenderableType]:
    """How the methods did, and which was chosen."""
    if choice.scores:
        rows = sorted(choice.scores.items(), key=lambda item: -item[1].score)
        styles = {choice.method: "bold", "random": "dim"}
        numbers = [(name, *(f"{value:.3f}" for value in _scores(score).values())) for name, score in rows]
        yield ""
        yield table(
            ([Text(cell, styles.get(row[0], "")) for cell in row] for row in numbers), "method", *SCORES, edge=False
        )
    for name, why in choice.failures.items():
        yield Text("left out ", style="yellow") + Text(plain(f"{name}: {why}"))
    yield f"\nauto chose {choice.reason}"


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value


def _scores(score: Faithfulness) -> dict[str, float]:
    return {"deletion": score.deletion, "insertion": score.insertion, "score": score.score}


def _percent(share: float) -> str:
    return "" if math.isnan(share) else f"{share:.1%}"


def unique_stems(sources: Iterable[str]) -> list[str]:
    """The names of each picture's files: the picture's own, with a number if two share a name."""
    stems: dict[str, None] = {}
    for source in sources:
        stem = "stdin" if source == STDIN else _cut(Path(source).stem)
        unique, number = stem, 2
        while unique in stems:
            unique, number = f"{stem}-{number}", number + 1
        stems[unique] = None
    return list(stems)


def _cut(stem: str) -> str:
    whole = stem.encode("utf-8", "surrogateescape")
    return stem if len(whole) <= LONGEST_STEM else whole[:LONGEST_STEM].decode("utf-8", "ignore")


def _write(explained: Explained, subject: Subject, full: Image.Image, folder: Path) -> Iterator[Path]:
    """The files of one picture; an export gives no attention to draw."""
    pictures, attention = {"overlay": full}, None
    if explained.predictor.in_torch:
        attention = attention_maps(explained.predictor.model, subject.image[None]).cpu()
        shown = attention.select(explained.layers, explained.heads)
        num_heads = max(shown.heads)
        heads = [head % num_heads for head in explained.heads or range(num_heads)]
        title = f"{subject.name}: attention"
        pictures["heads"] = heads_sheet(f"{title}, head by head", subject, shown, heads)
        pictures["layers"] = layers_sheet(f"{title}, layer by layer", subject, attention)
    for kind, picture in pictures.items():
        path = folder / f"{explained.stem}-{kind}.png"
        with atomic_path(path) as draft:
            picture.save(draft)
        yield path
    yield _write_maps(folder / f"{explained.stem}.npz", explained.explanation, attention)


def _write_maps(path: Path, explanation: Explanation, attention: AttentionMaps | None) -> Path:
    """The raw numbers: `map` (h, w), `attention` (layers, heads, h, w), and where the map is in the picture."""
    view = explanation.view
    arrays = {
        "map": explanation.map.numpy(),
        "method": np.array(explanation.method),
        "target": np.array(-1 if explanation.target is None else explanation.target),
        "label": np.array(explanation.label),
        "picture": np.array(view.picture),
        "view": np.array([view.top, view.left, view.height, view.width]),
    }
    if attention is not None:
        arrays |= {"attention": attention.maps[0].numpy(), "layers": np.array(attention.names)}
    buffer = io.BytesIO()  # of a file that cannot be written, zipfile raises errors of its own
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    with atomic_path(path) as draft:
        draft.write_bytes(buffer.getbuffer())
    return path

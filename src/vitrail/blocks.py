"""What a report page consists of: texts, tables, curves and encoded pictures, for `render` to turn into HTML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from PIL import Image

from vitrail.canvas import DARK, LIGHT, Theme, figure_bytes

TINY = 64  # pictures up to this side are stored without loss
PHOTO_SIDE, FIGURE_SIDE = 320, 1400  # pixels, at most
FIGURE_BYTES = 400_000  # a larger drawing becomes a JPEG
DPI = 140

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class EncodedPicture:
    """An encoded picture with its alternative text."""

    data: bytes
    alt: str
    width: int
    height: int
    caption: str = ""
    dark: bytes = b""  # the same for a dark page, if it differs

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data) + len(self.dark)

    @property
    def is_tiny(self) -> bool:
        return max(self.width, self.height) <= TINY


class Paragraph(NamedTuple):
    """A few sentences."""

    text: str
    quiet: bool = False


class Fact(NamedTuple):
    """One number that matters, and a line about it."""

    name: str
    value: str
    note: str = ""


class Numbers(NamedTuple):
    """Numbers side by side."""

    facts: Sequence[Fact]


class Table(NamedTuple):
    """Rows of texts; the first column holds names, the others numbers, except those in `texts`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    texts: Sequence[int] = ()


class Drawings(NamedTuple):
    """Figures beside one another where there is room."""

    pictures: Sequence[EncodedPicture]


class GalleryTile(NamedTuple):
    """A picture and its explanation, with the model's prediction."""

    pictures: Sequence[EncodedPicture]
    title: str
    note: str = ""


class Gallery(NamedTuple):
    """Photographs with their explanations; `scale` shows what the colours mean."""

    tiles: Sequence[GalleryTile]
    scale: bool = True


class Curve(NamedTuple):
    """One line of a plot."""

    name: str
    points: Sequence[Point]
    style: str = "first"  # second, third or fourth
    mark: Point | None = None  # a point to mark, such as the best one


class Plot(NamedTuple):
    """A few curves over one axis."""

    title: str
    curves: Sequence[Curve]
    across: str = "epoch"
    percent: bool = False
    named: bool = False  # show a legend even for a single curve


class Plots(NamedTuple):
    """Curves drawn on the page itself."""

    plots: Sequence[Plot]


class Listing(NamedTuple):
    """A verbatim text, such as a command; with a summary, folded until opened."""

    text: str
    summary: str = ""


Block = Paragraph | Numbers | Table | Drawings | Gallery | Plots | Listing


class Section(NamedTuple):
    """A heading and the blocks below it."""

    title: str
    blocks: Sequence[Block]


class Report(NamedTuple):
    """A whole page."""

    title: str
    verdict: str
    sections: Sequence[Section]
    facts: Sequence[Fact] = ()


def encode_photo(image: Image.Image, alt: str) -> EncodedPicture:
    """A photograph, no longer than `PHOTO_SIDE`, as a JPEG; a tiny one without loss."""
    small = image.convert("RGB")
    small.thumbnail((PHOTO_SIDE, PHOTO_SIDE), Image.Resampling.LANCZOS)
    options: dict[str, Any] = {"format": "PNG"} if max(small.size) <= TINY else {"format": "JPEG", "quality": 82}
    return EncodedPicture(data=_save(small, **options), alt=alt, width=small.width, height=small.height)


def encode_figure(draw: Callable[[Theme], Figure], alt: str, caption: str = "") -> EncodedPicture:
    """A drawing for light and for dark pages, each as a PNG of few colours, or as a JPEG if that is still large."""
    light, (width, height) = _encode(draw(LIGHT))
    dark, _ = _encode(draw(DARK))
    return EncodedPicture(data=light, dark=dark, alt=alt, width=width, height=height, caption=caption)


def _encode(figure: Figure) -> tuple[bytes, tuple[int, int]]:
    drawn = figure_bytes(figure, dpi=DPI, bbox_inches="tight", pad_inches=0.05)
    image = Image.open(BytesIO(drawn)).convert("RGB")
    image.thumbnail((FIGURE_SIDE, FIGURE_SIDE), Image.Resampling.LANCZOS)
    data = _save(image.quantize(256, dither=Image.Dither.NONE), format="PNG")
    return data if len(data) <= FIGURE_BYTES else _save(image, format="JPEG", quality=80), image.size


def _save(image: Image.Image, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, optimize=True, **options)
    return buffer.getvalue()

"""What a report page consists of: texts, tables, curves and encoded pictures, for `render` to turn into HTML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO

from matplotlib.figure import Figure
from PIL import Image

from vitrail.canvas import DARK, LIGHT, Theme, figure_bytes

TINY = 64  # pictures up to this side are stored without loss

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Picture:
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


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A few sentences."""

    text: str
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One number that matters, and a line about it."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Numbers side by side."""

    facts: Sequence[Fact]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of texts; the first column holds names, the others numbers, except those in `texts`."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    texts: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class Drawings:
    """Figures beside one another where there is room."""

    pictures: Sequence[Picture]


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A picture and its explanation, with the model's prediction."""

    pictures: Sequence[Picture]
    title: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Photographs with their explanations; `scale` shows what the colours mean."""

    tiles: Sequence[Tile]
    scale: bool = True


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a plot."""

    name: str
    points: Sequence[Point]
    style: str = "first"  # second, third or fourth
    mark: Point | None = None  # a point to mark, such as the best one


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A few curves over one axis."""

    title: str
    curves: Sequence[Curve]
    across: str = "epoch"
    percent: bool = False
    named: bool = False  # show a legend even for a single curve


@dataclass(frozen=True, kw_only=True)
class Plots:
    """Curves drawn on the page itself."""

    plots: Sequence[Plot]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A verbatim text, such as a command; with a summary, folded until opened."""

    text: str
    summary: str = ""


Block = Paragraph | Facts | Table | Drawings | Gallery | Plots | Listing


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole page."""

    title: str
    verdict: str
    sections: Sequence[Section]
    facts: Sequence[Fact] = ()


PHOTO_SIDE, FIGURE_SIDE = 320, 1400  # pixels, at most
FIGURE_BYTES = 400_000  # a larger drawing becomes a JPEG
DPI = 140


def encode_photo(image: Image.Image, alt: str, caption: str = "") -> Picture:
    """A photograph, no longer than `PHOTO_SIDE`, as a JPEG; a tiny one without loss."""
    small = image.convert("RGB")
    small.thumbnail((PHOTO_SIDE, PHOTO_SIDE), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    if max(small.size) <= TINY:
        small.save(buffer, "PNG", optimize=True)
    else:
        small.save(buffer, "JPEG", quality=82, optimize=True)
    return Picture(data=buffer.getvalue(), alt=alt, width=small.width, height=small.height, caption=caption)


def encode_figure(draw: Callable[[Theme], Figure], alt: str, caption: str = "") -> Picture:
    """A drawing for light and for dark pages, each as a PNG of few colours, or as a JPEG if that is still large."""
    light, size = _encode(draw(LIGHT))
    dark, _ = _encode(draw(DARK))
    return Picture(data=light, dark=dark, alt=alt, width=size[0], height=size[1], caption=caption)


def _encode(figure: Figure) -> tuple[bytes, tuple[int, int]]:
    drawn = figure_bytes(figure, dpi=DPI, bbox_inches="tight", pad_inches=0.05)
    image = Image.open(BytesIO(drawn)).convert("RGB")
    image.thumbnail((FIGURE_SIDE, FIGURE_SIDE), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    if buffer.tell() > FIGURE_BYTES:
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=80, optimize=True)
    return buffer.getvalue(), image.size

"""`report.html`: one page that holds all it shows, opens offline, and follows the reader's light or dark.

A pure renderer: it is given texts, tables and encoded pictures. Whatever the texts hold, they stay texts.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from vitrail import __version__
from vitrail.drawing import DARK, LIGHT, Theme, any_script
from vitrail.evaluation.curves import Plot, draw_plot, harmless
from vitrail.files import atomic_path

MOST_BYTES = 5_000_000  # of the whole page
PHOTO_SIDE, FIGURE_SIDE = 320, 1400  # pixels, at most
FIGURE_BYTES = 400_000  # a larger drawing becomes a JPEG
TINY = 64  # pictures up to this side keep their very pixels
DPI = 140
SHARP = 1.9  # pixels of a drawing for each of the page's: many screens have two
STYLE = Path(__file__).with_name("report.css")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An encoded picture with the words for those who cannot see it."""

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
    """Rows of texts; the first column names, the others are numbers, but for those in `texts`."""

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
    """A picture and its explanation, with what was said about it."""

    pictures: Sequence[Picture]
    title: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Photographs with their explanations; `scale` shows what the colours mean."""

    tiles: Sequence[Tile]
    scale: bool = True


@dataclass(frozen=True, kw_only=True)
class Plots:
    """Curves drawn on the page itself."""

    plots: Sequence[Plot]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A text as it is, such as a command; with a summary, folded away until asked for."""

    text: str
    summary: str = ""


Block = Paragraph | Facts | Table | Drawings | Gallery | Plots | Listing


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole page."""

    title: str
    verdict: str
    sections: Sequence[Section]
    facts: Sequence[Fact] = ()


def encode_photo(image: Image.Image, alt: str, caption: str = "") -> Picture:
    """A photograph, no longer than `PHOTO_SIDE`, as a JPEG; a tiny one with its very pixels."""
    small = image.convert("RGB")
    small.thumbnail((PHOTO_SIDE, PHOTO_SIDE), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    if max(small.size) <= TINY:
        small.save(buffer, "PNG", optimize=True)
    else:
        small.save(buffer, "JPEG", quality=82, optimize=True)
    return Picture(data=buffer.getvalue(), alt=alt, width=small.width, height=small.height, caption=caption)


def encode_figure(draw: Callable[[Theme], Figure], alt: str, caption: str = "") -> Picture:
    """A drawing for light and for dark pages, each as a PNG of few colours, or as a JPEG where that is still large."""
    light, size = _encode(draw(LIGHT))
    dark, _ = _encode(draw(DARK))
    return Picture(data=light, dark=dark, alt=alt, width=size[0], height=size[1], caption=caption)


def _encode(figure: Figure) -> tuple[bytes, tuple[int, int]]:
    buffer = BytesIO()
    with any_script(figure):
        figure.savefig(buffer, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.05, metadata={"Software": None})
    image = Image.open(buffer).convert("RGB")
    image.thumbnail((FIGURE_SIDE, FIGURE_SIDE), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    image.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    if buffer.tell() > FIGURE_BYTES:
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=80, optimize=True)
    return buffer.getvalue(), image.size


def write_report(report: Report, path: Path) -> None:
    """Write the page."""
    with atomic_path(path) as draft:
        draft.write_text(render(report), encoding="utf-8")


def render(report: Report) -> str:
    """The page as HTML, below `MOST_BYTES`: if need be, the largest pictures become their words."""
    largest = sorted((picture.size for picture in _all_pictures(report)), reverse=True)
    room = MOST_BYTES - len(_page(report, limit=-1).encode())
    while largest and sum(_grown(size) for size in largest) > room:
        largest = [size for size in largest if size < largest[0]]
    return _page(report, limit=largest[0] if largest else -1)


def _grown(size: int) -> int:
    """The bytes that a picture of `size` bytes takes as base64, with its tag."""
    return -(-size // 3) * 4 + 600


def _all_pictures(report: Report) -> list[Picture]:
    found: list[Picture] = []
    for block in (block for section in report.sections for block in section.blocks):
        if isinstance(block, Drawings):
            found += block.pictures
        elif isinstance(block, Gallery):
            found += [picture for tile in block.tiles for picture in tile.pictures]
    return found


def _page(report: Report, limit: int) -> str:
    """The whole page, with pictures of at most `limit` bytes."""
    links = "".join(
        f'<a href="#part-{number}">{harmless(section.title)}</a>' for number, section in enumerate(report.sections)
    )
    sections = "\n".join(
        f'<section id="part-{number}"><h2>{harmless(section.title)}</h2>\n'
        + "\n".join(_block(block, limit) for block in section.blocks)
        + "</section>"
        for number, section in enumerate(report.sections)
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<title>{harmless(report.title)}</title>
<link rel="icon" href="data:,">
<style>
{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<header>
<p class="brand">vitrail report</p>
<h1>{harmless(report.title)}</h1>
<p class="verdict">{harmless(report.verdict, 600)}</p>
{_facts(report.facts)}
</header>
<nav aria-label="Sections">{links}</nav>
<main>
{sections}
</main>
<footer>Written by vitrail {__version__}. This page needs nothing but itself: no network, no script.</footer>
</body>
</html>
"""


def _block(block: Block, limit: int) -> str:
    match block:
        case Paragraph():
            kind = ' class="quiet"' if block.quiet else ""
            return f"<p{kind}>{harmless(block.text, 2000)}</p>"
        case Facts():
            return _facts(block.facts)
        case Table():
            return _table(block)
        case Drawings():
            return f'<div class="row">{"".join(_drawing(picture, limit) for picture in block.pictures)}</div>'
        case Gallery():
            scale = '<p class="scale">counted least <i></i> counted most</p>' if block.scale else ""
            return f'<div class="gallery">{"".join(_tile(tile, limit) for tile in block.tiles)}</div>{scale}'
        case Plots():
            drawn = (draw_plot(plot) for plot in block.plots)
            return f'<div class="plots">{"".join(f"<figure>{svg}</figure>" for svg in drawn if svg)}</div>'
        case Listing():
            text = f"<pre>{harmless(block.text, 100_000)}</pre>"
            return f"<details><summary>{harmless(block.summary)}</summary>{text}</details>" if block.summary else text


def _facts(facts: Sequence[Fact]) -> str:
    if not facts:
        return ""
    cells = (
        f"<div><dt>{harmless(fact.name)}</dt><dd>{harmless(fact.value)}"
        + (f"<small>{harmless(fact.note)}</small>" if fact.note else "")
        + "</dd></div>"
        for fact in facts
    )
    return f'<dl class="facts">{"".join(cells)}</dl>'


def _table(table: Table) -> str:
    kinds = ["text" if place in table.texts else "" for place in range(len(table.head))]
    head = "".join(_cell("th", name, kind, ' scope="col"') for name, kind in zip(table.head, kinds, strict=True))
    rows = "\n".join(
        "<tr>" + "".join(_cell("td", cell, kind) for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in table.rows
    )
    note = f'<p class="note">{harmless(table.note)}</p>' if table.note else ""
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{whole}</div>{note}'


def _cell(tag: str, text: str, kind: str, more: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f"<{tag}{style}{more}>{harmless(text)}</{tag}>"


def _drawing(picture: Picture, limit: int) -> str:
    caption = f"<figcaption>{harmless(picture.caption, 600)}</figcaption>" if picture.caption else ""
    shown = replace(picture, width=round(picture.width / SHARP), height=round(picture.height / SHARP))
    return f'<figure class="figure framed">{_image(shown, limit)}{caption}</figure>'


def _tile(tile: Tile, limit: int) -> str:
    pictures = "".join(_image(picture, limit) for picture in tile.pictures)
    note = f"<span>{harmless(tile.note)}</span>" if tile.note else ""
    caption = f"<figcaption><strong>{harmless(tile.title)}</strong>{note}</figcaption>"
    return f'<figure><div class="pair">{pictures}</div>{caption}</figure>'


def _image(picture: Picture, limit: int) -> str:
    if picture.size > limit:
        return f'<p class="note">(left out to keep the page small: {harmless(picture.alt)})</p>'
    tiny = ' class="small"' if picture.is_tiny else ""
    size = f'width="{picture.width}" height="{picture.height}"'
    shown = f'<img{tiny} {size} alt="{harmless(picture.alt)}" src="{_data_url(picture.data)}">'
    if not picture.dark:
        return shown
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{_data_url(picture.dark)}">'
    return f"<picture>{dark}{shown}</picture>"


def _data_url(data: bytes) -> str:
    kind = "png" if data.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"

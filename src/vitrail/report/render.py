"""A report as HTML, by the Jinja2 templates beside this file. Whatever the texts hold, it is shown as text.

Every value that a template shows is escaped, shortened and stripped of control codes, unless it is `Markup` already.
"""

import base64
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from vitrail import __version__
from vitrail.files import atomic_path
from vitrail.report.layout import LONGEST, lay_out
from vitrail.report.page import Block, Drawings, Gallery, Picture, Plot, Report

MOST_BYTES = 5_000_000  # of the whole page
SHARP = 1.9  # pixels of a drawing per pixel of the page: many screens have two
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(report: Report, path: Path) -> None:
    """Write the page."""
    with atomic_path(path) as draft:
        draft.write_text(render(report), encoding="utf-8")


def render(report: Report) -> str:
    """The page as HTML, below `MOST_BYTES`: if necessary, the largest pictures are replaced by their descriptions."""
    largest = sorted((picture.size for picture in _all_pictures(report)), reverse=True)
    room = MOST_BYTES - len(_render_page(report, limit=-1).encode())
    while largest and sum(_grown(size) for size in largest) > room:
        largest = [size for size in largest if size < largest[0]]
    return _render_page(report, limit=largest[0] if largest else -1)


def draw_plot(plot: Plot) -> str:
    """The plot as an SVG element; an empty text if no point is a number."""
    return render_template("plot.html.j2", plot=plot).strip()


def render_template(name: str, **values: Any) -> Markup:
    """One of the templates with these values."""
    return Markup(_environment().get_template(name).render(values))  # noqa: S704 - a template has escaped it all


def harmless(text: str, longest: int = LONGEST) -> Markup:
    """Any text as HTML that is nothing but text: no tags, no control or direction codes, no lone surrogates."""
    short = text if len(text) <= longest else text[: longest - 1] + "…"
    safe = (char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in short)
    return escape("".join(safe))


@cache
def _environment() -> Environment:
    made: Any = Environment(
        loader=PackageLoader("vitrail.report"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"harmless": harmless, "kind": _kind, "data_url": _data_url, "lay_out": lay_out, "px": _px}
    made.globals |= {"sharp": SHARP, "policy": POLICY, "version": __version__}
    return made


def _finalize(value: Any) -> Any:
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _kind(block: Block) -> str:
    """The macro of blocks.html.j2 that draws it."""
    return type(block).__name__.lower()


def _px(value: float) -> str:
    return f"{value:.1f}"


def _data_url(data: bytes) -> Markup:
    kind = "png" if data.startswith(b"\x89PNG") else "jpeg"
    return Markup(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")  # noqa: S704 - letters and digits


def _render_page(report: Report, limit: int) -> str:
    """The whole page, with pictures of at most `limit` bytes."""
    return render_template("page.html.j2", report=report, limit=limit)


def _grown(size: int) -> int:
    """The bytes that a picture of `size` bytes takes as base64, with its tag."""
    return -(-size // 3) * 4 + 600


def _all_pictures(report: Report) -> list[Picture]:
    pictures: list[Picture] = []
    for block in (block for section in report.sections for block in section.blocks):
        if isinstance(block, Drawings):
            pictures += block.pictures
        elif isinstance(block, Gallery):
            pictures += [picture for tile in block.tiles for picture in tile.pictures]
    return pictures

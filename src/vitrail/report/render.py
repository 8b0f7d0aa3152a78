"""A report as HTML, by the Jinja2 templates beside this file. Whatever the texts hold, it is shown as text.

Every value that a template shows is escaped, shortened and stripped of control codes, unless it is `Markup` already.
"""

import base64
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from vitrail import __version__
from vitrail.blocks import Block, Curve, Drawings, EncodedPicture, Gallery, Plot, Point, Report
from vitrail.files import atomic_path
from vitrail.wording import cut, plain

WIDTH, HEIGHT = 340, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 46, 30  # margins around the curves
LEGEND, LETTER = 15, 6.2  # height of a line of the legend, and the approximate width of a letter in it
LONGEST = 200  # characters of one name
MOST_POINTS = 400
TICKS = 4


class Label(NamedTuple):
    """A short text; `anchor` is the end of it that is at (x, y)."""

    x: float
    y: float
    text: str
    style: str = ""
    anchor: str = "start"


class Layout(NamedTuple):
    """A plot ready to be drawn."""

    spoken: str  # for screen readers
    grid: Sequence[float]  # y coordinates of its lines
    labels: Sequence[Label]
    lines: Sequence[Curve]
    legend: Sequence[Label]
    size: tuple[int, int] = (WIDTH, HEIGHT)
    left: int = LEFT
    right: int = WIDTH - RIGHT


def lay_out(plot: Plot) -> Layout | None:
    """The positions of everything; None if no point is a number."""
    curves = [(curve, thin([point for point in curve.points if _is_real(point)])) for curve in plot.curves]
    everything = [point for _, points in curves for point in points]
    if not everything:
        return None
    xs, ys = [x for x, _ in everything], [y for _, y in everything]
    left, right = min(xs), max(xs)
    steps = round_steps(min(ys), max(ys))
    low, high = steps[0], steps[-1]
    starts = _place_legend([curve.name for curve in plot.curves]) if len(curves) > 1 or plot.named else []
    top = TOP + max((y for _, y in starts), default=0)

    def position(point: Point) -> Point:
        across = (point[0] - left) / (right - left) if right > left else 0.5
        up = (point[1] - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - top - BOTTOM)

    def placed(curve: Curve, points: Sequence[Point]) -> Curve:
        mark = position(curve.mark) if curve.mark is not None and _is_real(curve.mark) else None
        return curve._replace(points=[position(point) for point in points], mark=mark)

    legend = [
        Label(x=x, y=34 + y, text=f"— {curve.name}", style=curve.style)
        for curve, (x, y) in zip(plot.curves, starts, strict=False)
    ]
    return Layout(
        spoken=f"{plot.title}; from {_number(ys[0], plot.percent)} to {_number(ys[-1], plot.percent)}",
        grid=[position((left, step))[1] for step in steps],
        labels=[Label(x=0, y=14, text=plot.title, style="heading"), *_axes(plot, steps, left, right, position)],
        lines=[placed(curve, points) for curve, points in curves],
        legend=legend,
    )


def _place_legend(names: Sequence[str]) -> list[Point]:
    """Where each name of the legend begins: beside the others or, if there is no more room, below them."""
    starts: list[Point] = []
    x, y = float(LEFT), 0
    for name in names:
        length = LETTER * min(len(name) + 2, LONGEST)
        if starts and x + length > WIDTH - RIGHT:
            x, y = float(LEFT), y + LEGEND
        starts.append((x, y))
        x += length + 14
    return starts


def _axes(
    plot: Plot, steps: Sequence[float], left: float, right: float, position: Callable[[Point], Point]
) -> list[Label]:
    labels = [
        Label(x=LEFT - 6, y=position((left, step))[1] + 4, text=_number(step, plot.percent), anchor="end")
        for step in steps
    ]
    below = HEIGHT - BOTTOM + 16
    for end, anchor in ((left, "start"), (right, "end")) if right > left else ((left, "middle"),):
        labels.append(Label(x=position((end, steps[0]))[0], y=below, text=f"{end:g}", anchor=anchor))
    if right > left:
        labels.append(Label(x=(LEFT + WIDTH - RIGHT) / 2, y=below, text=plot.across, anchor="middle"))
    return labels


def _is_real(point: Point) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


def _number(value: float, percent: bool) -> str:
    return f"{100 * value:.4g} %" if percent else f"{value:.3g}"


def thin(points: Sequence[Point]) -> Sequence[Point]:
    """At most `MOST_POINTS` of the points, the first and last among them."""
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(step * (len(points) - 1) / (MOST_POINTS - 1))] for step in range(MOST_POINTS)]


def round_steps(low: float, high: float) -> list[float]:
    """Round numbers, equally far apart, from at most `low` to at least `high`."""
    spread = high - low or abs(high) or 1.0
    rough = spread / TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


MOST_BYTES = 5_000_000  # of the whole page
SHARP = 1.9  # pixels of a drawing per pixel of the page: many screens have two
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(report: Report, path: Path) -> None:
    """Write the page."""
    with atomic_path(path) as draft:
        draft.write_text(render(report), encoding="utf-8")


def render(report: Report) -> str:
    """The page as HTML, below `MOST_BYTES`: if necessary, the largest pictures are replaced by their descriptions."""

    def page(limit: int) -> str:
        """With pictures of at most `limit` bytes."""
        return render_template("page.html.j2", report=report, limit=limit)

    largest = sorted((picture.size for picture in _all_pictures(report)), reverse=True)
    room = MOST_BYTES - len(page(-1).encode())
    while largest and sum(_grown(size) for size in largest) > room:
        largest = [size for size in largest if size < largest[0]]
    return page(largest[0] if largest else -1)


def render_template(name: str, **values: Any) -> Markup:
    """One of the templates with these values."""
    return Markup(_environment().get_template(name).render(values))  # noqa: S704 - a template has escaped it all


def harmless(text: str, longest: int = LONGEST) -> Markup:
    """Any text as HTML that is nothing but text: no tags, no control or direction codes, no lone surrogates."""
    return escape(plain(cut(text, longest), lines=True))


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
    made.filters |= {
        "harmless": harmless,
        "kind": _kind,
        "data_url": _data_url,
        "lay_out": lay_out,
        "px": "{:.1f}".format,
    }
    made.globals |= {"sharp": SHARP, "policy": POLICY, "version": __version__}
    return made


def _finalize(value: Any) -> Any:
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _kind(block: Block) -> str:
    """The macro of blocks.html.j2 that draws it."""
    return type(block).__name__.lower()


def _data_url(data: bytes) -> Markup:
    kind = "png" if data.startswith(b"\x89PNG") else "jpeg"
    return Markup(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")  # noqa: S704 - letters and digits


def _grown(size: int) -> int:
    """The bytes that a picture of `size` bytes takes as base64, with its tag."""
    return -(-size // 3) * 4 + 600


def _all_pictures(report: Report) -> Iterator[EncodedPicture]:
    for block in (block for section in report.sections for block in section.blocks):
        if isinstance(block, Drawings):
            yield from block.pictures
        elif isinstance(block, Gallery):
            yield from (picture for tile in block.tiles for picture in tile.pictures)

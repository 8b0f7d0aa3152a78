"""Curves as inline SVG, whose colours follow the page: light or dark."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 340, 220
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 46, 30  # margins around the curves
LEGEND, LETTER = 15, 6.2  # height of a line of the legend, and about the width of a letter in it
MOST_POINTS = 400
TICKS = 4
LONGEST = 200  # characters of one name

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of a plot."""

    name: str
    points: Sequence[Point]
    style: str = "first"  # second, third or fourth
    mark: Point | None = None  # a point to show, such as the best one


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A few curves over one axis."""

    title: str
    curves: Sequence[Curve]
    across: str = "epoch"
    percent: bool = False
    named: bool = False  # a single curve has its name in a legend too


def harmless(text: str, longest: int = LONGEST) -> str:
    """Any text as HTML that is nothing but text: no tags, no control or direction codes, no half characters."""
    short = text if len(text) <= longest else text[: longest - 1] + "…"
    safe = (char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in short)
    return escape("".join(safe), quote=True)


def draw_plot(plot: Plot) -> str:
    """The plot as an SVG element; an empty text if no point is a number."""
    curves = [
        (curve, thin([point for point in curve.points if all(map(math.isfinite, point))])) for curve in plot.curves
    ]
    everything = [point for _, points in curves for point in points]
    if not everything:
        return ""
    xs, ys = [x for x, _ in everything], [y for _, y in everything]
    left, right = min(xs), max(xs)
    marks = round_steps(min(ys), max(ys))
    low, high = marks[0], marks[-1]
    legend = _place_legend([curve.name for curve in plot.curves]) if len(curves) > 1 or plot.named else []
    top = TOP + max((y for _, y in legend), default=0)

    def place(point: Point) -> Point:
        across = (point[0] - left) / (right - left) if right > left else 0.5
        up = (point[1] - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - top - BOTTOM)

    parts = [_text(0, 14, plot.title, "heading"), *_axes(plot, marks, left, right, place)]
    for curve, points in curves:
        parts.append(_line([place(point) for point in points], curve.style))
        if curve.mark is not None and _is_real(curve.mark):
            x, y = place(curve.mark)
            parts.append(f'<circle class="{curve.style}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
    for curve, (x, y) in zip(plot.curves, legend, strict=False):
        parts.append(_text(x, 34 + y, f"— {curve.name}", curve.style))
    spoken = harmless(f"{plot.title}; from {_number(ys[0], plot.percent)} to {_number(ys[-1], plot.percent)}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{spoken}">{"".join(parts)}</svg>'


def _place_legend(names: Sequence[str]) -> list[Point]:
    """Where each name of the legend begins, beside the others or, where there is no more room, below them."""
    places: list[Point] = []
    x, y = float(LEFT), 0
    for name in names:
        length = LETTER * min(len(name) + 2, LONGEST)
        if places and x + length > WIDTH - RIGHT:
            x, y = float(LEFT), y + LEGEND
        places.append((x, y))
        x += length + 14
    return places


def _axes(plot: Plot, marks: Sequence[float], left: float, right: float, place: Callable[[Point], Point]) -> list[str]:
    parts: list[str] = []
    for mark in marks:
        _, y = place((left, mark))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 6, y + 4, _number(mark, plot.percent), anchor="end"))
    for end, anchor in ((left, "start"), (right, "end")) if right > left else ((left, "middle"),):
        x, _ = place((end, marks[0]))
        parts.append(_text(x, HEIGHT - BOTTOM + 16, f"{end:g}", anchor=anchor))
    if right > left:
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 16, plot.across, anchor="middle"))
    return parts


def _line(points: Sequence[Point], style: str) -> str:
    if len(points) == 1:
        return f'<circle class="{style}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3"/>'
    return f'<polyline class="line {style}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{harmless(text)}</text>'


def _is_real(point: Point) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


def _number(value: float, percent: bool) -> str:
    return f"{100 * value:.4g} %" if percent else f"{value:.3g}"


def thin(points: Sequence[Point]) -> Sequence[Point]:
    """At most `MOST_POINTS` of the points, the first and last among them."""
    if len(points) <= MOST_POINTS:
        return points
    return [points[round(place * (len(points) - 1) / (MOST_POINTS - 1))] for place in range(MOST_POINTS)]


def round_steps(low: float, high: float) -> list[float]:
    """Round numbers, equally far apart, from at most `low` to at least `high`."""
    spread = high - low or abs(high) or 1.0
    rough = spread / TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]

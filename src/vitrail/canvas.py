"""Figures: how they are made and saved, colours for white and dark pages, fonts for names in any script."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, cast

from matplotlib import font_manager, rcParams
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.text import Text

from vitrail.files import atomic_path
from vitrail.wording import cut


@dataclass(frozen=True, kw_only=True)
class Theme:
    """What a figure is drawn with."""

    paper: str
    ink: str  # texts
    faint: str  # axes, and secondary text
    line: str  # grids
    blue: str
    red: str
    shades: tuple[str, ...]  # from the lowest value to the highest
    on_shade: str  # texts on the strongest shades


LIGHT = Theme(
    paper="#ffffff",
    ink="#1b1b1f",
    faint="#8a8a94",
    line="#ececf1",
    blue="#2f6db5",
    red="#c4483a",
    shades=("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b"),
    on_shade="#ffffff",
)
DARK = Theme(
    paper="#15161a",
    ink="#ececf1",
    faint="#8f8f9c",
    line="#34353e",
    blue="#6aa5ea",
    red="#f08a78",
    shades=("#1f2026", "#243b58", "#33669f", "#5f9fe0", "#b9dcff"),
    on_shade="#0c1420",
)
# For several curves or classes; visible on white and on dark pages.
COLORS = ("#4a86cf", "#d98a29", "#3f9a5f", "#d0594b", "#8d6cc0", "#3aa6a6", "#b85c96", "#8f7c61", "#6b7cf0", "#8aa62f")
DPI = 150
# Fonts for characters that matplotlib's own font lacks; which of them are installed depends on the system.
OTHERS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Hiragino Sans", "Microsoft YaHei")
_UNSET = ("black", "#000000", "k")  # matplotlib's default colour


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one plot, sized in inches; not through pyplot, which would keep it and open windows."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(length=3)
    open_frame(axes)
    return figure, axes


def open_frame(*plots: Axes) -> None:
    """Plots without a line above them and to their right."""
    for axes in plots:
        axes.spines[["top", "right"]].set_visible(False)


def shorten(name: str, length: int = 22) -> str:
    """A name that fits beside an axis; `$` must not start a formula."""
    return cut(name, length).replace("$", r"\$")


def shading(theme: Theme) -> LinearSegmentedColormap:
    """The theme's shades as a colour map."""
    return LinearSegmentedColormap.from_list("shades", theme.shades)


def paint(figure: Figure, theme: Theme) -> Figure:
    """Give the theme's colours to the background, the axes and all texts without a colour of their own."""
    figure.set_facecolor(theme.paper)
    for axes in figure.findobj(Axes):
        axes.set_facecolor(theme.paper)
        axes.tick_params(which="both", color=theme.faint, labelcolor=theme.ink)
        for spine in axes.spines.values():
            spine.set_edgecolor(theme.faint)
    for text in cast("list[Any]", figure.findobj(Text)):
        if text.get_color() in _UNSET:
            text.set_color(theme.ink)
    return figure


def figure_bytes(figure: Figure, kind: str = "png", **options: Any) -> bytes:
    """A figure as a file, without time and program, so that equal figures give equal files.

    It is made in memory: matplotlib cannot close a PDF that it could not write, and raises anything.
    """
    drawn = BytesIO()
    with _any_script(figure):
        metadata = {"CreationDate" if kind == "pdf" else "Software": None}
        figure.savefig(drawn, format=kind, metadata=cast("Any", metadata), **options)
    return drawn.getvalue()


def save_figure(figure: Figure, path: Path, **options: Any) -> None:
    """Write a figure as what the name ends with."""
    drawn = figure_bytes(figure, path.suffix[1:], **options)
    with atomic_path(path) as draft:
        draft.write_bytes(drawn)


@contextmanager
def _any_script(figure: Figure) -> Generator[None]:
    """While a figure is drawn: its texts may mix fonts, and a character that none has becomes a box, silently."""
    for text in cast("list[Any]", figure.findobj(Text)):
        text.set_family([*cast("Any", rcParams)["font.family"], *_installed()])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
        yield


@cache
def _installed() -> tuple[str, ...]:
    known = set(cast("Any", font_manager).get_font_names())
    return tuple(name for name in OTHERS if name in known)

"""Names of any script in figures: with the fonts that this machine has, without warnings where it has none."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from matplotlib import font_manager, rcParams
from matplotlib.figure import Figure
from matplotlib.text import Text

# Fonts for the signs that matplotlib's own has not; which of them are installed depends on the system.
OTHERS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Hiragino Sans", "Microsoft YaHei")


@contextmanager
def any_script(figure: Figure) -> Generator[None]:
    """While a figure is drawn: its texts may take signs from several fonts, and a sign of none is a quiet box."""
    for text in cast("list[Any]", figure.findobj(Text)):
        text.set_family([*cast("Any", rcParams)["font.family"], *_installed()])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from")
        yield


@cache
def _installed() -> tuple[str, ...]:
    known = set(cast("Any", font_manager).get_font_names())
    return tuple(name for name in OTHERS if name in known)

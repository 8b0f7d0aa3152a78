"""A prediction as a figure: the picture beside bars of its most likely classes."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from PIL import Image

from vitrail.canvas import LIGHT, Theme, figure_bytes, paint
from vitrail.data.pixels import Picture
from vitrail.data.transform import look_at_picture
from vitrail.errors import InputError
from vitrail.wording import cut

SIDE = 480  # pixels of the shown picture's longer side
LONGEST_LABEL = 32
DPI = 110


def plot_prediction(
    picture: Picture | None, labels: Sequence[str], scores: Sequence[float], theme: Theme = LIGHT
) -> Figure:
    """The bars of the classes, the most likely first, and the picture beside them if it can be opened."""
    shown = _open(picture)
    height = max(1.9, 0.3 * len(labels) + 0.4)
    figure = Figure(figsize=(height + 3.8 if shown else 3.8, height), layout="constrained")
    grid = figure.add_gridspec(1, 2, width_ratios=(height if shown else 0.001, 3.8))
    if shown:
        axes = figure.add_subplot(grid[0])
        axes.imshow(shown, interpolation="nearest" if max(shown.size) < SIDE else "antialiased")
        axes.set_axis_off()
    bars = figure.add_subplot(grid[1])
    colours = [theme.blue, *[theme.faint] * (len(labels) - 1)]
    bars.barh(range(len(labels)), scores, color=colours, height=0.7)
    bars.set_yticks(range(len(labels)), [cut(label, LONGEST_LABEL) for label in labels])
    bars.set(xlim=(0, 1.18), ylim=(max(len(labels), 3) - 0.4, -0.6), xticks=[])
    bars.spines[:].set_visible(False)
    bars.tick_params(length=0)
    for text in bars.get_yticklabels():
        text.set_parse_math(False)
    for place, score in enumerate(scores):
        bars.text(score + 0.02, place, f"{score:.1%}", va="center", fontsize=9)
    return paint(figure, theme)


def png_of(figure: Figure) -> bytes:
    """The bytes of a PNG file."""
    return figure_bytes(figure, dpi=DPI)


def _open(picture: Picture | None) -> Image.Image | None:
    if picture is None:
        return None
    try:
        image = look_at_picture(picture)
    except (InputError, OSError, ValueError):
        return None
    image.thumbnail((SIDE, SIDE))
    return image

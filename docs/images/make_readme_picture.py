"""Draw the README's picture: a prediction, its explanation and a confusion matrix, all of the bundled model.

    python docs/images/make_readme_picture.py docs/images cifar10

writes ship.png, which is the picture to classify, and readme.png. The second argument is CIFAR-10: a name or a folder.
The ship is drawn here, so that no photograph needs a licence.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image, ImageDraw

import vitrail
from vitrail.canvas import LIGHT, shading

WIDTH, HEIGHT, DPI = 12.0, 4.1, 110
BORDER = "#c9ccd4"  # visible on white and on dark pages
CODE = {"family": "DejaVu Sans Mono", "fontsize": 11, "fontweight": "bold", "color": LIGHT.ink}
NOTE = {"fontsize": 9.5, "color": "#55555f"}
SIDE, OVERSAMPLING = 320, 4

SKY, HORIZON, SEA = ((120, 175, 225), (210, 225, 240)), 0.62, ((52, 105, 140), (27, 60, 90))
WHITE, CREAM, GLASS = (245, 245, 240), (235, 235, 228), (50, 80, 110)
# The ship as polygons: colour, then corners in parts of the picture's side.
SHIP = (
    ((150, 40, 35), ((0.12, 0.60), (0.88, 0.60), (0.80, 0.74), (0.20, 0.74))),
    (WHITE, ((0.12, 0.60), (0.88, 0.60), (0.872, 0.63), (0.128, 0.63))),
    (WHITE, ((0.30, 0.48), (0.66, 0.48), (0.66, 0.60), (0.30, 0.60))),
    (CREAM, ((0.36, 0.38), (0.58, 0.38), (0.58, 0.48), (0.36, 0.48))),
    ((40, 40, 45), ((0.44, 0.24), (0.51, 0.24), (0.515, 0.38), (0.435, 0.38))),
    ((205, 150, 50), ((0.44, 0.27), (0.51, 0.27), (0.51, 0.30), (0.44, 0.30))),
    ((70, 60, 55), ((0.696, 0.30), (0.704, 0.30), (0.704, 0.60), (0.696, 0.60))),
    *((GLASS, ((x, 0.52), (x + 0.03, 0.52), (x + 0.03, 0.55), (x, 0.55))) for x in np.arange(6) * 0.055 + 0.33),
    *((GLASS, ((x, 0.41), (x + 0.03, 0.41), (x + 0.03, 0.44), (x, 0.44))) for x in np.arange(4) * 0.05 + 0.38),
)


def draw_ship() -> Image.Image:
    """A ship on the sea, drawn large and then shrunk, for smooth edges."""
    side = SIDE * OVERSAMPLING
    height = np.linspace(0, 1, side)[:, None]
    sky = _blend(*SKY, height / HORIZON)
    sea = _blend(*SEA, (height - HORIZON) / (1 - HORIZON))
    column = np.where(height < HORIZON, sky, sea).astype(np.uint8)
    image = Image.fromarray(np.repeat(column[:, None], side, axis=1))
    draw = ImageDraw.Draw(image)
    waves = np.random.default_rng(0)
    for x, y, length in waves.uniform((0, 0.66, 0.02), (1, 1, 0.09), (120, 3)):
        end = x + length * (0.5 + y)
        draw.line((x * side, y * side, end * side, y * side), fill=(95, 150, 178), width=side // 250)
    for colour, corners in SHIP:
        draw.polygon([(x * side, y * side) for x, y in corners], fill=colour)
    return image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def _blend(start: Any, end: Any, share: Any) -> Any:
    share = np.clip(share, 0, 1)
    return np.asarray(start) * (1 - share) + np.asarray(end) * share


def draw_panels(ship: Path, cifar: str) -> Figure:
    """Three panels on a white card, each from one call of the library."""
    rcParams["font.family"] = "DejaVu Sans"
    figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI)
    card = FancyBboxPatch(
        (0.004, 0.012),
        0.992,
        0.976,
        boxstyle="round,pad=0,rounding_size=0.012",
        mutation_aspect=WIDTH / HEIGHT,
        facecolor=LIGHT.paper,
        edgecolor=BORDER,
        linewidth=1.2,
        transform=figure.transFigure,
        zorder=-1,
    )
    figure.add_artist(card)
    model = vitrail.load()
    draw_prediction(figure, ship, model.predict(ship, top_k=4))
    draw_explanation(figure, vitrail.explain(model, ship))
    draw_confusion(figure, vitrail.evaluate(model, cifar, progress=True))
    return figure


def draw_prediction(figure: Figure, ship: Path, prediction: Any) -> None:
    """The picture, and its most likely classes as bars."""
    axes = figure.add_axes((0.025, 0.17, 0.215, 0.63))
    axes.imshow(Image.open(ship))
    axes.set_axis_off()
    figure.text(0.025, 0.88, "vitrail predict ship.png", **CODE)
    bars = figure.add_axes((0.285, 0.30, 0.105, 0.40))
    rows = range(len(prediction.labels))
    bars.barh(rows, prediction.scores, color=[LIGHT.blue, *[LIGHT.faint] * 3], height=0.6)
    bars.set_yticks(rows, prediction.labels, fontsize=11, color=LIGHT.ink)
    bars.set(xlim=(0, 1), ylim=(len(rows) - 0.4, -0.6), xticks=[])
    bars.tick_params(length=0)
    bars.spines[:].set_visible(False)
    for row, score in enumerate(prediction.scores):
        inside = score > 0.5
        position, align, colour = (score - 0.04, "right", "white") if inside else (score + 0.04, "left", LIGHT.ink)
        bars.text(position, row, f"{score:.1%}", va="center", ha=align, fontsize=10, color=colour)
    figure.text(0.025, 0.085, "the bundled CIFAR-10 model, on a drawing", **NOTE)


def draw_explanation(figure: Figure, why: Any) -> None:
    """The picture under the map of what counted."""
    axes = figure.add_axes((0.43, 0.17, 0.215, 0.63))
    axes.imshow(why.overlay)
    axes.set_axis_off()
    figure.text(0.43, 0.88, "vitrail explain ship.png", **CODE)
    figure.text(0.43, 0.085, f"why {why.explanation.label}? bright parts counted most", **NOTE)


def draw_confusion(figure: Figure, evaluation: Any) -> None:
    """The confusion matrix; the square root of the shares makes rare mistakes visible."""
    classes, top1 = evaluation.measurement.classes, evaluation.metrics.top1
    counts = np.asarray(evaluation.metrics.confusion)
    shares = np.sqrt(counts / counts.sum(axis=1, keepdims=True))
    axes = figure.add_axes((0.735, 0.17, 0.25, 0.66))
    axes.imshow(shares, cmap=shading(LIGHT), vmin=0, vmax=1, aspect="auto")
    for row, column in zip(*np.nonzero(counts), strict=True):
        colour = LIGHT.on_shade if shares[row, column] > 0.55 else LIGHT.ink
        axes.text(column, row, counts[row, column], ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_yticks(range(len(classes)), classes, fontsize=9, color=LIGHT.ink)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.text(0.665, 0.88, "vitrail eval cifar10", **CODE)
    note = f"{top1.value:.2%} of {top1.total:,} test pictures correct"
    figure.text(0.665, 0.085, f"{note}; rows: true class", **NOTE)


def main(folder: Path, cifar: str) -> None:
    """Write both pictures."""
    ship, target = folder / "ship.png", folder / "readme.png"
    draw_ship().save(ship, optimize=True)
    draw_panels(ship, cifar).savefig(target, transparent=True, metadata={"Software": None})
    Image.open(target).save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

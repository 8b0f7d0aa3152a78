"""Draw the pictures of the tutorial.

    python docs/tutorial/make_pictures.py                            # pages 1 and 2: from the bundled model
    python docs/tutorial/make_pictures.py RUN cifar10                # page 4 too: from its run, and CIFAR-10

Each is written to docs/tutorial/images, on a white card that suits light and dark pages, with at most 60 kB.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from PIL import Image

import vitrail
from vitrail.canvas import LIGHT, shading
from vitrail.data import open_data, prepare
from vitrail.model import AttentionQuery

FOLDER = Path(__file__).parent / "images"
SHIP = Path(__file__).parents[1] / "images" / "ship.png"
DPI, MOST_BYTES = 100, 60_000
PUBLISHED = 75.5


def draw_five_steps() -> Figure:
    """The ship, its patches, its tokens, with [cls] in front, and the answer."""
    figure = Figure(figsize=(11, 2.9), dpi=DPI, facecolor="white")
    ship = np.asarray(Image.open(SHIP).convert("RGB").resize((224, 224)))
    patches = ship.reshape(14, 16, 14, 16, 3).swapaxes(1, 2)
    picture = _panel(figure, 0.01, "1  cut into patches", "14 × 14 patches of 16 × 16 pixels")
    picture.imshow(ship)
    picture.set(xlim=(-0.5, 223.5), ylim=(223.5, -0.5))
    for line in range(0, 225, 16):
        picture.axhline(line - 0.5, color="white", linewidth=0.6)
        picture.axvline(line - 0.5, color="white", linewidth=0.6)
    rows = _panel(figure, 0.21, "2  project each patch", "196 × 768 (six of them shown)")
    _draw_rows(rows, [patches[row, 6] for row in (1, 4, 6, 8, 9, 12)], first=None)
    rows = _panel(figure, 0.41, "3  add [cls], positions", "197 × 768")
    _draw_rows(rows, [patches[row, 6] for row in (1, 4, 6, 8, 9)], first="[cls]")
    blocks = _panel(figure, 0.61, "4  twelve blocks", "197 × 768 in, 197 × 768 out")
    for number in range(4):
        y = 0.08 + 0.22 * number
        blocks.text(
            0.5, y + 0.08, "attention, MLP", ha="center", va="center", fontsize=9.5, color=LIGHT.ink, bbox=_box()
        )
    blocks.text(0.5, 0.97, "… × 12", ha="center", fontsize=9.5, color=LIGHT.ink)
    answer = _panel(figure, 0.81, "5  read [cls]", "LayerNorm, then Linear")
    prediction = vitrail.load().predict(SHIP, top_k=4)
    for row, (label, score) in enumerate(zip(prediction.labels, prediction.scores, strict=True)):
        answer.barh(0.8 - 0.2 * row, 0.5 * score, left=0.45, height=0.1, color=LIGHT.blue)
        answer.text(0.42, 0.8 - 0.2 * row, label, ha="right", va="center", fontsize=9.5, color=LIGHT.ink)
    for x in (0.192, 0.392, 0.592, 0.792):
        arrow = FancyArrowPatch(
            (x, 0.47), (x + 0.018, 0.47), transform=figure.transFigure, arrowstyle="-|>", mutation_scale=12
        )
        figure.add_artist(arrow)
    return figure


def _panel(figure: Figure, left: float, title: str, note: str) -> Any:
    axes = figure.add_axes((left, 0.16, 0.18, 0.66))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_axis_off()
    figure.text(left + 0.09, 0.90, title, ha="center", fontsize=11, fontweight="bold", color=LIGHT.ink)
    figure.text(left + 0.09, 0.05, note, ha="center", fontsize=8.5, color="#55555f")
    return axes


def _draw_rows(axes: Any, patches: list[np.ndarray], first: str | None) -> None:
    """Patches below each other, each beside a strip of numbers that stands for its token."""
    numbers = np.random.default_rng(0).normal(size=(6, 24))
    axes.set_aspect("auto")
    for row in range(6):
        y = 0.84 - 0.165 * row
        if first and row == 0:
            axes.text(0.09, y + 0.06, first, ha="center", va="center", fontsize=9.5, color=LIGHT.ink)
        else:
            axes.inset_axes((0.02, y, 0.15, 0.13)).imshow(patches[row - bool(first)])
        strip = axes.inset_axes((0.24, y + 0.02, 0.74, 0.09))
        strip.imshow(numbers[row : row + 1], cmap=shading(LIGHT), aspect="auto")
    for child in axes.child_axes:
        child.set(xticks=[], yticks=[])
        child.spines[:].set_visible(False)


def _box() -> dict[str, Any]:
    return {"boxstyle": "round,pad=0.45", "facecolor": "#eef1f8", "edgecolor": LIGHT.blue}


def draw_heads() -> Figure:
    """What the four heads of the first layer look at, averaged over the patches that look."""
    predictor = vitrail.load()
    image = prepare(SHIP, predictor.preprocess)[None]
    with torch.no_grad():
        shares = predictor.model.trace(image, attention=AttentionQuery(layers=(0,))).attention[0]
    ship = np.asarray(Image.open(SHIP).convert("RGB").resize((192, 192)))
    figure = Figure(figsize=(9, 2.2), dpi=DPI, facecolor="white")
    for head, looked_at in enumerate(shares[0].mean(dim=1).unflatten(-1, (8, 8))):
        axes = figure.add_axes((0.02 + 0.245 * head, 0.03, 0.225, 0.83))
        axes.imshow(_light(ship, looked_at.numpy()))
        axes.set_title(f"head {head}", fontsize=10, color=LIGHT.ink)
        axes.set_axis_off()
    return figure


def _light(picture: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The picture, dark where the map is low."""
    side = picture.shape[0]
    scaled = (grid - grid.min()) / (grid.max() - grid.min())
    light = Image.fromarray((255 * scaled).astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    return (picture * (0.25 + 0.75 * np.asarray(light)[:, :, None] / 255)).astype(np.uint8)


def draw_curve(run: Path) -> Figure:
    """Validation accuracy by epoch, and the published number."""
    figure = Figure(figsize=(8, 3.4), dpi=DPI, facecolor="white", layout="constrained")
    axes = figure.subplots()
    with (run / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    accuracies = [100 * float(row["val_accuracy"]) for row in rows]
    axes.plot([int(row["epoch"]) for row in rows], accuracies, color=LIGHT.blue, label="our recipe")
    axes.axhline(PUBLISHED, color=LIGHT.ink, linestyle=":", linewidth=1, label="published, after 100 epochs")
    axes.set(xlabel="epoch", ylabel="validation accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return figure


def draw_attention(run: Path, cifar: str) -> Figure:
    """Test pictures above where [cls] looks in the last layer, all heads together."""
    model = vitrail.load(run)
    source = open_data(cifar).splits["test"]
    chosen = [int(np.flatnonzero(np.asarray(source.labels) == label)[0]) for label in range(10)]
    figure = Figure(figsize=(10, 2.3), dpi=DPI, facecolor="white")
    for column, index in enumerate(chosen):
        picture = np.moveaxis(np.asarray(source.picture(index)), 0, -1)
        image = prepare(picture, model.preprocess)[None]
        with torch.no_grad():
            trace = model.model.trace(image, attention=AttentionQuery(layers=(-1,), queries="class"))
        looked_at = trace.attention[3][0, :, 0, 1:].mean(dim=0).unflatten(-1, (8, 8)).numpy()
        label = (model.classes or ())[int(trace.logits.argmax())]
        for row, shown in enumerate((picture, _light(picture, looked_at))):
            axes = figure.add_axes((0.005 + 0.0995 * column, 0.44 - 0.43 * row, 0.094, 0.42))
            axes.imshow(shown)
            axes.set_axis_off()
            if not row:
                axes.set_title(label, fontsize=9, color=LIGHT.ink)
    return figure


def save(figure: Figure, name: str, colours: int = 256) -> None:
    """As a PNG of few colours."""
    path = FOLDER / name
    figure.savefig(path, metadata={"Software": None})
    Image.open(path).convert("RGB").quantize(colours).save(path, optimize=True)
    assert path.stat().st_size <= MOST_BYTES, f"{path} has {path.stat().st_size} bytes"


def main(*arguments: str) -> None:
    """Draw what the arguments allow."""
    save(draw_five_steps(), "five-steps.png")
    save(draw_heads(), "heads.png")
    if arguments:
        run, cifar = arguments
        save(draw_curve(Path(run)), "training.png")
        save(draw_attention(Path(run), cifar), "attention.png", colours=64)


if __name__ == "__main__":
    main(*sys.argv[1:])

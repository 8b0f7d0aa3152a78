"""The paper's figures 6 and 7 for any checkpoint: filters, positions, attention distance, and attention on pictures.

What a model does not have (positions, patches cut from pixels) is `None` with a reason, never a stand-in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from vitrail.canvas import LIGHT, Theme, paint, save_figure
from vitrail.explanation.heatmap import enlarge, picture_of, scale_map, seen_part
from vitrail.explanation.passes import Groups, LayerInputs, grid_of, on_model, run
from vitrail.explanation.saliency import Explanation, Subject, spread
from vitrail.model import ViT
from vitrail.model.parts import ConvStem, Pair, PatchStem
from vitrail.model.patch_embed import ResNet
from vitrail.wording import counted

COMPONENTS = 28  # as in the paper
FILTERS = 64  # of a stem's first convolution


@dataclass(frozen=True, kw_only=True)
class Filters:
    """What the first layer looks for, as small pictures."""

    pictures: Tensor  # (n, C, rows, columns)
    explained: Tensor | None  # (n,) each principal component's share of the variance; None for plain filters
    what: str


def patch_filters(model: ViT, count: int = COMPONENTS) -> Filters:
    """The principal components of the patch embedding; for a model with a stem, its first convolution's filters."""
    stem = model.config.stem
    if not isinstance(stem, PatchStem):
        weight = _first_convolution(model)[:FILTERS]
        name = "conv" if isinstance(stem, ConvStem) else "ResNet"
        side = f"{weight.shape[-2]}×{weight.shape[-1]}"
        return Filters(pictures=weight.cpu(), explained=None, what=f"first {side} convolution of the {name} stem")
    weight = model.embed.patches.weight.detach().float()  # (D, C, rows, columns)
    components, explained = _principal_components(weight.flatten(1), count)
    pictures = components.unflatten(1, weight.shape[1:])
    return Filters(pictures=pictures, explained=explained, what="principal components of the patch embedding")


def _first_convolution(model: ViT) -> Tensor:
    """The weights as they are used: a ResNet's are standardised."""
    stem = model.embed.stem
    if isinstance(stem, ResNet):
        weight = stem.conv_root.weight.detach().float()
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
        return (weight - mean) / variance.sqrt().clamp(min=1e-12)
    first = next(module for module in stem.modules() if isinstance(module, torch.nn.Conv2d))
    return first.weight.detach().float()


def _principal_components(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first directions of the largest variance (count, features), and each one's share of the variance.

    The sign, which is arbitrary, is such that the largest entry is positive.
    """
    centred = (rows - rows.mean(dim=0)).cpu().double()  # not every device has float64
    _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
    directions, variance = directions[:count], singular.square() / singular.square().sum()
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return (directions * largest.sign()).float(), variance[:count].float()


def position_similarity(model: ViT) -> Tensor | None:
    """The cosine between the positions of every two patches (h, w, h, w), on the CPU; None without positions."""
    _, positions = model.embed.positions_at(model.config.grid)
    if positions is None:
        return None
    unit = F.normalize(positions[0].detach().float().cpu(), dim=1)  # (h·w, D)
    return (unit @ unit.T).unflatten(0, model.config.grid).unflatten(2, model.config.grid)


def attention_distance(model: ViT, images: Tensor) -> Tensor:
    """How far each head looks on average, in pixels of the model's input: (layers, H).

    The mean, over the patches that look and the pictures, of the distance between the centres of patches, weighted by
    attention. [cls] and registers have no place: their rows are left out, and each patch's attention to patches is
    scaled to sum to 1. Where tokens are merged, the patches in one attend and are attended to as one.
    """
    images = on_model(model, images)
    prefix, depth = model.config.prefix, model.config.depth
    far = patch_distances(grid_of(model, images), model.config.stride).to(images.device)
    layers: list[Tensor] = []
    groups = Groups(prefix)

    def look(inputs: LayerInputs) -> None:
        if inputs.layer < depth:
            means: list[Tensor] = []
            for part in inputs.select(queries=slice(prefix, None)).chunks():
                among = part[..., prefix:]
                among = groups.repeat(groups.spread(among / among.sum(dim=-1, keepdim=True)))
                means.append((among * far).sum(dim=-1).mean(dim=(0, 2)))
            layers.append(torch.cat(means))

    with torch.inference_mode():
        run(model, images, look, watch=groups.watch, all_queries=True)
    return torch.stack(layers).float().cpu()


def patch_distances(grid: Pair, stride: Pair) -> Tensor:
    """The distance in pixels between the centres of every two patches: (h·w, h·w)."""
    rows, columns = torch.meshgrid(
        torch.arange(grid[0]) * float(stride[0]), torch.arange(grid[1]) * float(stride[1]), indexing="ij"
    )
    places = torch.stack([rows.flatten(), columns.flatten()], dim=1)
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")


STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "pdf.fonttype": 42,  # text stays text: journals ask for it, and it can be searched
    "savefig.dpi": 300,
}
FILTER_SIDE = 0.72  # inches of one filter
FILTER_GAP = 0.08  # between two of them, as a share of one
EXAMPLES = 6  # pictures in the attention figure
EXAMPLE_SIDE = 1.25  # inches of one of them
PRINTED = 512  # and its pixels
DARKEST, GAMMA = 0.12, 0.6  # how a map becomes light: half the light looks more than half as bright
MOST_TICKS = 12
MOST_TILES = 7  # across and down in the figure of the positions, as in the paper: more would be too small to see


@matplotlib.rc_context(STYLE)
def save_paper_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """One PDF and one PNG."""
    paths = [folder / f"{name}.pdf", folder / f"{name}.png"]
    for path in paths:
        save_figure(figure, path, bbox_inches="tight", pad_inches=0.05)
    return paths


@matplotlib.rc_context(STYLE)
def plot_filters(filters: Filters, theme: Theme = LIGHT) -> Figure:
    """Each filter or component as a small picture, on its own scale."""
    count, channels = filters.pictures.shape[:2]
    columns = min(7 if filters.explained is not None else 8, count)
    rows = -(-count // columns)
    title = filters.what[0].upper() + filters.what[1:]
    if filters.explained is not None:
        title += f"\n{count} components hold {filters.explained.sum():.0%} of the variance"
    if channels not in (1, 3):
        title += f"\n(mean of {channels} channels)"
    height, head = FILTER_SIDE * rows, 0.18 * (title.count("\n") + 1) + 0.08
    figure = Figure(figsize=(FILTER_SIDE * columns, height + head))
    axes = figure.add_axes((0, 0, 1, height / (height + head)))  # one for all: each costs as much as all its pictures
    for index, picture in enumerate(filters.pictures):
        low, high = picture.min(), picture.max()
        shown = ((picture - low) / (high - low).clamp(min=1e-12)).permute(1, 2, 0).numpy()
        shown = shown if channels == 3 else shown.mean(axis=2)
        tall, wide = (side / max(shown.shape[:2]) for side in shown.shape[:2])
        left, top = index % columns * (1 + FILTER_GAP), index // columns * (1 + FILTER_GAP)
        left, top = left + (1 - wide) / 2, top + (1 - tall) / 2
        box = (left, left + wide, top + tall, top)
        axes.imshow(shown, cmap=None if channels == 3 else "gray", interpolation="nearest", extent=box)
        frame = Rectangle((left, top), wide, tall, fill=False, edgecolor=theme.faint, linewidth=0.4, clip_on=False)
        axes.add_patch(frame)
    axes.set(xlim=(0, columns * (1 + FILTER_GAP) - FILTER_GAP), ylim=(rows * (1 + FILTER_GAP) - FILTER_GAP, 0))
    axes.set_axis_off()
    figure.suptitle(title, fontsize=10, y=1.0, va="top")
    return paint(figure, theme)


@matplotlib.rc_context(STYLE)
def plot_positions(similarity: Tensor, kind: str, theme: Theme = LIGHT) -> Figure:
    """For each patch, or some evenly spread ones, a tile: the cosine of its position with all positions."""
    rows, columns = similarity.shape[:2]
    down, across = _spread(rows), _spread(columns)
    gap = max(1, round(max(rows, columns) / 12))  # below and to the right of each tile
    mosaic = np.full((len(down) * (rows + gap), len(across) * (columns + gap)), np.nan)
    for line, row in enumerate(down):
        for cell, column in enumerate(across):
            top, left = line * (rows + gap), cell * (columns + gap)
            mosaic[top : top + rows, left : left + columns] = similarity[row, column].numpy()
    mosaic = mosaic[:-gap, :-gap]
    shape = mosaic.shape[0] / mosaic.shape[1]
    width = min(4.6, 4.6 / shape)
    figure = Figure(figsize=(width + 1.2, width * shape + 0.8))
    axes = figure.add_subplot()
    low, high = _range_of_others(similarity)
    shown = axes.imshow(mosaic, cmap="viridis", vmin=low, vmax=high, interpolation="nearest")
    for places, indices, side in ((axes.set_xticks, across, columns), (axes.set_yticks, down, rows)):
        middles = [tile * (side + gap) + (side - 1) / 2 for tile in range(len(indices))]
        places(middles, [f"{index + 1}" for index in indices])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("input patch column")
    axes.set_ylabel("input patch row")
    axes.set_title(f"Position embedding similarity ({kind})")
    bar = figure.colorbar(shown, cax=axes.inset_axes((1.0 + 0.12 / width, 0, 0.14 / width, 1)), extend="max")
    bar.set_label("cosine similarity (1 with itself)")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return paint(figure, theme)


def _range_of_others(similarity: Tensor) -> tuple[float, float]:
    """The lowest and highest cosine of two different patches: the 1 of each with itself would hide them."""
    count = similarity.shape[0] * similarity.shape[1]
    others = similarity.reshape(count, count)[~torch.eye(count, dtype=torch.bool)]
    if not others.numel() or others.min() == others.max():
        return float(similarity.min()), 1.0
    return float(others.min()), float(others.max())


def _spread(count: int) -> list[int]:
    """At most `MOST_TILES` numbers below `count`, evenly spread, the first and the last among them."""
    if count <= MOST_TILES:
        return list(range(count))
    return [round(tile * (count - 1) / (MOST_TILES - 1)) for tile in range(MOST_TILES)]


@matplotlib.rc_context(STYLE)
def plot_distance(distance: Tensor, pictures: int, size: Pair, theme: Theme = LIGHT) -> Figure:
    """One dot per head and layer, and the layers' means as a line; the axis reaches to half the picture's diagonal."""
    layers, heads = distance.shape
    figure = Figure(figsize=(4.2, 3.0))
    axes = figure.add_subplot()
    dark = theme is not LIGHT  # colours that would vanish into the background are left out
    colours = matplotlib.colormaps["viridis"](np.linspace(0.25 if dark else 0, 1 if dark else 0.92, heads))
    for head in range(heads):
        axes.scatter(range(layers), distance[:, head].numpy(), s=16, color=colours[head], linewidths=0, zorder=3)
    axes.plot(range(layers), distance.mean(dim=1).numpy(), color=theme.faint, linewidth=1, zorder=2, label="mean")
    axes.set_xlabel("network depth (layer)")
    axes.set_ylabel("mean attention distance (pixels)")
    axes.set_ylim(0, max(float(distance.max()) * 1.1, float(np.hypot(*size)) * 0.5))
    axes.set_xticks(range(0, layers, -(-layers // MOST_TICKS)))
    axes.grid(axis="y", linewidth=0.6, color=theme.line)
    on = counted(pictures, "picture")
    axes.set_title(f"How far {'the head' if heads == 1 else f'each of {heads} heads'} looks, on {on}")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return paint(figure, theme)


@matplotlib.rc_context(STYLE)
def plot_attention(explained: Sequence[tuple[Subject, Explanation]], who: str) -> Figure:
    """Each picture, and beside it the same picture lit by the attention that reaches it (the paper's figure 6)."""
    columns = min(3, len(explained))
    rows = -(-len(explained) // columns)
    pictures = [_lit(subject, explanation) for subject, explanation in explained]
    tallest = max(seen.shape[0] / seen.shape[1] for seen, _ in pictures)
    height, head = (EXAMPLE_SIDE * min(tallest, 2.0) + 0.2) * rows, 0.15
    figure = Figure(figsize=(2 * EXAMPLE_SIDE * columns, height + head))
    for index, ((_, explanation), pair) in enumerate(zip(explained, pictures, strict=True)):
        for offset, image in enumerate(pair):
            axes = figure.add_subplot(rows, 2 * columns, 2 * index + offset + 1)
            axes.imshow(image, interpolation="nearest")
            axes.set_axis_off()
            if offset == 1 and explanation.predicted:
                axes.set_title(
                    f"{explanation.predicted} {explanation.confidence:.0%}", fontsize=8, pad=3, parse_math=False
                )
            elif offset == 0:
                axes.set_title("input", fontsize=8, pad=3, color="#777777")
    top = (height - 0.2) / (height + head)  # the first row's titles are above it
    figure.subplots_adjust(wspace=0.05, hspace=0.22, left=0, right=1, bottom=0, top=top)
    figure.suptitle(f"Attention rollout from {who}", fontsize=10, y=1.0, va="top")
    return paint(figure, LIGHT)


def _lit(subject: Subject, explanation: Explanation) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    seen = enlarge(seen_part(subject, PRINTED))
    pixels = np.asarray(picture_of(seen))
    light = spread(scale_map(explanation.map), seen.view).clamp(0, 1).numpy()[..., None]
    return pixels, (pixels * (DARKEST + (1 - DARKEST) * light**GAMMA)).astype(np.uint8)

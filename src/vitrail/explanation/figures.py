"""The numbers behind the paper's figures 6 and 7, for any checkpoint: filters, positions, attention distance.

What a model does not have (positions, patches cut from pixels) is `None` with a reason, never a stand-in. `plots`
draws them.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.explanation.groups import Groups
from vitrail.explanation.passes import fused, grid_of, head_chunks, on_model, run
from vitrail.model import ViT
from vitrail.model.config import ConvStem, Pair, PatchStem
from vitrail.model.stem import ResNet

COMPONENTS = 28  # as in the paper
FILTERS = 64  # of a stem's first convolution


@dataclass(frozen=True, kw_only=True)
class Filters:
    """What the first layer looks for, as small pictures."""

    pictures: Tensor  # (n, C, rows, columns)
    explained: Tensor | None  # (n,) the part of the variance of each principal component; None for plain filters
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
    components, explained = principal_components(weight.flatten(1), count)
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


def principal_components(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The first directions of the largest variance (count, features), and each one's part of all variance.

    The sign, which is arbitrary, is such that the largest entry is positive.
    """
    centred = (rows - rows.mean(dim=0)).cpu().double()  # not every device has float64
    _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
    directions, variance = directions[:count], singular.square() / singular.square().sum()
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return (directions * largest.sign()).float(), variance[:count].float()


def position_similarity(model: ViT) -> Tensor | None:
    """The cosine of the positions of each two patches (h, w, h, w), on the CPU; None if the model has no positions."""
    _, positions = model.embed.positions_at(model.config.grid)
    if positions is None:
        return None
    unit = F.normalize(positions[0].detach().float().cpu(), dim=1)  # (h·w, D)
    return (unit @ unit.T).unflatten(0, model.config.grid).unflatten(2, model.config.grid)


def attention_distance(model: ViT, images: Tensor) -> Tensor:
    """How far each head looks on average, in pixels of the model's input: (layers, H).

    The mean, over the patches that look and the pictures, of the distance between the centres of patches, weighted by
    attention. [cls] and registers have no place: their rows are left out, and each patch's attention to patches is
    brought to the sum 1. Where tokens are merged, the patches in one look and are looked at as one.
    """
    images = on_model(model, images)
    prefix, depth = model.config.prefix, model.config.depth
    far = patch_distances(grid_of(model, images), model.config.stride).to(images.device)
    layers: list[Tensor] = []
    groups = Groups(prefix)

    def mix(layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        if layer < depth:
            means: list[Tensor] = []
            for part in head_chunks(query[:, :, prefix:], key, mask, scale):
                among = part[..., prefix:]
                among = groups.repeat(groups.spread(among / among.sum(dim=-1, keepdim=True)))
                means.append((among * far).sum(dim=-1).mean(dim=(0, 2)))
            layers.append(torch.cat(means))
        return fused(query, key, value, mask, scale)

    with torch.inference_mode():
        run(model, images, mix, watch=groups.watch, all_queries=True)
    return torch.stack(layers).float().cpu()


def patch_distances(grid: Pair, stride: Pair) -> Tensor:
    """The distance in pixels between the centres of each two patches: (h·w, h·w)."""
    rows, columns = torch.meshgrid(
        torch.arange(grid[0]) * float(stride[0]), torch.arange(grid[1]) * float(stride[1]), indexing="ij"
    )
    places = torch.stack([rows.flatten(), columns.flatten()], dim=1)
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")

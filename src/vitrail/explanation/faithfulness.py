"""Which explanation to trust: deletion and insertion curves ("RISE", Petsiuk et al., 2018).

deletion    patches disappear, the most important first, under the picture's own mean colour; if the map is right, the
            class's probability falls at once, so a small area under the curve is good
insertion   patches appear, the most important first, on a blurred picture (Gaussian, σ a tenth of the shorter side); if
            the map is right, the probability rises at once, so a large area is good

The score is insertion − deletion. A random map shows what a map without any information scores.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.explanation.occlusion import answer_in_batches, mean_colour
from vitrail.explanation.passes import on_model
from vitrail.model import ViT

STEPS = 12
BLUR = 0.1  # σ, as a share of the shorter side


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """Areas under the two curves, each between 0 and 1."""

    deletion: float
    insertion: float

    @property
    def score(self) -> float:
        """Higher is better; what a map without information scores depends on the picture: see `random_map`."""
        return self.insertion - self.deletion


def measure(model: ViT, image: Tensor, target: int, cells: Tensor, steps: int = STEPS) -> Faithfulness:
    """How well the map `cells` (h, w) orders the patches of a prepared picture (C, H, W) for the target."""
    image = on_model(model, image)
    removed = removals(cells.to(image.device), steps)  # (steps + 1, h, w)
    with torch.inference_mode():
        deletion = _area(model, image, mean_colour(image), ~removed, target)
        insertion = _area(model, image, blurred(image), removed, target)
    return Faithfulness(deletion=deletion, insertion=insertion)


def removals(cells: Tensor, steps: int) -> Tensor:
    """Which patches have been taken after 0, 1, …, `steps` equal steps, the most important first."""
    count = cells.numel()
    rank = torch.empty(count, dtype=torch.long, device=cells.device)
    rank[cells.flatten().argsort(descending=True, stable=True)] = torch.arange(count, device=cells.device)
    taken = torch.linspace(0, count, min(steps, count) + 1, device=cells.device).round()
    return (rank < taken[:, None]).view(-1, *cells.shape)


def _area(model: ViT, image: Tensor, baseline: Tensor, shown: Tensor, target: int) -> float:
    """The area under the target's probability, by trapezoids; the curve has equal steps up to whole patches."""
    curve = answer_in_batches(model, image, baseline, shown).float().softmax(dim=1)[:, target]
    places = shown.flatten(1).float().mean(dim=1)
    return abs(torch.trapezoid(curve, places).item())


def blurred(image: Tensor) -> Tensor:
    """A picture (C, H, W) blurred so far that colours remain but no shapes."""
    sigma = BLUR * min(image.shape[-2:])
    radius = math.ceil(3 * sigma)
    places = torch.arange(-radius, radius + 1, device=image.device, dtype=torch.float32)
    kernel = (-(places**2) / (2 * sigma**2)).exp()
    kernel = (kernel / kernel.sum()).to(image.dtype)
    padded = F.pad(image[:, None], (radius,) * 4, mode="replicate")  # (C, 1, H + 2r, W + 2r)
    return F.conv2d(F.conv2d(padded, kernel[None, None, None, :]), kernel[None, None, :, None])[:, 0]


def random_map(grid: tuple[int, int], seed: int) -> Tensor:
    """A map without information, the same for each seed."""
    return torch.rand(grid, generator=torch.Generator().manual_seed(seed))

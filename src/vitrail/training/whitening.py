"""First filters that whiten the pictures' patches: the directions in which these vary, each scaled to variance 1.

What the filters would have to learn first is known from the pictures: neighbouring pixels are nearly equal, so that
random filters all see the same brightness ("94% on CIFAR-10 in 3.29 Seconds on a Single GPU", Jordan, 2024).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data import Dataset, Preprocess
from vitrail.data.chunks import read_samples
from vitrail.data.source import refuse_broken
from vitrail.errors import ConfigError
from vitrail.model import ResNetStem, ViT, ViTConfig
from vitrail.rng import start_of_permutation
from vitrail.weights.adapt import first_filters

PICTURES = 4096  # that are looked at, at most
TOGETHER = 64  # of them in memory
EPSILON = 5e-4  # added to variances: what hardly varies is mostly rounding


def check_whitening(config: ViTConfig) -> None:
    """Refuse a model whose first layer does not simply convolve the pixels."""
    if isinstance(config.stem, ResNetStem) or config.pixel_norm:
        reason = "normalises its pixels first" if config.pixel_norm else "standardises its first filters in each step"
        raise ConfigError(
            f"needs filters that see the pixels as they are; this model {reason}; omit it.", field="whiten"
        )


def first_weight(model: ViT) -> nn.Parameter:
    """The filters (filters, C, rows, columns) that see the pixels."""
    return model.get_parameter(first_filters(model.config))


@torch.no_grad()
def whiten(model: ViT, dataset: Dataset, spec: Preprocess, seed: int) -> int:
    """Set the first filters by the patches of some training pictures; how many pictures these were.

    The directions come first, those of most variance ahead, then their negatives, which an activation tells apart;
    filters beyond these stay as they are.
    """
    check_whitening(model.config)
    weight = first_weight(model)
    covariance, count = patch_covariance(dataset, spec, (weight.shape[2], weight.shape[3]), seed)
    variances, directions = torch.linalg.eigh(covariance)  # rising
    scaled = (directions / (variances + EPSILON).sqrt()).T.flip(0)
    filters = torch.cat([scaled, -scaled])[: len(weight)]
    weight[: len(filters)] = filters.view(-1, *weight.shape[1:]).to(weight)
    return count


def patch_covariance(dataset: Dataset, spec: Preprocess, size: tuple[int, int], seed: int) -> tuple[Tensor, int]:
    """The covariance of all numbers of a patch, over training pictures as the model sees them; how many these were."""
    source = dataset.split("train")
    chosen = np.sort(start_of_permutation(PICTURES, seed, 0, len(source), "whiten"))
    length = spec.channels * size[0] * size[1]
    products, sums = torch.zeros(length, length, dtype=torch.float64), torch.zeros(length, dtype=torch.float64)
    num_patches, broken = 0, dict[str, str]()
    for start in range(0, len(chosen), TOGETHER):
        images, chunk = read_samples(source, spec, chosen[start : start + TOGETHER])
        broken |= chunk.broken
        patches = F.unfold(images.double(), size, stride=size).transpose(1, 2).flatten(0, 1)  # (patches, C·h·w)
        products += patches.T @ patches
        sums += patches.sum(0)
        num_patches += len(patches)
    refuse_broken(broken, len(chosen), dataset.max_broken_rate)
    mean = sums / num_patches
    return products / num_patches - mean.outer(mean), len(chosen) - len(broken)

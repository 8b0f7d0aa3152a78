"""Attention rollout ("Quantifying Attention Flow in Transformers", Abnar & Zuidema, 2020).

Each layer passes on half of what a token had (the residual) and half of what it attended to, averaged over the heads:
Â = ½ A + ½ I. The product Â_L ⋯ Â_1 says how much of each patch reaches the tokens that the pooling reads. The
forward pass stays fused; each layer's head mean is computed from its queries and keys and multiplied in at once, so
that one (N, N) matrix is kept, whatever the depth and the number of heads. Where a layer merges tokens, the matrix that
does so is one more factor.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.explanation.groups import Groups
from vitrail.explanation.passes import fused, grid_of, head_mean, on_model, run
from vitrail.model import ViT, ViTConfig


def rollout(model: ViT, images: Tensor) -> tuple[Tensor, Tensor]:
    """The part of each patch in what the pooling reads (B, h, w), and the logits."""
    images = on_model(model, images)
    config, groups = model.config, Groups(model.config.prefix)
    flow = Flow(config, groups)

    def mix(layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        mean = head_mean(query, key, mask, scale)  # (B, queries, keys)
        flow.multiply(mean if layer == config.depth else half_residual(mean))
        return fused(query, key, value, mask, scale)

    def watch(layer: int, tokens: Tensor, patches: Tensor | None) -> None:
        groups.watch(layer, tokens, patches)
        if groups.merged is not None:
            flow.multiply(groups.merged)

    with torch.inference_mode():
        logits = run(model, images, mix, watch=watch)
        return flow.reading().unflatten(-1, grid_of(model, images)), logits


def half_residual(mean: Tensor) -> Tensor:
    """½ A + ½ I, in place. The queries are the first of the tokens, so the rectangular I has its ones there."""
    mean = mean.div_(2)
    mean.diagonal(dim1=-2, dim2=-1).add_(0.5)
    return mean


class Flow:
    """The product of the layers' matrices, from the first to the last, and what the pooling reads of it."""

    def __init__(self, config: ViTConfig, groups: Groups) -> None:
        self.config, self.groups = config, groups
        self.product: Tensor | None = None  # (B, queries of the last layer, N)

    def multiply(self, matrix: Tensor) -> None:
        """Put one more layer (B, queries, keys) in front; attention pooling sees only the patches."""
        if self.product is None:
            self.product = matrix
            return
        missing = self.product.shape[1] - matrix.shape[2]
        self.product = F.pad(matrix, (missing, 0)) @ self.product

    def reading(self) -> Tensor:
        """What the pooling reads, of each patch: (B, h·w)."""
        assert self.product is not None
        prefix, sizes = self.config.prefix, self.groups.sizes
        if self.config.pooling != "mean":
            return self.product[:, 0, prefix:]
        rows = self.product[:, prefix:]
        if sizes is None:
            return rows.mean(dim=1)[:, prefix:]
        return torch.einsum("bn,bnk->bk", (sizes / sizes.sum(dim=1, keepdim=True)).to(rows.dtype), rows)[:, prefix:]

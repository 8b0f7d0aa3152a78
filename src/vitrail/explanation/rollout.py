"""Attention rollout ("Quantifying Attention Flow in Transformers", Abnar & Zuidema, 2020).

Each layer passes on half of what a token had (the residual) and half of what it attended to, averaged over the heads:
Â = ½ A + ½ I. The product Â_L ⋯ Â_1 gives how much of each patch reaches the tokens that the pooling reads. The
forward pass stays fused; each layer's head mean is computed from its queries and keys and multiplied in at once, so
that one (N, N) matrix is kept, whatever the depth and the number of heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.explanation.passes import fused, grid_of, head_mean, on_model, run
from vitrail.model import ViT


def rollout(model: ViT, images: Tensor) -> tuple[Tensor, Tensor]:
    """The share of each patch in what the pooling reads (B, h, w), and the logits."""
    images = on_model(model, images)
    config, flow = model.config, Flow(model)

    def mix(layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        mean = head_mean(query, key, scale)  # (B, queries, keys)
        flow.multiply(mean if layer == config.depth else half_residual(mean))
        return fused(query, key, value, scale)

    with torch.inference_mode():
        logits = run(model, images, mix)
        return flow.reading().unflatten(-1, grid_of(model, images)), logits


def half_residual(mean: Tensor) -> Tensor:
    """½ A + ½ I, in place. The queries are the first of the tokens, so the rectangular I has its ones there."""
    mean = mean.div_(2)
    mean.diagonal(dim1=-2, dim2=-1).add_(0.5)
    return mean


class Flow:
    """The product of the layers' matrices, from the first to the last, and what the pooling reads of it."""

    def __init__(self, model: ViT) -> None:
        self.config = model.config
        self.product: Tensor | None = None  # (B, queries of the last layer, N)

    def multiply(self, matrix: Tensor) -> None:
        """Put one more layer (B, queries, keys) in front; attention pooling sees only the patches."""
        if self.product is None:
            self.product = matrix
            return
        missing = self.product.shape[1] - matrix.shape[2]
        self.product = F.pad(matrix, (missing, 0)) @ self.product

    def reading(self) -> Tensor:
        """How much of each patch the pooling reads: (B, h·w)."""
        assert self.product is not None
        prefix = self.config.prefix
        rows = self.product[:, prefix:] if self.config.pooling == "mean" else self.product[:, :1]
        return rows.mean(dim=1)[:, prefix:]

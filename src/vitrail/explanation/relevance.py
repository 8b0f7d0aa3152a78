"""How attention flows through the layers to what the pooling reads: for all classes together, or for one of them.

rollout           ("Quantifying Attention Flow in Transformers", Abnar & Zuidema, 2020) Each layer passes on half of
                  what a token had (the residual) and half of what it attended to, averaged over the heads:
                  Â = ½ A + ½ I. The product Â_L ⋯ Â_1 gives how much of each patch reaches the tokens that
                  the pooling reads. The forward pass stays fused; each layer's head mean is computed from its
                  queries and keys and multiplied in at once, so that one (N, N) matrix is kept,
                  whatever the depth and number of heads.

The others explain one class, through the gradient of its logit with respect to the attention probabilities. Both
weigh the heads by what they do for the class: Ā = E_h[(∇A ⊙ A)⁺].

relevance         R ← R + Ā R from the first layer to the last ("Generic Attention-model Explainability", Chefer, Gur &
                  Wolf, 2021). We go from the last to the first with the row that the pooling reads, which is the
                  same product for N² instead of N³ operations per layer, and leave out the identity that R starts
                  with, which for [cls] touches no patch and for the mean adds the same to all.
gradient rollout  attention rollout with the rows of Ā, scaled to sum to 1, in place of the plain mean of the heads.
                  A token whose row is zero (nothing it attends to counts for the class) keeps what it has.

Attention pooling is one more layer without a residual: its own weighted attention is the row that we start with.
Where a layer merges tokens, the matrix M that does so stands between it and the next: R ← M R. A merged token's row
stands for the rows of all its patches; its gradient, which is the sum of theirs, is divided among them.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.explanation.passes import Groups, LayerInputs, grid_of, on_model, run
from vitrail.model import ViT, ViTConfig
from vitrail.model.attention import probabilities
from vitrail.tasks.one import ONE
from vitrail.tasks.task import Task


def rollout(model: ViT, images: Tensor) -> tuple[Tensor, Tensor]:
    """The share of each patch in what the pooling reads (B, h, w), and the logits."""
    images = on_model(model, images)
    config, groups = model.config, Groups(model.config.prefix)
    flow = Flow(config, groups)

    def look(inputs: LayerInputs) -> None:
        mean = inputs.mean()  # (B, queries, keys)
        flow.multiply(mean if inputs.layer == config.depth else half_residual(mean))

    def watch(layer: int, tokens: Tensor, patches: Tensor | None) -> None:
        groups.watch(layer, tokens, patches)
        if groups.merged is not None:
            flow.multiply(groups.merged)

    with torch.inference_mode():
        logits = run(model, images, look, watch=watch)
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
        """How much of each patch the pooling reads: (B, h·w)."""
        assert self.product is not None
        rows, prefix = self.product, self.config.prefix
        if self.config.pooling == "map":
            return rows[:, 0, prefix:]
        reads = self.groups.reads(self.config, rows.shape[1], rows).expand(len(rows), -1)
        return torch.einsum("bn,bnk->bk", reads, rows)[:, prefix:]


@dataclass(frozen=True, kw_only=True)
class WeightedAttention:
    """Ā of each layer."""

    layers: list[Tensor]  # each (B, queries, keys); the pool's is the last where there is attention pooling
    merged: dict[int, Tensor]  # layer → (B, N′, N): what it made of its tokens, where it merged some
    groups: Groups  # the tokens after the last layer
    logits: Tensor  # (B, classes)


def relevance(model: ViT, images: Tensor, targets: Tensor | None = None, task: Task = ONE) -> tuple[Tensor, Tensor]:
    """What each patch adds to the target's logit, as far as attention carries it (B, h, w), and the logits.

    `targets` (B,) are classes; without them, the predicted ones.
    """
    weighted = weigh_attention(model, images, targets, task)
    config, layers = model.config, weighted.layers
    row = start = _reading_row(model, weighted)  # (B, N)
    for layer, matrix in reversed([*enumerate(layers[: config.depth])]):
        if layer in weighted.merged:
            row, start = ((weights[:, None] @ weighted.merged[layer])[:, 0] for weights in (row, start))
        row = row + (row[:, None, : matrix.shape[1]] @ matrix)[:, 0]  # the queries are the first of the tokens
    relevances = row if config.pooling == "map" else row - start
    return relevances[:, config.prefix :].unflatten(-1, grid_of(model, images)), weighted.logits


def gradient_rollout(
    model: ViT, images: Tensor, targets: Tensor | None = None, task: Task = ONE
) -> tuple[Tensor, Tensor]:
    """Rollout of the attention that counts for the target (B, h, w), and the logits."""
    weighted = weigh_attention(model, images, targets, task)
    flow = Flow(model.config, weighted.groups)
    for layer, matrix in enumerate(weighted.layers):
        shares = _rows_to_one(matrix)
        if layer < model.config.depth:  # rows that attend to nothing have lost half of what they had
            shares = _rows_to_one(half_residual(shares))
        flow.multiply(shares)
        if layer in weighted.merged:
            flow.multiply(weighted.merged[layer])
    return flow.reading().unflatten(-1, grid_of(model, images)), weighted.logits


def weigh_attention(model: ViT, images: Tensor, targets: Tensor | None, task: Task) -> WeightedAttention:
    """E_h[(∇A ⊙ A)⁺] of each layer: one forward with all probabilities kept, one backward down to the first layer."""
    if not model.config.num_classes:
        raise ConfigError("this model has no head, so there is no class to explain; use method attention or rollout.")
    kept: list[Tensor] = []
    sizes: list[Tensor | float] = []  # of the queries: (B, 1, queries, 1)
    groups, merged = Groups(model.config.prefix), dict[int, Tensor]()

    def watch(layer: int, tokens: Tensor, patches: Tensor | None) -> None:
        groups.watch(layer, tokens, patches)
        if groups.merged is not None:
            merged[layer] = groups.merged

    def look(inputs: LayerInputs) -> Tensor:
        attention = probabilities(inputs.query, inputs.key, inputs.scale, inputs.mask)
        attention = attention if attention.requires_grad else attention.requires_grad_()  # frozen weights
        kept.append(attention)
        probe = inputs.layer == model.config.depth  # of attention pooling, which is never merged
        merged_sizes = None if groups.sizes is None or probe else F.pad(groups.sizes, (groups.prefix, 0), value=1)
        sizes.append(1.0 if merged_sizes is None else merged_sizes[:, None, : inputs.query.shape[2], None])
        return attention.to(inputs.value.dtype) @ inputs.value

    with torch.inference_mode(False), torch.enable_grad():
        logits = run(model, on_model(model, images).detach().clone(), look, watch=watch)
        chosen = logits.argmax(dim=1) if targets is None else targets.to(logits.device)
        gradients = torch.autograd.grad(task.evidence(logits, chosen).sum(), kept)
    weighted: list[Tensor] = []
    for gradient, attention, size in zip(gradients, kept, sizes, strict=True):
        weighted.append((gradient / size * attention.detach()).clamp_(min=0).mean(dim=1))
    return WeightedAttention(layers=weighted, merged=merged, groups=groups, logits=logits.detach())


def _reading_row(model: ViT, weighted: WeightedAttention) -> Tensor:
    """The tokens that the pooling reads, as weights (B, N)."""
    config, first, sizes = model.config, weighted.layers[0], weighted.groups.sizes
    if config.pooling == "map":
        return F.pad(weighted.layers[-1][:, 0], (config.pool_skips, 0))
    tokens = first.shape[2] if sizes is None else config.prefix + sizes.shape[1]
    return weighted.groups.reads(config, tokens, first).expand(len(first), -1)


def _rows_to_one(matrix: Tensor) -> Tensor:
    sums = matrix.sum(dim=-1, keepdim=True)
    return torch.where(sums == 0, 0.0, matrix / sums)

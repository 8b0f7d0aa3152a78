"""Explanations of one class, through the gradient of its logit with respect to the attention probabilities.

Both methods weigh the heads by what they do for the class: Ā = E_h[(∇A ⊙ A)⁺].

relevance         R ← R + Ā R from the first layer to the last ("Generic Attention-model Explainability", Chefer, Gur &
                  Wolf, 2021). We go from the last to the first with the row that the pooling reads, which is the
                  same product for N² instead of N³ operations per layer, and leave out the identity that R starts
                  with, which for [cls] touches no patch and for the mean adds the same to all.
gradient rollout  attention rollout with the rows of Ā, brought to the sum 1, in place of the plain mean of the heads.
                  A token whose row is zero (nothing it looks at speaks for the class) keeps what it has.

Attention pooling is one more layer without a residual: its own weighted attention is the row that we start with.
Where a layer merges tokens, the matrix M that does so stands between it and the next: R ← M R. A merged token's row
stands for the rows of all its patches; its gradient, which is the sum of theirs, is divided among them.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.explanation.groups import Groups
from vitrail.explanation.passes import grid_of, on_model, run
from vitrail.explanation.rollout import Flow, half_residual
from vitrail.model import ViT
from vitrail.model.attention import probabilities


@dataclass(frozen=True, kw_only=True)
class WeightedAttention:
    """Ā of each layer."""

    layers: list[Tensor]  # each (B, queries, keys); the pool's is the last where there is attention pooling
    merged: dict[int, Tensor]  # layer → (B, N′, N): what it made of its tokens, where it merged some
    groups: Groups  # the tokens after the last layer
    logits: Tensor  # (B, classes)


def relevance(model: ViT, images: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What each patch adds to the target's logit, as far as attention carries it (B, h, w), and the logits.

    `targets` (B,) are classes; without them, the predicted ones.
    """
    weighted = weigh_attention(model, images, targets)
    config, layers = model.config, weighted.layers
    row = start = _reading_row(model, weighted)  # (B, N)
    for layer, matrix in reversed([*enumerate(layers[: config.depth])]):
        if layer in weighted.merged:
            row, start = ((weights[:, None] @ weighted.merged[layer])[:, 0] for weights in (row, start))
        row = row + (row[:, None, : matrix.shape[1]] @ matrix)[:, 0]  # the queries are the first of the tokens
    relevances = row if config.pooling == "map" else row - start
    return relevances[:, config.prefix :].unflatten(-1, grid_of(model, images)), weighted.logits


def gradient_rollout(model: ViT, images: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Rollout of the attention that speaks for the target (B, h, w), and the logits."""
    weighted = weigh_attention(model, images, targets)
    flow = Flow(model.config, weighted.groups)
    for layer, matrix in enumerate(weighted.layers):
        shares = _rows_to_one(matrix)
        flow.multiply(shares if layer == model.config.depth else _keep_silent(half_residual(shares)))
        if layer in weighted.merged:
            flow.multiply(weighted.merged[layer])
    return flow.reading().unflatten(-1, grid_of(model, images)), weighted.logits


def weigh_attention(model: ViT, images: Tensor, targets: Tensor | None) -> WeightedAttention:
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

    def mix(layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        attention = probabilities(query, key, scale, mask)
        attention = attention if attention.requires_grad else attention.requires_grad_()  # frozen weights
        kept.append(attention)
        probe = layer == model.config.depth  # of attention pooling, which is never merged
        sizes.append(1.0 if mask is None or probe else mask.exp()[..., : query.shape[2]].mT)
        return attention.to(value.dtype) @ value

    with torch.inference_mode(False), torch.enable_grad():
        logits = run(model, on_model(model, images).detach().clone(), mix, watch=watch)
        chosen = logits.argmax(dim=1) if targets is None else targets.to(logits.device)
        gradients = torch.autograd.grad(logits.gather(1, chosen[:, None]).sum(), kept)
    weighted: list[Tensor] = []
    for gradient, attention, size in zip(gradients, kept, sizes, strict=True):
        weighted.append((gradient / size * attention.detach()).clamp_(min=0).mean(dim=1))
    return WeightedAttention(layers=weighted, merged=merged, groups=groups, logits=logits.detach())


def _reading_row(model: ViT, weighted: WeightedAttention) -> Tensor:
    """The tokens that the pooling reads, as weights (B, N)."""
    config, first, sizes = model.config, weighted.layers[0], weighted.groups.sizes
    if config.pooling == "map":
        return F.pad(weighted.layers[-1][:, 0], (config.prefix, 0))
    patches = first.shape[2] - config.prefix
    row = first.new_zeros(first.shape[0], config.prefix + (patches if sizes is None else sizes.shape[1]))
    if config.pooling == "cls":
        row[:, 0] = 1
    else:
        row[:, config.prefix :] = 1 / patches if sizes is None else sizes / patches
    return row


def _rows_to_one(matrix: Tensor) -> Tensor:
    sums = matrix.sum(dim=-1, keepdim=True)
    return torch.where(sums == 0, 0.0, matrix / sums)


def _keep_silent(matrix: Tensor) -> Tensor:
    """Rows that attend to nothing have lost half: bring them back to the sum 1."""
    return matrix / matrix.sum(dim=-1, keepdim=True)

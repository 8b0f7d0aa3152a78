"""Attention as graphs contain it: the model's own numbers, in steps that runtimes compute faster than the model's own.

The model takes queries, keys and values from one matrix product, because torch is fastest so. A runtime would have to
cut the result in three, which copies it, and could round it to 8 bits only after that. In a graph each of the three has
a product of its own, the scale is part of the query's weights, the softmax is written out, because runtimes know how to
fuse it with both products, and the last block computes only the queries that somebody reads.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn

from vitrail.model import ViT
from vitrail.model.attention import Attention, Mix, fused, probabilities
from vitrail.model.block import Block


class GraphAttention(nn.Module):
    """What `Attention` computes in eval mode."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.heads, self.proj = attention.heads, attention.proj
        self.query_norm, self.key_norm = attention.query_norm, attention.key_norm
        self.query, self.key, self.value = _three(attention.qkv)
        self.scale = attention.scale
        if self.query_norm is None:  # a norm of the queries would undo it
            self.query, self.scale = _scaled(self.query, attention.scale), 1.0

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, keep: int | None = None, mix: Mix = fused
    ) -> Tensor:  # (B, N, D)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, N, D) → (B, H, N, K)
            for part in (self.query(tokens[:, :keep]), self.key(tokens), self.value(tokens))
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        mixed = mix(query, key, value, mask, 0.0, scale=self.scale)
        return self.proj(mixed.transpose(1, 2).flatten(2))


def mix_written_out(
    layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, /, *, scale: float
) -> Tensor:
    """Softmax(Q Kᵀ · scale) V, step by step."""
    return probabilities(query, key, scale, mask) @ value


@contextmanager
def in_graph_form(model: ViT) -> Generator[None]:
    """While the context lasts, the attention of every block is `GraphAttention`."""
    blocks = [cast("Block", block) for block in model.blocks]
    own = [block.attention for block in blocks]
    try:
        for block, attention in zip(blocks, own, strict=True):
            block.attention = cast("Attention", GraphAttention(attention))
        yield
    finally:
        for block, attention in zip(blocks, own, strict=True):
            block.attention = attention


def _three(qkv: nn.Linear) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """The thirds of the one product; they share its memory."""
    weights = qkv.weight.detach().chunk(3)
    bias = cast("Tensor | None", qkv.bias)
    biases = (None, None, None) if bias is None else bias.detach().chunk(3)
    query, key, value = map(_linear, weights, biases)
    return query, key, value


def _scaled(linear: nn.Linear, factor: float) -> nn.Linear:
    bias = cast("Tensor | None", linear.bias)
    return _linear(linear.weight.detach() * factor, None if bias is None else bias.detach() * factor)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    rows, columns = weight.shape
    with torch.device("meta"):
        linear = nn.Linear(columns, rows, bias=bias is not None)
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear

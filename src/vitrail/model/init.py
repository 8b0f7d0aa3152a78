"""Initial values of the weights, as in the paper's own release (google-research/vision_transformer).

| what | here, as Google | timm's default |
|---|---|---|
| attention and MLP matrices | Xavier uniform, queries, keys and values separately | normal, 0.02, truncated |
| MLP biases | normal, 1e-6 | zeros |
| patch projection, representation layer, stems | LeCun normal, truncated | uniform, 1/√(fan in) |
| positions | normal, 0.02 | normal, 0.02, truncated |
| [cls] | zeros | normal, 1e-6 |
| head | zeros, so that training starts from uniform predictions | normal, 0.02, truncated |
| last norm of a ResNet bottleneck | zeros | zeros |
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.model.attention import Attention
from vitrail.model.block import AttentionPool, Branch, FeedForward
from vitrail.model.patch_embed import Bottleneck, Embed


@torch.no_grad()
def initialize(model: nn.Module, representation: nn.Linear | None, head: nn.Linear | None) -> None:
    """Fill every parameter and buffer; a model on `meta` has nothing to fill yet."""
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    for rules in (GENERAL, SPECIAL):
        for module in model.modules():
            for kind, fill in rules.items():
                if isinstance(module, kind):
                    fill(module)
    if representation is not None:
        _fill_lecun(representation.weight)
    if head is not None:
        nn.init.zeros_(head.weight)


def _linear(layer: nn.Linear) -> None:
    nn.init.xavier_uniform_(layer.weight)
    _zero(layer.bias)


def _convolution(layer: nn.Conv2d) -> None:
    _fill_lecun(layer.weight)
    _zero(layer.bias)


def _norm(layer: nn.LayerNorm | nn.GroupNorm | nn.BatchNorm2d) -> None:
    layer.reset_parameters()


def _embed(embed: Embed) -> None:
    _zero(embed.class_token)
    if embed.registers is not None:
        nn.init.normal_(embed.registers, std=1e-6)  # not zeros: equal registers would stay equal
    if embed.positions is not None:
        nn.init.normal_(embed.positions, std=0.02)


def _attention(attention: Attention) -> None:
    for matrix in attention.qkv.weight.chunk(3):
        nn.init.xavier_uniform_(matrix)


def _feed_forward(mlp: FeedForward) -> None:
    for layer in mlp.children():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.bias, std=1e-6)


def _branch(branch: Branch) -> None:
    if branch.scale is not None:
        nn.init.constant_(branch.scale, branch.scale_init)


def _attention_pool(pool: AttentionPool) -> None:
    for matrix in (pool.probe[0], *pool.key_value.weight.chunk(2)):
        nn.init.xavier_uniform_(matrix)


def _bottleneck(block: Bottleneck) -> None:
    nn.init.zeros_(block.norm3.weight)  # each residual block starts as the identity


# What is done to modules of a kind; the second table refines the first.
GENERAL: dict[Any, Callable[[Any], None]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm2d): _norm,
}
SPECIAL: dict[Any, Callable[[Any], None]] = {
    Embed: _embed,
    Attention: _attention,
    FeedForward: _feed_forward,
    Branch: _branch,
    AttentionPool: _attention_pool,
    Bottleneck: _bottleneck,
}


def _fill_lecun(weight: Tensor) -> None:
    fan_in = weight[0].numel()
    std = sqrt(1.0 / fan_in) / 0.87962566103423978  # the deviation of a unit normal truncated at ±2
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def _zero(tensor: Tensor | None) -> None:
    if tensor is not None:
        nn.init.zeros_(tensor)

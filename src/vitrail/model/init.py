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

from collections.abc import Iterable
from math import sqrt

import torch
from torch import Tensor, nn

from vitrail.model.attention import Attention
from vitrail.model.block import AttentionPool, Branch, FeedForward
from vitrail.model.patch_embed import Bottleneck, Embed
from vitrail.model.relative import RelativePositions


@torch.no_grad()
def initialize(model: nn.Module, last: nn.Linear | None, heads: Iterable[nn.Linear | None]) -> None:
    """Fill every parameter and buffer; a model on `meta` has nothing to fill yet.

    `last` is the layer between pooling and heads: the representation layer, or the projection.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    for fill in (_fill_layer, _refine):  # the second refines the first
        for module in model.modules():
            fill(module)
    if last is not None:
        _fill_lecun(last.weight)
    for head in heads:
        if head is not None:
            nn.init.zeros_(head.weight)


def _fill_layer(layer: nn.Module) -> None:
    match layer:
        case nn.Linear():
            nn.init.xavier_uniform_(layer.weight)
            _zero(layer.bias)
        case nn.Conv2d():
            _fill_lecun(layer.weight)
            _zero(layer.bias)
        case nn.LayerNorm() | nn.RMSNorm() | nn.GroupNorm() | nn.BatchNorm2d():
            layer.reset_parameters()
        case _:
            pass


def _refine(module: nn.Module) -> None:
    match module:
        case Embed():
            _zero(module.class_token)
            if module.registers is not None:
                nn.init.normal_(module.registers, std=1e-6)  # not zeros: equal registers would stay equal
            if module.positions is not None:
                nn.init.normal_(module.positions, std=0.02)
        case Attention():
            for matrix in module.qkv.weight.chunk(3):
                nn.init.xavier_uniform_(matrix)
        case FeedForward():
            for layer in module.children():
                if isinstance(layer, nn.Linear) and layer.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
                    nn.init.normal_(layer.bias, std=1e-6)
        case RelativePositions():
            module.fill()
        case Branch() if module.scale is not None:
            nn.init.constant_(module.scale, module.scale_init)
        case AttentionPool():
            for matrix in (module.probe[0], *module.key_value.weight.chunk(2)):
                nn.init.xavier_uniform_(matrix)
        case Bottleneck():
            nn.init.zeros_(module.norm3.weight)  # each residual block starts as the identity
        case _:
            pass


def _fill_lecun(weight: Tensor) -> None:
    fan_in = weight[0].numel()
    std = sqrt(1.0 / fan_in) / 0.87962566103423978  # the deviation of a unit normal truncated at ±2
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def _zero(tensor: Tensor | None) -> None:
    if tensor is not None:
        nn.init.zeros_(tensor)

"""The light decoder of masked pre-training: pixels of hidden patches from the tokens of the visible ones.

"Masked Autoencoders Are Scalable Vision Learners" (He et al., 2021): each visible token goes to the decoder's width,
each hidden patch is the same learned token, fixed sines and cosines say where they are, and after a few blocks a linear
layer gives the pixels of each hidden patch. It is needed for pre-training only.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.model.attention import build_norm
from vitrail.model.block import Block
from vitrail.model.config import ViTConfig
from vitrail.model.init import initialize
from vitrail.model.linear import Linear
from vitrail.model.parts import BlockConfig, Pair, PositionConfig
from vitrail.model.patch_embed import take_patches
from vitrail.model.positions import sincos_positions

HEAD_SIZE = 32  # features of each of its heads, as in the paper
EXTRAS = "decoder."  # prefix of a decoder's tensors among the extras of a checkpoint
WIDEST, DEEPEST = 512, 8  # of the decoders that are chosen, the paper's for ViT-B and larger


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The size of a decoder."""

    width: int = WIDEST
    depth: int = DEEPEST

    def __post_init__(self) -> None:
        if self.width < HEAD_SIZE or self.width % HEAD_SIZE:
            raise ConfigError(
                f"decoder_width must be a multiple of {HEAD_SIZE}, the size of its heads; got {self.width}."
            )
        if self.depth < 1:
            raise ConfigError(f"decoder_depth must be at least 1; got {self.depth}.")


def decoder_for(encoder: ViTConfig, width: int | None = None, depth: int | None = None) -> DecoderConfig:
    """A decoder of two thirds of the encoder's size, but no larger than the paper's, unless another is asked for."""
    suited = -(-2 * encoder.width // (3 * HEAD_SIZE)) * HEAD_SIZE
    return DecoderConfig(
        width=min(suited, WIDEST) if width is None else width,
        depth=min(max(round(2 * encoder.depth / 3), 1), DEEPEST) if depth is None else depth,
    )


class Decoder(nn.Module):
    """Tokens of the visible patches (B, prefix + n, D) → pixels of the hidden ones (B, m, pixels)."""

    def __init__(self, encoder: ViTConfig, config: DecoderConfig) -> None:
        super().__init__()
        self.prefix, width = encoder.prefix, config.width
        own = ViTConfig(
            image_size=encoder.grid,
            patch_size=(1, 1),
            width=width,
            depth=config.depth,
            heads=width // HEAD_SIZE,
            num_classes=0,
            block=BlockConfig(norm_eps=encoder.block.norm_eps),
            positions=PositionConfig(kind="sincos"),
        )
        self.embed = Linear(encoder.width, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width))
        self.blocks = nn.ModuleList(Block(own) for _ in range(config.depth))
        self.norm = build_norm(own)
        self.predict = Linear(width, encoder.channels * prod(encoder.stride))
        self.init_weights()

    def init_weights(self) -> None:
        """(Re)start from random weights."""
        initialize(self, None, ())
        if not self.mask_token.is_meta:
            nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, visible: Tensor, hidden: Tensor, grid: Pair) -> Tensor:
        """The pixels of the hidden patches (B, m), in their order; attention does not mind that they come first."""
        tokens = self.embed(tokens)
        prefix, seen = tokens[:, : self.prefix], tokens[:, self.prefix :]
        positions = sincos_positions(grid, tokens.shape[-1], tokens, endpoint=False).expand(len(tokens), -1, -1)
        masked = self.mask_token.to(tokens.dtype) + take_patches(positions, hidden)
        tokens = torch.cat([masked, prefix, seen + take_patches(positions, visible)], dim=1)
        for index, block in enumerate(self.blocks):
            tokens = block(tokens, keep=hidden.shape[1] if index == len(self.blocks) - 1 else None)
        return self.predict(self.norm(tokens))


def cut_patches(images: Tensor, stride: Pair) -> Tensor:  # (B, C, H, W) → (B, h·w, pixels)
    """The pixels of each patch, row by row, the channels of a pixel side by side, as MAE orders them."""
    rows, columns = stride
    cells = images.unflatten(3, (-1, columns)).unflatten(2, (-1, rows))  # (B, C, h, rows, w, columns)
    return cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def join_patches(patches: Tensor, grid: Pair, stride: Pair) -> Tensor:
    """The inverse of `cut_patches`."""
    cells = patches.unflatten(2, (*stride, -1)).unflatten(1, grid)  # (B, h, w, rows, columns, C)
    return cells.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)

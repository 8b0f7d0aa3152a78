"""From a picture to tokens, the paper's equation 1: [cls], then one linear projection per patch, plus positions."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError, InputError
from vitrail.model.config import Pair, ViTConfig
from vitrail.model.positions import POSITIONS
from vitrail.model.stem import build_stem


class Embed(nn.Module):
    """Picture → tokens: stem, patches, positions, and the tokens that come before the patches."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.stem, channels = build_stem(config.stem, config.channels)
        self.patches = nn.Conv2d(channels, config.width, config.patch_size, stride=config.patch_size)
        self.class_token = nn.Parameter(torch.empty(1, 1, config.width)) if config.class_token else None
        self.registers = nn.Parameter(torch.empty(1, config.registers, config.width)) if config.registers else None
        learned = POSITIONS[config.positions.kind].shape(config)
        self.positions = None if learned is None else nn.Parameter(torch.empty(learned))

    def forward(self, images: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Tokens (B, N, D), and the mask over all tokens if one over the patches, (B, h·w) or (B, h, w), was given."""
        grid = self.grid_of(images)
        patches = self.patches(self.stem(images)).flatten(2).transpose(1, 2)  # (B, D, h, w) → (B, h·w, D)
        prefix_positions, patch_positions = self.positions_at(grid)
        if patch_positions is not None:
            patches = patches + patch_positions
        if mask is not None:
            mask = _check_mask(mask, patches)
        if self.training and self.config.rates.patch:
            patches, mask = drop_patches(patches, mask, self.config.rates.patch)
        return self._join_prefix(patches, prefix_positions), self._extend(mask)

    def _join_prefix(self, patches: Tensor, positions: Tensor | None) -> Tensor:
        parts: list[Tensor] = [token for token in (self.class_token, self.registers) if token is not None]
        if not parts:
            return patches
        prefix = torch.cat(parts, dim=1)  # (1, prefix, D)
        if positions is not None and positions.shape[1]:
            covered = positions.shape[1]
            prefix = torch.cat([prefix[:, :covered] + positions, prefix[:, covered:]], dim=1)
        return torch.cat([prefix.to(patches.dtype).expand(patches.shape[0], -1, -1), patches], dim=1)

    def _extend(self, mask: Tensor | None) -> Tensor | None:
        return None if mask is None else F.pad(mask, (self.config.prefix, 0), value=True)

    def grid_of(self, images: Tensor) -> Pair:
        """The patch grid of a batch, after checking that it is one."""
        channels = self.config.channels
        if images.ndim != 4 or images.shape[1] != channels:
            raise InputError(f"images must be (batch, {channels}, height, width); got {tuple(images.shape)}.")
        if not images.is_floating_point():
            raise InputError(f"images must be floating point, preprocessed for the model; got {images.dtype}.")
        weight = self.patches.weight
        if images.dtype != weight.dtype and not torch.is_autocast_enabled(images.device.type):
            raise InputError(f"images must be of the model's type {weight.dtype}; got {images.dtype}; cast with .to().")
        try:
            return self.config.grid_of((images.shape[2], images.shape[3]))
        except ConfigError as error:
            raise InputError(str(error)) from None

    def positions_at(self, grid: Pair) -> tuple[Tensor | None, Tensor | None]:
        """Positions of the prefix tokens (1, covered, D) and of the patches (1, h·w, D) on any grid."""
        return POSITIONS[self.config.positions.kind].at(self.config, self.positions, grid, self.patches.weight)


def drop_patches(patches: Tensor, mask: Tensor | None, rate: float) -> tuple[Tensor, Tensor | None]:
    """Keep a random share of each picture's (real) patches. They know their positions, so their order is free."""
    batch, count, width = patches.shape
    order = torch.rand(batch, count, device=patches.device)
    if mask is not None:
        order = order + ~mask  # padding comes last
    keep = max(1, round(count * (1.0 - rate)))
    kept = order.topk(keep, dim=1, largest=False, sorted=True).indices  # (B, keep)
    patches = patches.gather(1, kept[..., None].expand(-1, -1, width))
    if mask is not None:
        real = mask.sum(dim=1, keepdim=True).mul(1.0 - rate).round().clamp(min=1)  # (B, 1)
        mask = torch.arange(keep, device=mask.device) < real
    return patches, mask


def _check_mask(mask: Tensor, patches: Tensor) -> Tensor:
    flat = mask.flatten(1) if mask.ndim == 3 else mask
    expected = tuple(patches.shape[:2])
    if mask.dtype != torch.bool or flat.shape != expected:
        raise InputError(
            f"mask must be boolean, True for real patches, of shape {expected} or (batch, rows, columns); "
            f"got {mask.dtype} of shape {tuple(mask.shape)}."
        )
    if not torch.compiler.is_compiling() and not cast("bool", flat.any(dim=1).all().item()):
        raise InputError("mask must keep at least one patch of every picture.")
    return flat

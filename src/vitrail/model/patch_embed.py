"""From a picture to tokens, the paper's equation 1: [cls], then one linear projection per patch, plus positions.

A stem, a few convolutions or the hybrid's ResNet, may come between the pixels and the patches."""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError, InputError
from vitrail.model.attention import build_norm
from vitrail.model.config import ViTConfig
from vitrail.model.parts import GROUP_SIZE, ConvStem, Pair, ResNetStem, Stem
from vitrail.model.positions import POSITIONS
from vitrail.model.relative import Layout


def build_stem(stem: Stem, channels: int) -> tuple[nn.Module, int]:
    """The stem and the number of its output channels."""
    if isinstance(stem, ConvStem):
        return Convolutions(stem, channels), stem.widths[-1]
    if isinstance(stem, ResNetStem):
        resnet = ResNet(stem, channels)
        return resnet, resnet.out_channels
    return nn.Identity(), channels


class Convolutions(nn.Sequential):
    """3×3 convolutions; each reduces the picture by its stride."""

    def __init__(self, stem: ConvStem, channels: int) -> None:
        layers: list[nn.Module] = []
        for width, stride in zip(stem.widths, stem.strides, strict=True):
            layers.append(
                nn.Conv2d(channels, width, 3, 1 if stem.pool else stride, padding=1, bias=stem.norm == "none")
            )
            pooled = stem.pool and stride > 1
            if pooled and stem.pool_size == 2:
                layers.append(nn.MaxPool2d(2, stride))
            if stem.norm == "batch":
                layers.append(nn.BatchNorm2d(width))
            elif stem.norm == "group":
                layers.append(nn.GroupNorm(width // GROUP_SIZE, width))
            layers.append(nn.GELU() if stem.activation == "gelu" else nn.ReLU(inplace=True))
            if pooled and stem.pool_size == 3:
                layers.append(nn.MaxPool2d(3, stride, padding=1))
            channels = width
        super().__init__(*layers)


class ResNet(nn.Module):
    """The hybrid's ResNet-v1 with weight standardisation and GroupNorm ("Big Transfer")."""

    def __init__(self, stem: ResNetStem, channels: int) -> None:
        super().__init__()
        self.conv_root = StdConv2d(stem, channels, stem.width, kernel_size=7, stride=2)
        self.norm_root = nn.GroupNorm(stem.groups, stem.width, eps=stem.norm_eps)
        self.stages = nn.ModuleList()
        in_channels = stem.width
        for stage, count in enumerate(stem.blocks):
            blocks = nn.Sequential()
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(stem, in_channels, stem.width * 2**stage, stride))
                in_channels = 4 * stem.width * 2**stage
            self.stages.append(blocks)
        self.out_channels = in_channels

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.norm_root(self.conv_root(images)))
        features = F.max_pool2d(pad_same(features, kernel_size=3, stride=2, value=-torch.inf), 3, stride=2)
        for stage in self.stages:
            features = stage(features)
        return features


class Bottleneck(nn.Module):
    """1×1, 3×3 (which takes the stride) and 1×1 convolutions around a shortcut."""

    def __init__(self, stem: ResNetStem, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = 4 * width
        self.conv1 = StdConv2d(stem, in_channels, width)
        self.norm1 = nn.GroupNorm(stem.groups, width, eps=stem.norm_eps)
        self.conv2 = StdConv2d(stem, width, width, kernel_size=3, stride=stride)
        self.norm2 = nn.GroupNorm(stem.groups, width, eps=stem.norm_eps)
        self.conv3 = StdConv2d(stem, width, out_channels)
        self.norm3 = nn.GroupNorm(stem.groups, out_channels, eps=stem.norm_eps)
        self.conv_shortcut = self.norm_shortcut = None
        if stride > 1 or in_channels != out_channels:
            self.conv_shortcut = StdConv2d(stem, in_channels, out_channels, stride=stride)
            self.norm_shortcut = nn.GroupNorm(stem.groups, out_channels, eps=stem.norm_eps)

    def forward(self, features: Tensor) -> Tensor:
        shortcut = features
        if self.conv_shortcut is not None and self.norm_shortcut is not None:
            shortcut = self.norm_shortcut(self.conv_shortcut(features))
        features = F.relu(self.norm1(self.conv1(features)))
        features = F.relu(self.norm2(self.conv2(features)))
        return F.relu(shortcut + self.norm3(self.conv3(features)))


class StdConv2d(nn.Conv2d):
    """A convolution whose filters are standardised to mean 0 and deviation 1, with TensorFlow's SAME padding."""

    def __init__(self, stem: ResNetStem, in_channels: int, out_channels: int, kernel_size: int = 1, stride: int = 1):
        super().__init__(in_channels, out_channels, kernel_size, stride, bias=False)
        self.eps, self.form = stem.ws_eps, stem.ws_form

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name is torch's)
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        deviation = variance.sqrt() + self.eps if self.form == "std" else (variance + self.eps).sqrt()
        weight = (self.weight - mean) / deviation
        return F.conv2d(pad_same(input, self.kernel_size[0], self.stride[0]), weight, stride=self.stride)


def pad_same(features: Tensor, kernel_size: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad as TensorFlow does: the output has ⌈size / stride⌉ cells, and an odd cell goes to the right and bottom."""
    pads: list[int] = []
    for size in (features.shape[-1], features.shape[-2]):  # F.pad wants the last dimension first
        total = max((-(-size // stride) - 1) * stride + kernel_size - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(features, pads, value=value) if any(pads) else features


class Embedded(NamedTuple):
    """The tokens of a batch, and what is known about them."""

    tokens: Tensor  # (B, N, D)
    mask: Tensor | None  # (B, N): True for real tokens, False for padding; None: all are real
    layouts: tuple[Layout, ...]  # where their patches are: one for all pictures, or one for each


class Embed(nn.Module):
    """Picture → tokens: stem, patches, positions, and the tokens that come before the patches."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.stem, channels = build_stem(config.stem, config.channels)
        pixels = channels * config.patch_size[0] * config.patch_size[1]
        self.pixel_norm = build_norm(config, pixels) if config.pixel_norm else None
        self.patches = nn.Conv2d(
            channels, config.width, config.patch_size, stride=config.patch_size, bias=config.patch_bias
        )
        self.patch_norm = build_norm(config) if config.patch_norm else None
        self.class_token = nn.Parameter(torch.empty(1, 1, config.width)) if config.class_token else None
        self.registers = nn.Parameter(torch.empty(1, config.registers, config.width)) if config.registers else None
        learned = POSITIONS[config.positions.kind].shape(config)
        self.positions = None if learned is None else nn.Parameter(torch.empty(learned))

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Embedded:
        """Tokens (B, N, D), and the mask over all tokens if one over the patches, (B, h·w) or (B, h, w), was given."""
        grid = self.grid_of(images)
        layout = Layout(grid)
        pixels = self.stem(images if self.config.stem.kind == "patch" else pixel_by_pixel(images))
        pixels = pixels if self.pixel_norm is None else self._normalize(pixels, self.pixel_norm)
        patches = self.patches(pixels).flatten(2).transpose(1, 2)  # (B, D, h, w) → (B, h·w, D)
        patches = patches if self.patch_norm is None else self.patch_norm(patches)
        prefix_positions, patch_positions = self.positions_at(grid)
        if patch_positions is not None:
            patches = patches + patch_positions
        if mask is not None:
            mask = _check_mask(mask, patches)
        if self.training and self.config.rates.patch:
            patches, mask, kept = drop_patches(patches, mask, self.config.rates.patch)
            layout = Layout(grid, layout.where(patches.device)[0][kept])
        return Embedded(self._join_prefix(patches, prefix_positions), self._extend(mask), (layout,))

    def _normalize(self, pixels: Tensor, norm: nn.Module) -> Tensor:  # (B, C, H, W)
        """A picture with all numbers of each patch normalised together ("Dual PatchNorm")."""
        rows, columns = self.config.patch_size
        cells = pixels.unflatten(3, (-1, columns)).unflatten(2, (-1, rows))  # (B, C, h, rows, w, columns)
        cells = cells.permute(0, 2, 4, 1, 3, 5)  # (B, h, w, C, rows, columns)
        cells = norm(cells.flatten(3)).unflatten(3, cells.shape[3:])
        return cells.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)

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
            raise InputError(error.message) from None

    def positions_at(self, grid: Pair) -> tuple[Tensor | None, Tensor | None]:
        """Positions of the prefix tokens (1, covered, D) and of the patches (1, h·w, D) on any grid."""
        return POSITIONS[self.config.positions.kind].at(self.config, self.positions, grid, self.patches.weight)


def pixel_by_pixel(images: Tensor) -> Tensor:
    """On a CPU, pictures with the channels of each pixel side by side, which is how convolutions are fastest."""
    if images.device.type != "cpu" or torch.compiler.is_compiling():  # compilers choose the order themselves
        return images
    return images.contiguous(memory_format=torch.channels_last)


def drop_patches(patches: Tensor, mask: Tensor | None, rate: float) -> tuple[Tensor, Tensor | None, Tensor]:
    """Keep a random share of each picture's (real) patches, and tell which: (B, kept).

    They know their positions, so their order is free.
    """
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
    return patches, mask, kept


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

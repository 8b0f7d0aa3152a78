"""What may come between the pixels and the patches: a few convolutions, or the hybrid's ResNet."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.config import GROUP_SIZE, ConvStem, ResNetStem, Stem


def build_stem(stem: Stem, channels: int) -> tuple[nn.Module, int]:
    """The stem and the number of its output channels."""
    if isinstance(stem, ConvStem):
        return Convolutions(stem, channels), stem.widths[-1]
    if isinstance(stem, ResNetStem):
        resnet = ResNet(stem, channels)
        return resnet, resnet.out_channels
    return nn.Identity(), channels


class Convolutions(nn.Sequential):
    """3×3 convolutions with ReLU; each reduces the picture by its stride."""

    def __init__(self, stem: ConvStem, channels: int) -> None:
        layers: list[nn.Module] = []
        for width, stride in zip(stem.widths, stem.strides, strict=True):
            step = 1 if stem.pool else stride
            layers.append(nn.Conv2d(channels, width, 3, step, padding=1, bias=stem.norm == "none"))
            if stem.norm == "batch":
                layers.append(nn.BatchNorm2d(width))
            elif stem.norm == "group":
                layers.append(nn.GroupNorm(width // GROUP_SIZE, width))
            layers.append(nn.ReLU(inplace=True))
            if stem.pool and stride > 1:
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

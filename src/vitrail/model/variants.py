"""The known models by name: `vit-b16` is the paper's ViT-B/16, `vit-r50-l32` its hybrid R50+ViT-L/32."""

import dataclasses
from typing import Any

from vitrail.errors import ConfigError, suggest
from vitrail.model.config import ViTConfig
from vitrail.model.parts import ConvStem, ResNetStem
from vitrail.model.vit import ViT

# Size → width, depth, heads, MLP width (paper's Table 1; Ti and S from DeiT and AugReg; g and G from "Scaling ViTs").
SIZES = {
    "ti": (192, 12, 3, 768),
    "s": (384, 12, 6, 1536),
    "b": (768, 12, 12, 3072),
    "l": (1024, 24, 16, 4096),
    "h": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),
    "G": (1664, 48, 16, 8192),
}
# Size → the patches with which it has been published.
PATCHES = {
    "ti": (16,),
    "s": (8, 14, 16, 32),
    "b": (8, 14, 16, 32),
    "l": (14, 16, 32),
    "h": (14, 16),
    "g": (14,),
    "G": (14,),
}

# Hybrid → size, ResNet blocks per stage, patch on the ResNet's output.
HYBRIDS = {
    "vit-r-ti16": ("ti", (), 8),  # 32 pixels from one patch to the next, despite the name
    "vit-r26-s32": ("s", (2, 2, 2, 2), 1),
    "vit-r50-b16": ("b", (3, 4, 9), 1),
    "vit-r50-l32": ("l", (3, 4, 6, 3), 1),
}

# For 32-pixel pictures with patch 4 and ten classes: width, depth, heads, MLP width.
CIFAR = {
    "cifar-tiny": (48, 4, 4, 192),  # the usual from-scratch exercise, 0.1 M parameters
    "cifar-small": (128, 6, 4, 512),
    "cifar-base": (192, 6, 6, 768),
}

# For training from scratch on few or small pictures: side → the widths and strides of a stem of 3×3 convolutions, which
# gives a ViT what it otherwise learns from millions of pictures; then width, depth, heads, MLP width; mean pooling.
COMPACT = {
    8: ((32, 64), (1, 2), (64, 2, 4, 128)),  # scikit-learn's digits
    28: ((32, 64), (2, 2), (64, 3, 4, 128)),  # MNIST and the like
    32: ((32, 64, 128), (1, 2, 2), (128, 3, 4, 256)),  # CIFAR
    64: ((32, 64, 128), (2, 2, 2), (128, 3, 4, 256)),
    128: ((32, 64, 128), (2, 2, 2), (128, 3, 4, 256)),
}
GREY_SIDES = (8, 28)  # data sets of these sizes are grey

# For pictures of CIFAR's size, 0.95 M parameters: twice the convolutions of compact-32, as many blocks, wider MLPs.
_SIX_CONVOLUTIONS = ConvStem(
    widths=(32, 64, 64, 128, 128, 128), strides=(1, 2, 1, 2, 1, 1), pool=True, pool_size=2, activation="gelu"
)


def variants() -> dict[str, ViTConfig]:
    """Every known name with its config."""
    table = {f"vit-{size}{patch}": _sized(SIZES[size], patch) for size in SIZES for patch in PATCHES[size]}
    for name, (size, blocks, patch) in HYBRIDS.items():
        table[name] = dataclasses.replace(_sized(SIZES[size], patch), stem=ResNetStem(blocks=blocks))
    for name, numbers in CIFAR.items():
        table[name] = dataclasses.replace(_sized(numbers, 4, image_size=32), num_classes=10)
    for side, (widths, strides, numbers) in COMPACT.items():
        stem = ConvStem(widths=widths, strides=strides, norm="group")
        table[f"compact-{side}"] = _compact(side, stem, numbers)
    return table | {"hybrid-32": _compact(32, _SIX_CONVOLUTIONS, (128, 3, 4, 384))}


def _compact(side: int, stem: ConvStem, numbers: tuple[int, int, int, int]) -> ViTConfig:
    return dataclasses.replace(
        _sized(numbers, 1, image_size=side),
        channels=1 if side in GREY_SIDES else 3,
        num_classes=10,
        class_token=False,
        pooling="mean",
        stem=stem,
    )


def _sized(numbers: tuple[int, int, int, int], patch: int, image_size: int = 224) -> ViTConfig:
    width, depth, heads, mlp_width = numbers
    return ViTConfig(
        image_size=(image_size, image_size),
        patch_size=(patch, patch),
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=mlp_width,
    )


def variant(name: str, **changes: Any) -> ViTConfig:
    """The config of a known model, with fields of `ViTConfig` changed: `variant("vit-b16", image_size=384)`.

    The paper's notation is understood too: "B/16", "ViT-L/14", "R50+ViT-B/16".
    """
    table = variants()
    key = "vit-" + name.replace("ViT-", "").removeprefix("vit-").replace("/", "").replace("+", "-")
    if key not in table and key.lower().endswith("-g14"):
        raise ConfigError(f"{name!r} could be vit-g14 (giant) or vit-G14 (gigantic); write one of them.")
    config = next((table[spelling] for spelling in (name, key, key.lower(), name.lower()) if spelling in table), None)
    if config is None:
        raise ConfigError(f"unknown model {name!r}; {suggest(name.lower(), table)} See `vitrail models`.")
    return _change(config, changes)


def _change(config: ViTConfig, changes: dict[str, Any]) -> ViTConfig:
    fields = [field.name for field in dataclasses.fields(ViTConfig)]
    for change in changes:
        if change not in fields:
            raise ConfigError(f"ViTConfig has no field {change!r}; {suggest(change, fields)}")
    return dataclasses.replace(config, **changes)


def create(model: str | ViTConfig, **changes: Any) -> ViT:
    """A ViT with random weights: `create("vit-b16", num_classes=10, image_size=384)`."""
    if isinstance(model, str):
        return ViT(variant(model, **changes))
    return ViT(_change(model, changes))

"""torchvision's VisionTransformer: `.pth` files with a plain state dict."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from vitrail.data.preprocess import Interpolation, Preprocess, preset
from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.model.parts import Pair
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, anything, computes, only, positions
from vitrail.weights.infer import Hints, Raw, assumed_heads, infer_config
from vitrail.weights.keys import Names, key_table, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_pickle

BLOCK = BlockConfig(activation="gelu", norm_eps=1e-6)  # what torchvision computes


class Official(NamedTuple):
    """One of torchvision's own files, and how its `Weights.transforms()` resizes before the crop."""

    file: str
    name: str
    width: int
    patch: int
    size: int
    resize: int
    interpolation: Interpolation

    def fits(self, config: ViTConfig) -> bool:
        shape = (self.width, (self.patch, self.patch), (self.size, self.size))
        return shape == (config.width, config.patch_size, config.image_size)

    def __str__(self) -> str:
        return f"{self.name} (shortest side {self.resize}, {self.interpolation})"


# Of those with the same keys and shapes, the one to assume comes first.
OFFICIAL = (
    Official("vit_b_16-c867db91", "ViT_B_16_Weights.IMAGENET1K_V1", 768, 16, 224, 256, "bilinear"),
    Official("vit_b_16_lc_swag-4e70ced5", "ViT_B_16_Weights.IMAGENET1K_SWAG_LINEAR_V1", 768, 16, 224, 224, "bicubic"),
    Official("vit_b_16_swag-9ac1b537", "ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1", 768, 16, 384, 384, "bicubic"),
    Official("vit_b_32-d86f8d99", "ViT_B_32_Weights.IMAGENET1K_V1", 768, 32, 224, 256, "bilinear"),
    Official("vit_l_16-852ce7e3", "ViT_L_16_Weights.IMAGENET1K_V1", 1024, 16, 224, 242, "bilinear"),
    Official("vit_l_16_lc_swag-4d563306", "ViT_L_16_Weights.IMAGENET1K_SWAG_LINEAR_V1", 1024, 16, 224, 224, "bicubic"),
    Official("vit_l_16_swag-4f3808c9", "ViT_L_16_Weights.IMAGENET1K_SWAG_E2E_V1", 1024, 16, 512, 512, "bicubic"),
    Official("vit_l_32-c7638314", "ViT_L_32_Weights.IMAGENET1K_V1", 1024, 32, 224, 256, "bilinear"),
    Official("vit_h_14_lc_swag-c1eb923e", "ViT_H_14_Weights.IMAGENET1K_SWAG_LINEAR_V1", 1280, 14, 224, 224, "bicubic"),
    Official("vit_h_14_swag-80465313", "ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1", 1280, 14, 518, 518, "bicubic"),
)


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return "conv_proj.weight" in tensors and "encoder.pos_embedding" in tensors


def names_of(dialect: Mapping[str, str]) -> Names:
    """Our modules → torchvision's."""
    fc1, fc2 = ("mlp.linear_1", "mlp.linear_2") if dialect.get("mlp") == "legacy" else ("mlp.0", "mlp.3")
    block = {
        "norm1": "ln_1",
        "attention.qkv.weight": "self_attention.in_proj_weight",
        "attention.qkv.bias": "self_attention.in_proj_bias",
        "attention.proj": "self_attention.out_proj",
        "norm2": "ln_2",
        "mlp.fc1": fc1,
        "mlp.fc2": fc2,
    }
    return {
        "embed.class_token": "class_token",
        "embed.positions": "encoder.pos_embedding",
        "embed.patches": "conv_proj",
        **under("blocks.{}", "encoder.layers.encoder_layer_{}.", block),
        "norm": "encoder.ln",
        "representation": "heads.pre_logits",
        "head": "heads.head",
    }


def assume_preprocess(path: Path, config: ViTConfig) -> tuple[Preprocess, tuple[str, ...]]:
    """That of the official weights by their file's name, or by their shapes with a note; else torchvision's usual."""
    usual = preset("torchvision", config.image_size, config.channels)
    fitting = [each for each in OFFICIAL if each.fits(config)]
    named = [each for each in fitting if path.name.startswith(each.file)]
    unstated = "the file does not state its preprocessing: assumed"
    if not fitting:
        return usual, (f"{unstated} torchvision's usual one (the crop keeps 7/8 of each side, bilinear)",)
    chosen, *others = named or fitting
    spec = replace(usual, crop=1.0, resize_to=chosen.resize, interpolation=chosen.interpolation)
    if named:
        return spec, ()
    rest = f"; {others[0]} has the same keys, and is known by its file name, {others[0].file}" if others else ""
    return spec, (f"{unstated} that of {chosen}{rest}",)


def read(raw: Raw, hints: Hints) -> Checkpoint:
    legacy = "encoder.layers.encoder_layer_0.mlp.linear_1.weight" in raw.tensors
    dialect = {"mlp": "legacy" if legacy else "sequential"}
    names = names_of(dialect)
    config = infer_config(raw, hints, names, block=BLOCK, positions=PositionConfig(resample="torchvision"))
    preprocess, unstated = assume_preprocess(raw.path, config)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, names), raw.tensors),
        preprocess=preprocess,
        origin=Origin(format="torchvision", dialect=dialect),
        notes=(*assumed_heads(config, hints), *unstated),
    )


def _squares(value: Pair, config: ViTConfig) -> str:
    return "" if value[0] == value[1] else "its pictures and patches are square"


def _classes(value: int, config: ViTConfig) -> str:
    return "" if value else "it always has a head"


HOLDS: Holds = {
    **COMMON,
    **positions("learned", covers="class"),
    "image_size": _squares,
    "patch_size": _squares,
    "channels": only(3, reason="its pictures have 3 channels"),
    "num_classes": _classes,
    "representation": anything,
    **computes(BLOCK),
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    names = names_of(checkpoint.origin.dialect_of("torchvision"))
    write_pickle(path, write_tensors(key_table(checkpoint.config, names), checkpoint.tensors))


FORMAT = ForeignFormat(
    name="torchvision",
    suffixes=(".pth",),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
    family="torchvision",
)

"""The Vision Transformer, in the order in which a picture passes through it.

    config → embed (stem, patches, [cls], positions) → block (attention, merging, MLP) × depth → pool → head

Shapes are noted beside the code with these letters:

    B  batch            C  channels of a picture      h, w  rows and columns of the patch grid
    N  tokens           D  width of a token           H  heads        K  size of a head (D / H)
"""

from vitrail.model.attention import AttentionQuery
from vitrail.model.config import ViTConfig
from vitrail.model.merging import merge_schedule, with_merging
from vitrail.model.parts import (
    BlockConfig,
    ConvStem,
    NoRelative,
    PatchStem,
    PositionConfig,
    Rates,
    RelativeBias,
    ResNetStem,
    Rope,
)
from vitrail.model.summary import Summary, summarize
from vitrail.model.variants import create, variant, variants
from vitrail.model.vit import Trace, ViT

__all__ = [
    "AttentionQuery",
    "BlockConfig",
    "ConvStem",
    "NoRelative",
    "PatchStem",
    "PositionConfig",
    "Rates",
    "RelativeBias",
    "ResNetStem",
    "Rope",
    "Summary",
    "Trace",
    "ViT",
    "ViTConfig",
    "create",
    "merge_schedule",
    "summarize",
    "variant",
    "variants",
    "with_merging",
]

"""The names that timm registers for its `VisionTransformer`: which arguments each one stands for.

`config.json` gives a name and the arguments that differ from it: heads, GELU and pooling are often in the name only. A
name that is not here is refused: another model may have the same keys. `tests/parity` compares the table with timm.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal

from vitrail.errors import WeightsError

Norm = tuple[Literal["layer", "rms"], float]  # its kind and epsilon
LAYER_NORM: Norm = ("layer", 1e-6)  # timm's own
LAYER_NORM_5: Norm = ("layer", 1e-5)
RMS_NORM_5: Norm = ("rms", 1e-5)
# Value of `norm_layer` → the norm. A name may stand for one with another epsilon, which no JSON can.
NORMS: dict[Any, Norm] = {
    "": LAYER_NORM,
    "layernorm": LAYER_NORM,
    "rmsnorm": ("rms", 1e-6),
    LAYER_NORM_5: LAYER_NORM_5,
    RMS_NORM_5: RMS_NORM_5,
}
# Argument → the only values of it that our model computes, the default first.
FIXED: dict[str, tuple[Any, ...]] = {"attn_layer": ("", "attn")}
# timm's own defaults, of the arguments that decide what is computed.
DEFAULTS: dict[str, Any] = {
    "img_size": 224,
    "patch_size": 16,
    "in_chans": 3,
    "num_classes": 1000,
    "global_pool": "token",
    "embed_dim": 768,
    "depth": 12,
    "num_heads": 12,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "qk_norm": False,
    "init_values": None,
    "class_token": True,
    "pos_embed": "learn",
    "no_embed_class": False,
    "reg_tokens": 0,
    "fc_norm": None,
    "dynamic_img_size": False,
    "dynamic_img_pad": False,
    "act_layer": None,
    "scale_attn_norm": False,
    "scale_mlp_norm": False,
    "proj_bias": True,
    "pre_norm": False,
    "final_norm": True,
    "pool_include_prefix": False,
    "embed_norm_layer": None,
    "norm_layer": None,
    **{name: values[0] for name, values in FIXED.items()},
}
# What timm builds without a class of another kind. MLPs may be gated, both halves packed in one matrix or split.
PLAIN = {
    **DEFAULTS,
    "resnet": None,
    "mlp": "plain",
    "distilled": False,
    "layout": "classic",
    "resample": "timm",
    "rel_pos_type": None,
    "shared_rel_pos": False,
}

# The word of a name → width, depth, heads and MLP ratio.
SIZES: dict[str, tuple[int, int, int, float]] = {
    "tiny": (192, 12, 3, 4),
    "xsmall": (256, 10, 4, 4),
    "wee": (256, 14, 4, 5),
    "little": (320, 14, 5, 5.6),
    "small": (384, 12, 6, 4),
    "medium": (512, 12, 8, 4),
    "mediumd": (512, 20, 8, 4),
    "betwixt": (640, 12, 10, 4),
    "base": (768, 12, 12, 4),
    "so150m2": (832, 21, 13, 34 / 13),
    "so150m": (896, 18, 14, 2.572),
    "large": (1024, 24, 16, 4),
    "so400m": (1152, 27, 16, 3.7362),
    "huge": (1280, 32, 16, 4),
    "giant": (1408, 40, 16, 48 / 11),
    "giantopt": (1536, 40, 16, 4),
    "gigantic": (1664, 48, 16, 64 / 13),
}

_DEIT3 = {"no_embed_class": True, "init_values": 1e-6}
_DINOV2 = {"init_values": 1e-5}
_PLUS = {"embed_dim": 896, "num_heads": 14, "init_values": 1e-5}
_GAP = {"class_token": False, "global_pool": "avg", "fc_norm": False}
_GIANT = {"embed_dim": 1536, "num_heads": 24, "mlp_ratio": 2.66667 * 2, "mlp": "packed", "act_layer": "silu"}
_MAP = {"class_token": False, "global_pool": "map"}
_LEAN_GAP = {**_GAP, "init_values": 1e-6, "qkv_bias": False}
_REG_GAP = {"class_token": False, "global_pool": "avg", "no_embed_class": True}
_SCALED_REG_GAP = {**_REG_GAP, "init_values": 1e-5}
_TIPS = {"init_values": 1.0, "reg_tokens": 1, "no_embed_class": True}
_TANH = {"act_layer": "gelu_tanh"}
_CLIP = {"pre_norm": True, "norm_layer": LAYER_NORM_5}
_NAFLEX = {"layout": "naflex", "class_token": False, "no_embed_class": True, "dynamic_img_size": True, "img_size": 256}
_NAFLEX_GAP = {**_NAFLEX, "global_pool": "avg", "fc_norm": True, "init_values": 1e-5, "reg_tokens": 4}
_NAFLEX_MAP = {**_NAFLEX, "global_pool": "map"}
_NAFLEX_SO = {"init_values": 1e-5, "qkv_bias": False, "reg_tokens": 1}
_RELPOS = {**_GAP, "layout": "relpos", "pos_embed": "none", "init_values": 1e-6, "rel_pos_type": "mlp"}
_LEAN_RELPOS = {**_RELPOS, "qkv_bias": False}
_QUICK = {**_CLIP, "act_layer": "quick_gelu"}
_BEIT3 = {"scale_attn_norm": True, "scale_mlp_norm": True, "global_pool": "avg", "norm_layer": LAYER_NORM_5}
_RMS = {"norm_layer": RMS_NORM_5, "embed_norm_layer": RMS_NORM_5}
_AIMV2 = {**_GAP, **_RMS, "qkv_bias": False, "proj_bias": False, "mlp": "split", "act_layer": "silu"}

# What a name changes beyond its size and patch → the names, with the last parts that share all the rest.
GROUPS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "deit_tiny_patch16_224 deit_small_patch16_224 deit_base_patch16_224|384 vit_tiny_patch16_224|384"),
    ({}, "vit_small_patch8_224 vit_small_patch16_224|384 vit_small_patch32_224|384"),
    ({}, "vit_base_patch8_224 vit_base_patch16_224|384 vit_base_patch32_224|384"),
    ({}, "vit_large_patch14_224 vit_large_patch16_224|384 vit_large_patch32_224|384"),
    ({}, "vit_huge_patch14_224 vit_giant_patch14_224 vit_gigantic_patch14_224"),
    ({"qkv_bias": False}, "vit_base_patch16_224_miil"),
    ({"global_pool": "avg"}, "eva_large_patch14_196|336"),
    ({"depth": 36, **_DINOV2}, "vit_small_patch16_36x1_224"),
    (_DEIT3, "deit3_small_patch16_224|384 deit3_medium_patch16_224 deit3_base_patch16_224|384"),
    (_DEIT3, "deit3_large_patch16_224|384 deit3_huge_patch14_224"),
    (_DINOV2, "vit_small_patch14_dinov2 vit_base_patch14_dinov2 vit_large_patch14_dinov2"),
    (
        {**_DINOV2, "reg_tokens": 4, "no_embed_class": True},
        "vit_small_patch14_reg4_dinov2 vit_base_patch14_reg4_dinov2 vit_large_patch14_reg4_dinov2",
    ),
    ({**_GIANT, **_DINOV2}, "vit_giant_patch14_dinov2"),
    ({**_GIANT, **_DINOV2, "reg_tokens": 4, "no_embed_class": True}, "vit_giant_patch14_reg4_dinov2"),
    ({**_GIANT, **_TIPS}, "vit_giant_patch14_reg1_tipsv2"),
    (_TIPS, "vit_base_patch14_reg1_tipsv2 vit_large_patch14_reg1_tipsv2"),
    ({**_TIPS, "mlp_ratio": 4304 / 1152}, "vit_so400m_patch14_reg1_tipsv2"),
    (_PLUS, "vit_base_patch16_plus_240 vit_base_patch32_plus_256"),
    ({**_GAP, "num_heads": 16}, "vit_base_patch16_gap_224"),
    (_GAP, "vit_huge_patch14_gap_224 vit_huge_patch16_gap_448 vit_giant_patch16_gap_224"),
    (_GAP, "vit_base_patch16_siglip_gap_224|256|384|512 vit_large_patch16_siglip_gap_256|384"),
    (_GAP, "vit_so400m_patch14_siglip_gap_224|378|384|448|896"),
    ({**_GAP, **_TANH}, "vit_base_patch32_siglip_gap_256 vit_large_patch16_siglip_gap_512"),
    ({**_GAP, **_TANH}, "vit_so400m_patch16_siglip_gap_256|384|512 vit_giantopt_patch16_siglip_gap_256|384"),
    (_MAP, "vit_base_patch16_siglip_224|256|384|512 vit_large_patch16_siglip_256|384"),
    (_MAP, "vit_so400m_patch14_siglip_224|378|384"),
    ({**_MAP, **_TANH}, "vit_base_patch32_siglip_256 vit_large_patch16_siglip_512"),
    ({**_MAP, **_TANH}, "vit_so400m_patch16_siglip_256|384|512 vit_giantopt_patch16_siglip_256|384"),
    ({**_MAP, "reg_tokens": 4}, "vit_so150m_patch16_reg4_map_256"),
    ({**_GAP, "reg_tokens": 4}, "vit_so150m_patch16_reg4_gap_256|384"),
    (
        {"class_token": False, "global_pool": "avg", "reg_tokens": 1, "init_values": 1e-5, "qkv_bias": False},
        "vit_so150m2_patch16_reg1_gap_256|384|448",
    ),
    (_LEAN_GAP, "vit_medium_patch16_gap_240|256|384 vit_betwixt_patch16_gap_256"),
    ({**_REG_GAP, "reg_tokens": 4}, "vit_base_patch16_reg4_gap_256"),
    ({**_SCALED_REG_GAP, "reg_tokens": 1}, "vit_wee_patch16_reg1_gap_256 vit_little_patch16_reg1_gap_256"),
    ({**_SCALED_REG_GAP, "reg_tokens": 1}, "vit_medium_patch16_reg1_gap_256 vit_betwixt_patch16_reg1_gap_256"),
    ({**_SCALED_REG_GAP, "reg_tokens": 4}, "vit_little_patch16_reg4_gap_256 vit_medium_patch16_reg4_gap_256"),
    ({**_SCALED_REG_GAP, "reg_tokens": 4}, "vit_mediumd_patch16_reg4_gap_256|384 vit_betwixt_patch16_reg4_gap_256|384"),
    ({"no_embed_class": True}, "flexivit_small flexivit_base flexivit_large"),
    (_CLIP, "vit_xsmall_patch16_clip_224 vit_medium_patch32_clip_224 vit_medium_patch16_clip_224"),
    (_CLIP, "vit_betwixt_patch32_clip_224 vit_base_patch32_clip_224|256|384|448 vit_base_patch16_clip_224|384"),
    ({**_CLIP, "embed_dim": 896, "num_heads": 14}, "vit_base_patch16_plus_clip_240"),
    (_CLIP, "vit_large_patch14_clip_224|336 vit_huge_patch14_clip_224|336|378 vit_giant_patch14_clip_224"),
    (_CLIP, "vit_gigantic_patch14_clip_224|378"),
    (_QUICK, "vit_base_patch32_clip_quickgelu_224 vit_base_patch16_clip_quickgelu_224"),
    (_QUICK, "vit_large_patch14_clip_quickgelu_224|336 vit_huge_patch14_clip_quickgelu_224|378"),
    (_QUICK, "vit_gigantic_patch14_clip_quickgelu_224"),
    (
        {"embed_dim": 1024, "depth": 24, "num_heads": 16, "init_values": 0.1, "final_norm": False}
        | {"dynamic_img_size": True},
        "vit_intern300m_patch14_448",
    ),
    (_BEIT3, "beit3_base_patch16_224 beit3_large_patch16_224"),
    ({**_BEIT3, "mlp_ratio": 4.3637}, "beit3_giant_patch14_224"),
    ({**_BEIT3, "mlp_ratio": 4.3637, "img_size": 336}, "beit3_giant_patch14_336"),
    ({**_AIMV2, "num_heads": 8, "mlp_ratio": 2.75}, "aimv2_large_patch14_224|336|448"),
    (
        {**_AIMV2, "embed_dim": 1536, "depth": 24, "num_heads": 12, "mlp_ratio": 2.6667},
        "aimv2_huge_patch14_224|336|448",
    ),
    ({**_AIMV2, "embed_dim": 2048, "depth": 24, "num_heads": 16, "mlp_ratio": 2.75}, "aimv2_1b_patch14_224|336|448"),
    ({**_AIMV2, "embed_dim": 3072, "depth": 24, "num_heads": 24, "mlp_ratio": 2.6667}, "aimv2_3b_patch14_224|336|448"),
    ({"distilled": True}, "deit_tiny_distilled_patch16_224 deit_small_distilled_patch16_224"),
    ({"distilled": True}, "deit_base_distilled_patch16_224|384"),
    ({"embed_dim": 64, "depth": 6, "num_heads": 2, "mlp_ratio": 3, "dynamic_img_size": True}, "test_vit"),
    (
        {"embed_dim": 64, "depth": 8, "num_heads": 2, "mlp_ratio": 3, "dynamic_img_size": True, "class_token": False}
        | {"reg_tokens": 1, "global_pool": "avg", "init_values": 1e-5},
        "test_vit2",
    ),
    (
        {"embed_dim": 96, "depth": 9, "num_heads": 3, "mlp_ratio": 2, "class_token": False, "reg_tokens": 1}
        | {"global_pool": "map", "pool_include_prefix": True, "init_values": 1e-5},
        "test_vit3",
    ),
    (
        {"embed_dim": 96, "depth": 9, "num_heads": 3, "mlp_ratio": 3, "class_token": False, "reg_tokens": 1}
        | {"global_pool": "avg", "init_values": 1e-5, "dynamic_img_size": True, "norm_layer": "rmsnorm"},
        "test_vit4",
    ),
    (_NAFLEX_GAP, "naflexvit_base_patch16_gap"),
    ({**_NAFLEX_GAP, "resample": "timm_crop"}, "naflexvit_base_patch16_par_gap"),
    ({**_NAFLEX_MAP, "init_values": 1e-5, "reg_tokens": 1}, "naflexvit_base_patch16_map"),
    ({**_NAFLEX_GAP, **_NAFLEX_SO}, "naflexvit_so150m2_patch16_reg1_gap"),
    ({**_NAFLEX_MAP, **_NAFLEX_SO}, "naflexvit_so150m2_patch16_reg1_map"),
    (
        {**_NAFLEX_MAP, **_TANH, "resample": "siglip2"},
        "naflexvit_base_patch16_siglip naflexvit_so400m_patch16_siglip",
    ),
    ({**_RELPOS, "embed_dim": 896, "num_heads": 14}, "vit_relpos_base_patch16_plus_240"),
    ({**_LEAN_RELPOS, "fc_norm": True}, "vit_relpos_small_patch16_224 vit_relpos_medium_patch16_224"),
    ({**_LEAN_RELPOS, "fc_norm": True}, "vit_relpos_base_patch16_224"),
    ({**_LEAN_RELPOS, "fc_norm": True, "class_token": True}, "vit_relpos_base_patch16_clsgap_224"),
    ({**_LEAN_RELPOS, "shared_rel_pos": True}, "vit_srelpos_small_patch16_224 vit_srelpos_medium_patch16_224"),
    (
        {**_LEAN_RELPOS, "class_token": True, "global_pool": "token"},
        "vit_relpos_medium_patch16_cls_224 vit_relpos_base_patch16_cls_224",
    ),
    ({"patch_size": 8, "resnet": ()}, "vit_tiny_r_s16_p8_224|384"),
    ({"patch_size": 1, "resnet": (2, 2, 2, 2)}, "vit_small_r26_s32_224|384 vit_base_r26_s32_224"),
    ({"patch_size": 1, "resnet": (3, 4, 9)}, "vit_base_r50_s16_224|384"),
    ({"patch_size": 1, "resnet": (3, 4, 6, 3)}, "vit_large_r50_s32_224|384"),
)

# Names that compute the erf form of GELU → tags of weights that were trained with OpenAI's, by timm's own notes.
QUICK_GELU: dict[str, tuple[str, ...]] = {
    "vit_base_patch32_clip_224": ("laion400m_e32", "metaclip_2pt5b", "metaclip_400m", "openai"),
    "vit_base_patch16_clip_224": ("metaclip_2pt5b", "metaclip_400m", "openai"),
    "vit_large_patch14_clip_224": ("dfn2b", "metaclip_2pt5b", "metaclip_400m", "openai"),
    "vit_large_patch14_clip_336": ("openai",),
    "vit_huge_patch14_clip_224": ("dfn5b", "metaclip2_worldwide", "metaclip_2pt5b"),
    "vit_huge_patch14_clip_378": ("dfn5b",),
    "vit_gigantic_patch14_clip_224": ("metaclip_2pt5b",),
}
# Names of timm's `VisionTransformer`s that differ from our model → what they have.
OTHERS: dict[str, str] = {
    "vit_relpos_*_rpn_*": "a LayerNorm after each branch instead of before it (ResPostRelPosBlock)",
    "vit_base_patch16_rpn_224": "a LayerNorm after each branch instead of before it (ResPostBlock)",
    "vit_*_xp_*": "attention and MLP side by side (ParallelScalingBlock)",
    "vit_*_18x2_*": "two attentions and two MLPs side by side (ParallelThingsBlock)",
    "vit_pwee_*": "attention and MLP side by side (ParallelScalingBlock)",
    "vit_dpwee_*": "differential attention",
    "vit_dwee_*": "differential attention",
    "vit_dlittle_*": "differential attention",
    "naflexvit_base_patch16_parfac_gap": "a position that is the sum of one for the row and one for the column",
    "vit_*_mci_224": "a convolutional stem of its own",
    "vit_*_resnet*": "a ResNet of its own",
    "vitamin_*": "a convolutional stem and gated MLPs",
}
# Those of them whose keys are those of a plain ViT → their arguments, as far as keys show them.
LOOKALIKES: dict[str, dict[str, Any]] = {
    "vit_base_patch16_rpn_224": {"qkv_bias": False, "class_token": False, "global_pool": "avg"},
}
# Ends of names that timm has replaced by tags.
OLD_ENDS = ("_in21k", "_in21ft1k", "_sam", "_dino")


def expand(names: str) -> list[str]:
    full: list[str] = []
    for name in names.split():
        first, *others = name.split("|")
        stem = first[: first.rfind("_") + 1]
        full += [first, *(stem + other for other in others)]
    return full


def sized(name: str) -> dict[str, Any]:
    """The size and patch that are words of the name."""
    words = re.findall(r"[a-z0-9]+", name)
    numbers = next((SIZES[word] for word in words if word in SIZES), None)
    arguments = {} if numbers is None else dict(zip(("embed_dim", "depth", "num_heads", "mlp_ratio"), numbers))  # noqa: B905
    patch = re.search(r"_patch(\d+)", name)
    return arguments | ({"patch_size": int(patch[1])} if patch else {})


NAMES: dict[str, dict[str, Any]] = {name: sized(name) | changes for changes, names in GROUPS for name in expand(names)}


def named_arguments(architecture: str) -> Mapping[str, Any]:
    """All arguments of a registered name, or an error that explains why that model is unsupported."""
    name = architecture.partition(".")[0]  # what follows is the tag of the weights
    for end in OLD_ENDS:
        if name.removesuffix(end) in NAMES:
            name = name.removesuffix(end)
    name = re.sub(r"_224_clip_laion2b$", "_clip_224", name)
    if name in NAMES:
        return {**PLAIN, **NAMES[name]}
    for pattern, trait in OTHERS.items():
        if fnmatchcase(name, pattern):
            raise WeightsError(f"timm's {architecture} has {trait}, which our model does not compute.")
    near = "".join(f" (did you mean {known}?)" for known in get_close_matches(name, NAMES, n=1))
    raise WeightsError(
        f"timm's architecture {architecture!r} is none that we know{near}; if it is a plain ViT, "
        "read the weights from a folder without config.json, and pass heads, pooling and activation."
    )

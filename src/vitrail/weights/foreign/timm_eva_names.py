"""The names that timm registers for its `Eva` and `Beit`: which arguments each one stands for.

EVA, EVA-02, DINOv3 and what has its shape, Perception Encoders, rope-vit, timm's own ViTs with rotary positions, and
BEiT. `tests/parity` compares the table with timm.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from vitrail.errors import WeightsError
from vitrail.weights.foreign.timm_names import expand, sized

# timm's own defaults, of the arguments that decide what is computed; those of `Beit` are among them.
SHARED: dict[str, Any] = {
    "img_size": 224,
    "patch_size": 16,
    "in_chans": 3,
    "num_classes": 1000,
    "global_pool": "avg",
    "embed_dim": 768,
    "depth": 12,
    "num_heads": 12,
    "qkv_bias": True,
    "mlp_ratio": 4.0,
    "swiglu_mlp": False,
    "scale_mlp": False,
    "init_values": None,
    "use_abs_pos_emb": True,
}
EVA: dict[str, Any] = SHARED | {
    "num_kv_heads": None,
    "qkv_fused": True,
    "qk_norm": False,
    "swiglu_align_to": 0,
    "scale_attn_inner": False,
    "attn_type": "eva",
    "attn_only_layer_scale": False,
    "class_token": True,
    "num_reg_tokens": 0,
    "no_embed_class": False,
    "use_rot_pos_emb": False,
    "rope_type": "cat",
    "rope_grid_offset": 0.0,
    "rope_grid_indexing": "ij",
    "rope_temperature": 10000.0,
    "rope_rotate_half": False,
    "use_post_norm": False,
    "use_pre_transformer_norm": False,
    "use_post_transformer_norm": None,
    "use_fc_norm": None,
    "attn_pool_num_heads": None,
    "attn_pool_mlp_ratio": None,
    "dynamic_img_size": False,
    "dynamic_img_pad": False,
    "ref_feat_shape": None,
}
BEIT: dict[str, Any] = SHARED | {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": False}
# Arguments that matter in training only.
_TRAINING = """
    drop_rate pos_drop_rate patch_drop_rate proj_drop_rate attn_drop_rate drop_path_rate head_init_scale
    rope_shift_coords rope_jitter_coords rope_rescale_coords
"""
TRAINING = frozenset(_TRAINING.split())

_EVA02 = {"mlp_ratio": 4 * 2 / 3, "swiglu_mlp": True, "use_rot_pos_emb": True, "ref_feat_shape": (16, 16)}
_EVA02_LARGE = {**_EVA02, "qkv_fused": False, "scale_mlp": True}
_EVA02_CLIP = {**_EVA02_LARGE, "scale_attn_inner": True, "global_pool": "token"}
_TURNED = {"use_rot_pos_emb": True, "use_abs_pos_emb": False}
_SBB = {**_TURNED, "img_size": 256, "init_values": 1e-5, "class_token": False, "ref_feat_shape": (16, 16)}
_DINOV3 = {
    **_TURNED,
    "rope_type": "dinov3",
    "rope_temperature": 100,
    "rope_rotate_half": True,
    "dynamic_img_size": True,
    "init_values": 1e-5,
    "num_reg_tokens": 4,
    "use_fc_norm": False,
    "norm_eps": 1e-5,
}
_UNBIASED = {**_DINOV3, "qkv_bias": False}
_GATED = {"swiglu_mlp": True, "swiglu_align_to": 8}
_LINGBOT = {**_DINOV3, "global_pool": "token"}
_ROPE = {
    "attn_type": "rope",
    "init_values": 1e-5,
    "global_pool": "token",
    "use_rot_pos_emb": True,
    "rope_grid_indexing": "xy",
    "rope_temperature": 100.0,
}
_MIXED = {**_ROPE, "rope_type": "mixed", "rope_temperature": 10.0}
_BARE, _APE = {"use_abs_pos_emb": False}, {"no_embed_class": True}
_PE = {
    "attn_type": "rope",
    "use_pre_transformer_norm": True,
    "use_rot_pos_emb": True,
    "rope_grid_offset": 1.0,
    "rope_grid_indexing": "xy",
    "ref_feat_shape": (32, 32),
    "norm_eps": 1e-5,
}
_PE_CORE = {**_PE, "global_pool": "map", "attn_pool_num_heads": 8, "attn_pool_mlp_ratio": 4.0}
_PE_PLAIN = {**_PE, "use_post_transformer_norm": False, "use_fc_norm": False}
_PE_SCALED = {**_PE_PLAIN, "init_values": 0.1}
_PE_G = {"embed_dim": 1536, "depth": 50, "mlp_ratio": 8960 / 1536, "class_token": False, "rope_grid_offset": 0.0}
_BEIT = {"use_abs_pos_emb": False, "use_rel_pos_bias": True, "init_values": 1e-5}

# What a name changes beyond its size and patch → the names, with the last parts that share all the rest.
EVA_GROUPS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "eva_giant_patch14_224|336|560"),
    ({"global_pool": "token"}, "eva_giant_patch14_clip_224"),
    (_EVA02, "eva02_tiny_patch14_224 eva02_small_patch14_224"),
    ({**_EVA02, "img_size": 336}, "eva02_tiny_patch14_336 eva02_small_patch14_336"),
    (_EVA02_LARGE, "eva02_base_patch14_224 eva02_large_patch14_224"),
    ({**_EVA02_LARGE, "img_size": 448}, "eva02_base_patch14_448 eva02_large_patch14_448"),
    (_EVA02_CLIP, "eva02_base_patch16_clip_224 eva02_large_patch14_clip_224"),
    ({**_EVA02_CLIP, "img_size": 336}, "eva02_large_patch14_clip_336"),
    ({**_SBB, "num_reg_tokens": 1}, "vit_medium_patch16_rope_reg1_gap_256 vit_base_patch16_rope_reg1_gap_256"),
    ({**_SBB, "num_reg_tokens": 1, "qkv_bias": False}, "vit_mediumd_patch16_rope_reg1_gap_256"),
    ({**_SBB, "num_reg_tokens": 4}, "vit_betwixt_patch16_rope_reg4_gap_256"),
    (_UNBIASED, "vit_small_patch16_dinov3 vit_base_patch16_dinov3 vit_large_patch16_dinov3"),
    (_DINOV3, "vit_tiny_patch16_dinov3_qkvb vit_small_patch16_dinov3_qkvb"),
    (_DINOV3, "vit_base_patch16_dinov3_qkvb vit_large_patch16_dinov3_qkvb"),
    ({**_UNBIASED, **_GATED}, "vit_small_plus_patch16_dinov3"),
    ({**_DINOV3, **_GATED}, "vit_small_plus_patch16_dinov3_qkvb"),
    ({**_UNBIASED, **_GATED, "num_heads": 20}, "vit_huge_plus_patch16_dinov3"),
    ({**_DINOV3, **_GATED, "num_heads": 20}, "vit_huge_plus_patch16_dinov3_qkvb"),
    (
        {**_UNBIASED, "embed_dim": 4096, "depth": 40, "num_heads": 32}
        | {"mlp_ratio": 2, "swiglu_mlp": True, "swiglu_align_to": 64},
        "vit_7b_patch16_dinov3",
    ),
    (_LINGBOT, "vit_small_patch16_lingbot vit_base_patch16_lingbot vit_large_patch16_lingbot"),
    (
        {**_LINGBOT, **_GATED, "embed_dim": 1536, "num_heads": 24, "mlp_ratio": 4 * 2 / 3, "qkv_bias": False},
        "vit_giant_patch16_lingbot",
    ),
    ({**_ROPE, **_BARE}, "vit_small_patch16_rope_224 vit_large_patch16_rope_224"),
    ({**_ROPE, **_BARE, "use_fc_norm": False}, "vit_base_patch16_rope_224"),
    ({**_MIXED, **_BARE}, "vit_small_patch16_rope_mixed_224 vit_base_patch16_rope_mixed_224"),
    ({**_MIXED, **_BARE}, "vit_large_patch16_rope_mixed_224"),
    ({**_ROPE, **_APE}, "vit_small_patch16_rope_ape_224 vit_base_patch16_rope_ape_224 vit_large_patch16_rope_ape_224"),
    ({**_MIXED, **_APE}, "vit_small_patch16_rope_mixed_ape_224 vit_base_patch16_rope_mixed_ape_224"),
    ({**_MIXED, **_APE}, "vit_large_patch16_rope_mixed_ape_224"),
    ({**_PE_CORE, "ref_feat_shape": (14, 14)}, "vit_pe_core_base_patch16_224"),
    ({**_PE_CORE, "ref_feat_shape": (24, 24)}, "vit_pe_core_tiny_patch16_384 vit_pe_core_small_patch16_384"),
    ({**_PE_CORE, "ref_feat_shape": (24, 24)}, "vit_pe_core_large_patch14_336"),
    ({**_PE_CORE, **_PE_G}, "vit_pe_core_gigantic_patch14_448"),
    ({**_PE_SCALED, "depth": 23}, "vit_pe_lang_large_patch14_448"),
    ({**_PE_SCALED, **_PE_G, "depth": 47}, "vit_pe_lang_gigantic_patch14_448"),
    (_PE_PLAIN, "vit_pe_spatial_tiny_patch16_512 vit_pe_spatial_small_patch16_512 vit_pe_spatial_base_patch16_512"),
    (_PE_PLAIN, "vit_pe_spatial_large_patch14_448"),
    ({**_PE_SCALED, **_PE_G}, "vit_pe_spatial_gigantic_patch14_448"),
)
BEIT_GROUPS: tuple[tuple[dict[str, Any], str], ...] = (
    ({**_BEIT, "init_values": 0.1}, "beit_base_patch16_224"),
    ({**_BEIT, "init_values": 0.1, "img_size": 384}, "beit_base_patch16_384"),
    (_BEIT, "beit_large_patch16_224 beitv2_base_patch16_224 beitv2_large_patch16_224"),
    ({**_BEIT, "img_size": 384}, "beit_large_patch16_384"),
    ({**_BEIT, "img_size": 512}, "beit_large_patch16_512"),
)
# Names of timm's `Eva`s that differ from our model → what they have.
EVA_OTHERS = {
    "eva02_enormous_*": "a LayerNorm after each branch instead of before it (use_post_norm)",
    "vit_*_sapiens2": "layer scale on its attention only, and keys and values that several heads share",
}
# Those of them whose keys are those of a model that we read → their arguments.
EVA_LOOKALIKES: dict[str, dict[str, Any]] = {
    "eva02_enormous_patch14_clip_224": EVA
    | {"patch_size": 14, "embed_dim": 1792, "depth": 64, "num_heads": 16, "mlp_ratio": 15360 / 1792}
    | {"use_post_norm": True, "global_pool": "token"},
}
EVA_NAMES = {name: EVA | sized(name) | changes for changes, names in EVA_GROUPS for name in expand(names)}
BEIT_NAMES = {name: BEIT | sized(name) | changes for changes, names in BEIT_GROUPS for name in expand(names)}


def is_eva_name(architecture: str) -> bool:
    """Whether timm registers this name for one of the two classes."""
    name = architecture.partition(".")[0]
    return name in EVA_NAMES or name in BEIT_NAMES or any(fnmatchcase(name, other) for other in EVA_OTHERS)


def eva_arguments(architecture: str) -> Mapping[str, Any]:
    """All arguments of a registered name, or an error that explains why that model is unsupported."""
    name = architecture.partition(".")[0]  # what follows is the tag of the weights
    for pattern, trait in EVA_OTHERS.items():
        if fnmatchcase(name, pattern):
            raise WeightsError(f"timm's {architecture} has {trait}, which our model does not compute.")
    return (EVA_NAMES | BEIT_NAMES)[name]

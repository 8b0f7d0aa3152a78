"""timm's `NaFlexVit`: a `VisionTransformer` whose patches are flat, whose positions are a grid, and whose names differ.

Its tensors and the arguments of its `config.json` are translated to those of timm's `VisionTransformer`, and back.
"""

from collections.abc import Mapping
from math import isqrt
from typing import Any

from torch import Tensor

from vitrail.errors import WeightsError, list_names, shorten
from vitrail.model import ViTConfig
from vitrail.model.parts import Pair
from vitrail.weights.sidecars import CONFIG, Settings

# Names that differ: theirs → those of `VisionTransformer`.
NAMES = {f"embeds.{name}": name for name in ("cls_token", "reg_token", "pos_embed")} | {
    f"embeds.{module}.{kind}": f"patch_embed.{module}.{kind}"
    for module in ("proj", "norm")
    for kind in ("weight", "bias")
}
PATCHES, POSITIONS = "embeds.proj.weight", "embeds.pos_embed"
# Arguments with the name and meaning that they have for `VisionTransformer`.
_SAME = """
    patch_size in_chans num_classes embed_dim depth num_heads mlp_ratio scale_mlp_norm qkv_bias qk_norm proj_bias
    init_values class_token reg_tokens dynamic_img_pad pre_norm final_norm fc_norm global_pool pool_include_prefix
    embed_norm_layer norm_layer act_layer
"""
SAME = frozenset(_SAME.split())
# Argument → the only values of it that our model computes.
FIXED: dict[str, tuple[Any, ...]] = {
    "num_kv_heads": (None,),
    "rope_type": ("", "none"),
    "attn_type": ("standard",),
    "attn_gated": (False,),
    "attn_only_layer_scale": (False,),
    "swiglu_mlp": (False,),
    "attn_layer": (None, "", "attn"),
    "block_fn": (None,),
    "mlp_layer": (None,),
    "embed_proj_type": ("linear",),
    "input_norm_layer": (None, ""),
    "patchify_channels_last": (True,),
    "attn_pool_num_heads": (None,),
    "attn_pool_mlp_ratio": (None,),
}
# Arguments that matter in training only, with rotary positions only, or for batches that are cut into patches before.
_IRRELEVANT = """
    attn_drop_rate drop_rate pos_drop_rate patch_drop_rate proj_drop_rate drop_path_rate weight_init fix_init
    rope_temperature rope_ref_feat_shape rope_grid_offset rope_grid_indexing rope_rotate_half rope_shift_coords
    rope_jitter_coords rope_rescale_coords rope_mrope_section qkv_fused use_key_only_attn_mask
    pos_embed_use_grid_sample enable_patch_interpolator
"""
_OWN = """
    img_size scale_attn_inner_norm pos_embed pos_embed_grid_size pos_embed_interp_mode pos_embed_ar_preserving
"""
KNOWN = SAME | FIXED.keys() | frozenset(f"{_IRRELEVANT} {_OWN}".split())
GRID = (16, 16)  # of positions, by default
# Interpolation, and whether it is done on the square of the longer side → our kernel.
KERNELS = {
    ("bicubic", False): "timm",
    ("bilinear", False): "siglip2",
    ("bicubic", True): "timm_crop",
}
NAME = "naflexvit_base_patch16_gap"  # any: all that differs is an argument


def is_naflex(tensors: Mapping[str, Tensor]) -> bool:
    return PATCHES in tensors


def to_classic(tensors: Mapping[str, Tensor], patch: Pair | None) -> tuple[dict[str, Tensor], Pair | None]:
    """The tensors as those of a `VisionTransformer`, and the grid of their positions.

    `patch` is the size of the patches; if unknown, they are square and have 3 channels, or 1.
    """
    classic = {NAMES.get(name, name): tensor for name, tensor in tensors.items()}
    weight = tensors[PATCHES]
    if weight.ndim != 2:
        raise WeightsError(f"{PATCHES} must be a matrix over flat patches; got the shape {tuple(weight.shape)}.")
    rows, columns = patch or _square(weight.shape[1])
    classic[NAMES[PATCHES]] = weight.unflatten(1, (rows, columns, -1)).permute(0, 3, 1, 2)  # row, column, channel
    positions = tensors.get(POSITIONS)
    if positions is None:
        return classic, None
    if positions.ndim != 4:
        raise WeightsError(f"{POSITIONS} must be a grid; got the shape {tuple(positions.shape)}.")
    classic[NAMES[POSITIONS]] = positions.flatten(1, 2)
    return classic, (positions.shape[1], positions.shape[2])


def _square(pixels: int) -> Pair:
    for channels in (3, 1):
        side = isqrt(pixels // channels)
        if side * side * channels == pixels:
            return side, side
    raise WeightsError(f"patches of {pixels} numbers are not square with 3 channels or 1; pass `patch_size=`.")


def to_naflex(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """The tensors of a `VisionTransformer` as those of a `NaFlexVit`."""
    theirs = {classic: name for name, classic in NAMES.items()}
    naflex = {theirs.get(name, name): tensor for name, tensor in tensors.items()}
    naflex[PATCHES] = naflex[PATCHES].permute(0, 2, 3, 1).flatten(1).contiguous()
    if POSITIONS in naflex:
        naflex[POSITIONS] = naflex[POSITIONS].unflatten(1, config.grid)
    return naflex


def can_hold(config: ViTConfig) -> bool:
    """Whether a model that timm's `VisionTransformer` holds is one that `NaFlexVit` holds too."""
    plain = (config.stem.kind, config.block.mlp, config.block.norm_eps) == ("patch", "plain", 1e-6)
    return plain and not config.distilled and config.positioned_prefix == 0


def classic_arguments(arguments: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a `NaFlexVit` as those of a `VisionTransformer`, where `named` are those of its name."""
    if unknown := sorted(arguments.keys() - KNOWN):
        raise WeightsError(
            f"model_args of config.json has {list_names(unknown)}, which timm's NaFlexVit does not have."
        )
    for name, allowed in FIXED.items():
        if name in arguments and not any(arguments[name] is value or arguments[name] == value for value in allowed):
            raise WeightsError(f"config.json says {name}={shorten(arguments[name])}, which our model does not compute.")
    classic = {name: value for name, value in arguments.items() if name in SAME}
    settings = Settings(CONFIG, {"patch_size": named["patch_size"], "pos_embed_grid_size": GRID, **arguments})
    patch = settings.pair("patch_size")
    if settings["pos_embed_grid_size"] is None:
        classic["img_size"] = settings.pair("img_size")
    else:
        grid = settings.pair("pos_embed_grid_size")
        classic["img_size"] = (grid[0] * patch[0], grid[1] * patch[1])
    if "scale_attn_inner_norm" in arguments:
        classic["scale_attn_norm"] = arguments["scale_attn_inner_norm"]
    if "pos_embed" in arguments:
        classic["pos_embed"] = settings.choice("pos_embed", {None: "none", "none": "none", "learned": "learn"})
    mode, preserving = next(settled for settled, kernel in KERNELS.items() if kernel == named["resample"])
    kernel = (settings.get("pos_embed_interp_mode", mode), bool(settings.get("pos_embed_ar_preserving", preserving)))
    if kernel not in KERNELS:
        raise WeightsError(f"config.json says pos_embed_interp_mode={shorten(kernel[0])}, which we do not compute.")
    return {**classic, "resample": KERNELS[kernel]}


def naflex_arguments(config: ViTConfig, classic: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `NAME` for a model, from those of a `VisionTransformer`."""
    arguments = {name: value for name, value in classic.items() if name in SAME}
    if "scale_attn_norm" in classic:
        arguments["scale_attn_inner_norm"] = classic["scale_attn_norm"]
    kernels = {kernel: settled for settled, kernel in KERNELS.items()}
    mode, preserving = kernels.get(config.positions.resample, ("bicubic", False))
    return arguments | {
        "pos_embed": "learned" if config.positions.kind == "learned" else "none",
        "pos_embed_grid_size": list(config.grid),
        "pos_embed_interp_mode": mode,
        "pos_embed_ar_preserving": preserving,
    }

"""timm's `VisionTransformerRelPos`: a `VisionTransformer` whose attention has a bias for each offset of two patches.

Its registered models compute the biases, by a small MLP from the logarithms of the offsets. They are read as the table
that the MLP gives for the model's grid, and written as models of the same class that store the table.
"""

import re
from collections.abc import Mapping
from math import isqrt, log2
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import WeightsError, list_names, shorten
from vitrail.model import ViTConfig
from vitrail.model.parts import BlockConfig, Pair, RelativeBias
from vitrail.weights.keys import Names

SHARED, TABLE = "shared_rel_pos", "relative_position_bias_table"
OWNER = re.compile(rf"({SHARED}|blocks\.\d+\.attn\.rel_pos)\.")
# Arguments with the name and meaning that they have for `VisionTransformer`.
_SAME = """
    img_size patch_size in_chans num_classes global_pool embed_dim depth num_heads mlp_ratio qkv_bias qk_norm
    init_values class_token
"""
SAME = frozenset(_SAME.split())
_OWN = "fc_norm rel_pos_type rel_pos_dim shared_rel_pos norm_layer act_layer"
_TRAINING = "drop_rate proj_drop_rate attn_drop_rate drop_path_rate weight_init fix_init"
KNOWN = SAME | frozenset(f"{_OWN} {_TRAINING}".split())
NAME = "vit_relpos_base_patch16_224"  # any: all that differs is an argument
REMARK = "the MLP of its relative positions was read as the table of biases that it gives for pictures of {}×{}"


def is_relpos(tensors: Mapping[str, Tensor]) -> bool:
    return any(OWNER.match(name) for name in tensors)


def kind_of(tensors: Mapping[str, Tensor]) -> str:
    """How the biases are given, as `rel_pos_type` says it: a table, or an MLP of one of two forms."""
    owners = _owners(tensors)
    if f"{owners[0]}.{TABLE}" in tensors:
        return "bias"
    return "mlp" if f"{owners[0]}.mlp.fc2.bias" in tensors else "mlp-swin"


def grid_of(tensors: Mapping[str, Tensor]) -> Pair | None:
    """The grid that stored tables are for, which must be square; None where an MLP computes them."""
    table = tensors.get(f"{_owners(tensors)[0]}.{TABLE}")
    if table is None:
        return None
    offsets = len(table) - (3 if "cls_token" in tensors else 0)
    side = isqrt(max(offsets, 1))
    if side * side != offsets or side % 2 == 0:
        raise WeightsError(
            f"{len(table)} biases are those of no square picture; pass `image_size=`, the height and width."
        )
    return (side + 1) // 2, (side + 1) // 2


def tabulate(tensors: Mapping[str, Tensor], grid: Pair) -> dict[str, Tensor]:
    """The tensors with tables instead of MLPs."""
    kind, owners = kind_of(tensors), _owners(tensors)
    if kind == "bias":
        return dict(tensors)
    offsets = _log_offsets(grid, swin=kind == "mlp-swin").flatten(0, 1)  # (offsets, 2)
    tables: dict[str, Tensor] = {}
    for owner in owners:
        part = {
            name: tensors.get(f"{owner}.mlp.{name}") for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
        }
        first, second = part["fc1.weight"], part["fc2.weight"]
        if first is None or second is None:
            raise WeightsError(f"{owner} has neither a table of biases nor an MLP that computes them.")
        biases = F.linear(F.relu(F.linear(offsets.to(first), first, part["fc1.bias"])), second, part["fc2.bias"])
        biases = biases if kind == "mlp" else 16 * biases.sigmoid()
        tables[f"{owner}.{TABLE}"] = (
            F.pad(biases, (0, 0, 0, 3)) if "cls_token" in tensors else biases
        )  # none with [cls]
    return {name: tensor for name, tensor in tensors.items() if not OWNER.match(name)} | tables


def _owners(tensors: Mapping[str, Tensor]) -> list[str]:
    return list(dict.fromkeys(match[1] for name in tensors if (match := OWNER.match(name))))


def _log_offsets(grid: Pair, *, swin: bool) -> Tensor:
    """Rows and columns between two patches, as the MLP gets them: (2h − 1, 2w − 1, 2)."""
    axes = [torch.arange(1 - side, side, dtype=torch.float32) for side in grid]
    if swin:
        axes = [8 * axis / (side - 1) for axis, side in zip(axes, grid, strict=True)]
    offsets = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    far = torch.log2(1 + offsets.abs()) / log2(8) if swin else torch.log(1 + offsets.abs())
    return offsets.sign() * far


def relative_of(tensors: Mapping[str, Tensor]) -> RelativeBias | None:
    """The relative positions of a model with tables, if it has some."""
    return RelativeBias(shared=f"{SHARED}.{TABLE}" in tensors) if is_relpos(tensors) else None


def table_names(config: ViTConfig) -> Names:
    """Where the tables of a model are."""
    if config.relative.kind != "bias":
        return {}
    if config.relative == RelativeBias(shared=True):
        return {"relative.table": f"{SHARED}.{TABLE}"}
    return {"relative.table": tuple(f"blocks.{index}.attn.rel_pos.{TABLE}" for index in range(config.depth))}


def can_hold(config: ViTConfig) -> bool:
    block = config.block
    plain = BlockConfig(qkv_bias=block.qkv_bias, qk_norm=block.qk_norm, layer_scale=block.layer_scale)
    bare = not (config.registers or config.pre_norm or config.patch_norm or config.projection or config.distilled)
    kinds = (config.relative.kind, config.positions.kind, config.stem.kind) == ("bias", "none", "patch")
    return kinds and bare and block == plain and config.pooling != "map" and config.pool_norm != "none"


def classic_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a `VisionTransformerRelPos` as those of a `VisionTransformer`, beside those that only it has."""
    if unknown := sorted(arguments.keys() - KNOWN):
        raise WeightsError(
            f"model_args of config.json has {list_names(unknown)}, which timm's VisionTransformerRelPos does not have."
        )
    for name in ("norm_layer", "act_layer"):
        if arguments.get(name) is not None:
            raise WeightsError(f"config.json says {name}={shorten(arguments[name])}, which timm cannot build.")
    classic = {name: value for name, value in arguments.items() if name in SAME}
    classic |= {name: bool(arguments[name]) for name in ("fc_norm", "shared_rel_pos") if name in arguments}
    if "rel_pos_type" in arguments:
        kind = str(arguments["rel_pos_type"])
        classic["rel_pos_type"] = ("mlp-swin" if "swin" in kind else "mlp") if kind.startswith("mlp") else "bias"
    return classic


def relpos_arguments(config: ViTConfig, classic: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `NAME` for a model, from those of a `VisionTransformer`."""
    arguments = {name: value for name, value in classic.items() if name in SAME or name == "fc_norm"}
    arguments["init_values"] = config.block.layer_scale or 0  # timm takes None for no argument
    return arguments | {"rel_pos_type": "bias", "shared_rel_pos": config.relative == RelativeBias(shared=True)}

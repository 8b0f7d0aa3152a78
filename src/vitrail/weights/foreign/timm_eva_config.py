"""The arguments of timm's `Eva` and `Beit` as a config of ours, and back.

It is a closed world: an argument is translated, known to matter in training only, or refused by name.
"""

from collections.abc import Mapping
from typing import Any, Literal

from vitrail.errors import WeightsError, list_names, shorten
from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.model.parts import NoRelative, Pair, Relative, RelativeBias, Rope
from vitrail.weights.foreign import timm_relpos
from vitrail.weights.foreign.timm_eva_names import BEIT_NAMES, EVA_NAMES, TRAINING, eva_arguments
from vitrail.weights.infer import exact_ratio
from vitrail.weights.sidecars import CONFIG, Settings

LAYER_SCALE = 1e-5  # where a file has one and nothing tells its first value
NORM_EPS = 1e-6  # of timm's own LayerNorm, which some names change
POOLINGS: dict[Any, Literal["cls", "mean", "map"]] = {"token": "cls", "avg": "mean", "map": "map"}
# What no key of a file shows.
_UNSEEN = """
    use_rot_pos_emb rope_type rope_temperature rope_grid_offset rope_grid_indexing rope_rotate_half ref_feat_shape
"""
UNSEEN = frozenset(_UNSEEN.split())
ORDERS: dict[Any, Literal["yx", "xy"]] = {"ij": "yx", "xy": "xy"}
# Argument → the only values of it that our model computes.
FIXED: dict[str, tuple[Any, ...]] = {
    "use_post_norm": (False,),
    "num_kv_heads": (None,),
    "attn_only_layer_scale": (False,),
    "attn_type": ("eva", "rope"),
    "rope_type": ("cat", "mixed", "dinov3"),
}


def merge_arguments(name: str, usual: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """The arguments of a registered name with those that a `config.json` gives, if our model computes them all."""
    if unknown := sorted(given.keys() - usual.keys() - TRAINING):
        raise WeightsError(
            f"model_args of config.json has {list_names(unknown)}, which timm's {name} does not take or we do not "
            "know, so the model may compute something else."
        )
    arguments = Settings(CONFIG, {**usual, **given})
    for key, allowed in FIXED.items():
        if key in arguments and arguments[key] not in allowed:
            raise WeightsError(f"config.json says {key}={shorten(arguments[key])}, which our model does not compute.")
    return arguments


def is_eva(config: ViTConfig) -> bool:
    """Whether a model is of one of these classes rather than of timm's `VisionTransformer`."""
    keyless = config.block.qkv_bias and not config.block.key_bias
    table = config.relative.kind == "bias" and config.class_token and not timm_relpos.can_hold(config)
    return config.relative.kind == "rope" or table or keyless


def is_beit(arguments: Mapping[str, Any]) -> bool:
    return "use_rel_pos_bias" in arguments


def config_of(arguments: Settings) -> ViTConfig:
    """The model that timm builds with these arguments."""
    beit, width = is_beit(arguments), arguments.whole("embed_dim")
    pooling = arguments.choice("global_pool", {**POOLINGS, **({"map": None} if beit else {})})
    class_token, pre_norm = bool(arguments.get("class_token", True)), bool(arguments.get("use_pre_transformer_norm"))
    gated, scaled_mlp = bool(arguments["swiglu_mlp"]), bool(arguments["scale_mlp"])
    if pooling is None or (pooling == "map" and (gated or scaled_mlp)):
        raise WeightsError(
            "config.json says global_pool 'map', which we read with plain MLPs without a norm, and not in a BEiT."
        )
    first = arguments["init_values"]
    scaled = bool(first) if beit else first is not None
    return ViTConfig(
        image_size=whole_patches(arguments),
        patch_size=arguments.pair("patch_size"),
        channels=arguments.whole("in_chans"),
        width=width,
        depth=arguments.whole("depth"),
        heads=arguments.whole("num_heads"),
        mlp_width=hidden_width(arguments),
        num_classes=arguments.whole("num_classes"),
        class_token=class_token,
        registers=arguments.whole("num_reg_tokens", 0),
        pooling=pooling,
        pool_norm=_pool_norm(arguments),
        pool_prefix=pooling == "map",  # timm's attention pooling reads all tokens
        pool_heads=arguments.get("attn_pool_num_heads"),
        pool_mlp_width=int(width * ratio) if (ratio := arguments.get("attn_pool_mlp_ratio")) else None,
        pre_norm=pre_norm,
        patch_bias=not pre_norm,
        block=BlockConfig(
            qkv_bias=bool(arguments["qkv_bias"]),
            key_bias=arguments.get("attn_type") == "rope",
            qk_norm=bool(arguments.get("qk_norm")),
            layer_scale=(first or LAYER_SCALE) if scaled else None,
            norm_eps=arguments.get("norm_eps", NORM_EPS),
            mlp="swiglu" if gated else "plain",
            mlp_norm=scaled_mlp,
            attention_norm=bool(arguments.get("scale_attn_inner")),
        ),
        positions=PositionConfig(
            kind="learned" if arguments["use_abs_pos_emb"] else "none",
            covers="patches" if arguments.get("no_embed_class") else "all",
            resample="timm",
        ),
        relative=_relative(arguments),
    )


def whole_patches(arguments: Settings) -> Pair:
    """The size of the pictures that `img_size` says, into which whole patches must fit."""
    size, patch = arguments.pair("img_size"), arguments.pair("patch_size")
    fitting = (size[0] // patch[0] * patch[0], size[1] // patch[1] * patch[1])
    if size != fitting:
        raise WeightsError(
            f"config.json says img_size {size[0]}×{size[1]}, which is not a multiple of the patch size "
            f"{patch[0]}×{patch[1]}; timm ignores the last pixels, and we do not. To read the model at "
            f"{fitting[0]}×{fitting[1]} pixels, pass `image_size={fitting}`."
        )
    return size


def hidden_width(arguments: Settings) -> int:
    """Features inside the MLP."""
    hidden = int(arguments.whole("embed_dim") * arguments.positive("mlp_ratio"))
    align = arguments.whole("swiglu_align_to", 0) if arguments["swiglu_mlp"] else 0
    return hidden + -hidden % align if align else hidden


def _pool_norm(arguments: Settings) -> Literal["before", "after", "none"]:
    mean = arguments["global_pool"] == "avg"
    after = mean if arguments.get("use_fc_norm") is None else bool(arguments["use_fc_norm"])
    stated = arguments.get("use_post_transformer_norm")
    before = not after if stated is None else bool(stated)
    if (before and after) or (after and arguments["global_pool"] == "token"):
        raise WeightsError(
            "config.json says use_fc_norm with global_pool 'token' or with a LayerNorm before the pooling too; we read "
            "one last LayerNorm, and use_fc_norm with 'avg' and 'map'."
        )
    return "after" if after else "before" if before else "none"


def _relative(arguments: Settings) -> Relative:
    each, shared = (bool(arguments.get(name)) for name in ("use_rel_pos_bias", "use_shared_rel_pos_bias"))
    if each and shared:
        raise WeightsError(
            "config.json says use_rel_pos_bias and use_shared_rel_pos_bias; our model has one table for all blocks or "
            "one for each, not both."
        )
    if each or shared:
        return RelativeBias(shared=shared)
    if not arguments.get("use_rot_pos_emb"):
        return NoRelative()
    kind, half = arguments["rope_type"], bool(arguments["rope_rotate_half"])
    offset = 0.0 if kind == "mixed" else arguments.number("rope_grid_offset")
    if half != (kind == "dinov3") or (half and offset):
        raise WeightsError(
            "config.json mixes kinds of rotary positions that our model keeps apart: rope_rotate_half belongs to "
            "rope_type 'dinov3' and to no other, and rope_grid_offset does not."
        )
    base = arguments.positive("rope_temperature")
    if half:
        return Rope(base=base, coordinates="unit", order="yx", pairing="half")
    reference = None if arguments["ref_feat_shape"] is None or kind == "mixed" else arguments.pair("ref_feat_shape")
    return Rope(
        base=base,
        coordinates="index" if reference is None else "reference",
        reference=reference,
        offset=offset,
        order=arguments.choice("rope_grid_indexing", ORDERS),
        pairing="interleaved",
        frequencies="mixed" if kind == "mixed" else "computed",
    )


Dialect = Mapping[str, str]  # how a file spells what has several spellings; missing: the usual one


def qkv_separate(dialect: Dialect) -> bool:
    """Whether queries, keys and values have a matrix each."""
    return dialect.get("qkv", "fused") == "separate"


def gates_split(config: ViTConfig, dialect: Dialect) -> bool:
    """Whether a gated MLP has a matrix for its gate and one for what is gated, instead of both in one."""
    if config.block.mlp_norm or isinstance(config.relative, RelativeBias):
        return True  # timm has no other
    unit = isinstance(config.relative, Rope) and config.relative.coordinates == "unit"
    return dialect.get("mlp", "split" if unit else "packed") == "split"


def eva_architecture(config: ViTConfig, dialect: Dialect) -> tuple[str, dict[str, Any]]:
    """The registered name that is nearest to a model, and the arguments that turn it into it."""
    block = config.block
    arguments: dict[str, Any] = {
        "img_size": _square(config.image_size),
        "patch_size": _square(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": exact_ratio(config.width, config.hidden_width),
        "qkv_bias": block.qkv_bias,
        "swiglu_mlp": block.mlp == "swiglu",
        "scale_mlp": block.mlp_norm,
        "init_values": block.layer_scale,
        "use_abs_pos_emb": config.positions.kind == "learned",
        "global_pool": next(name for name, pooling in POOLINGS.items() if pooling == config.pooling),
    }
    if isinstance(config.relative, RelativeBias):
        arguments |= {"use_rel_pos_bias": not config.relative.shared, "use_shared_rel_pos_bias": config.relative.shared}
    else:
        arguments |= _eva_arguments(config, dialect)
    names = BEIT_NAMES if isinstance(config.relative, RelativeBias) else EVA_NAMES
    fitting = [name for name, usual in names.items() if usual.get("norm_eps", NORM_EPS) == block.norm_eps]

    def distance(name: str) -> tuple[int, int]:
        changes = changes_of(name, arguments)
        return len(changes.keys() & UNSEEN), len(changes)

    return min(fitting, key=distance), arguments


def changes_of(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that differ from those of a registered name."""
    usual = Settings(CONFIG, eva_arguments(name))
    if not is_beit(usual):  # where None depends on the pooling
        norm = _pool_norm(usual)
        usual |= {"use_post_transformer_norm": norm == "before", "use_fc_norm": norm == "after"}
    return {key: value for key, value in arguments.items() if _listed(usual[key]) != value}


def _eva_arguments(config: ViTConfig, dialect: Dialect) -> dict[str, Any]:
    block = config.block
    arguments: dict[str, Any] = {
        "qkv_fused": not qkv_separate(dialect),
        "qk_norm": block.qk_norm,
        "scale_attn_inner": block.attention_norm,
        "class_token": config.class_token,
        "num_reg_tokens": config.registers,
        "no_embed_class": config.positions.kind == "learned" and config.positioned_prefix == 0,
        "use_pre_transformer_norm": config.pre_norm,
        "use_post_transformer_norm": config.pool_norm == "before",
        "use_fc_norm": config.pool_norm == "after",
        "use_rot_pos_emb": isinstance(config.relative, Rope),
    }
    if block.qkv_bias:
        arguments["attn_type"] = "rope" if block.key_bias else "eva"
    if block.mlp == "swiglu":
        split = gates_split(config, dialect) and not block.mlp_norm
        arguments["swiglu_align_to"] = (8 if config.hidden_width % 8 == 0 else 1) if split else 0
    if config.pooling == "map":
        arguments["attn_pool_num_heads"] = config.pool_heads or config.heads
        arguments["attn_pool_mlp_ratio"] = exact_ratio(config.width, config.pool_mlp_width or config.hidden_width)
    if isinstance(config.relative, Rope):
        rope, unit = config.relative, config.relative.coordinates == "unit"
        arguments |= {
            "rope_type": "dinov3" if unit else "mixed" if rope.frequencies == "mixed" else "cat",
            "rope_temperature": rope.base,
            "rope_rotate_half": unit,
            "rope_grid_offset": rope.offset,
        }
        if not unit:
            arguments["rope_grid_indexing"] = next(name for name, order in ORDERS.items() if order == rope.order)
            arguments["ref_feat_shape"] = _listed(rope.reference)
    return arguments


def _square(size: Pair) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def _listed(value: Any) -> Any:
    return [*value] if isinstance(value, tuple) else value  # pyright: ignore

"""timm's `Eva` and `Beit`, in the files and folders of timm's other models.

Keys do not tell how positions rotate: a file without a `config.json` is read if its sizes are those of a registered
name, or if the user names the architecture.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from typing import Any

from torch import Tensor

from vitrail.data.preprocess import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitrail.errors import WeightsError
from vitrail.model import ViTConfig
from vitrail.model.parts import Pair, RelativeBias, Rope
from vitrail.weights import keys
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.timm_config import HEAD, PROJECTION, Facts, projects
from vitrail.weights.foreign.timm_eva_config import (
    UNSEEN,
    Dialect,
    changes_of,
    config_of,
    eva_architecture,
    gates_split,
    hidden_width,
    is_beit,
    merge_arguments,
    qkv_separate,
)
from vitrail.weights.foreign.timm_eva_names import BEIT_NAMES, EVA_LOOKALIKES, EVA_NAMES, eva_arguments, is_eva_name
from vitrail.weights.foreign.timm_preprocess import assume_preprocess, read_classes, read_preprocess
from vitrail.weights.formats import COMMON, PERIODS, Check, Holds, activations, anything, epsilons, only, positions
from vitrail.weights.infer import Hints, Raw, assumed, exact_ratio, infer_heads, infer_image_size, usual_size
from vitrail.weights.keys import KEYLESS, LAYERS, Names, Rule, read_tensors, rule, under
from vitrail.weights.metadata import Origin
from vitrail.weights.sidecars import CONFIG, Settings

# Our modules → timm's, but for those that depend on the model.
BLOCK_NAMES = {
    "norm1": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.query_norm": "attn.q_norm",
    "attention.key_norm": "attn.k_norm",
    "attention.norm": "attn.norm",
    "attention.proj": "attn.proj",
    "branch1.scale": "gamma_1",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "mlp.gate": "mlp.fc1",  # both halves in one
    "mlp.up": "mlp.fc1",
    "mlp.norm": "mlp.norm",
    "mlp.down": "mlp.fc2",
    "branch2.scale": "gamma_2",
}
SEPARATE = {"attention.qkv": ("attn.q_proj", "attn.k_proj", "attn.v_proj")}
SPLIT = {"mlp.gate": "mlp.fc1_g", "mlp.up": "mlp.fc1_x"}
POOL_NAMES = {"probe": "latent", "query": "q", "key_value": "kv", "proj": "proj", "norm": "norm"}
NAMES: Names = {
    "embed.class_token": "cls_token",
    "embed.registers": "reg_token",
    "embed.positions": "pos_embed",
    "embed.patches": "patch_embed.proj",
    "pre_norm": "norm_pre",
    "relative.frequencies": "rope.freqs",
    **under("pool", "attn_pool.", {**POOL_NAMES, "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}),
    "head": "head",
}
TABLE, INDEX = "relative_position_bias_table", "relative_position_index"
SHOWN = 8  # names in an error


def key_table(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    separate, split = qkv_separate(dialect), gates_split(config, dialect)
    blocks: Names = {**BLOCK_NAMES, **(SEPARATE if separate else {}), **(SPLIT if split else {})}
    last = "fc_norm" if config.pool_norm == "after" else "norm"
    rules = keys.key_table(config, {**NAMES, "norm": last, **under("blocks.{}", "blocks.{}.", blocks)})
    if config.projection is not None:
        rules.append(rule("projection.weight", *HEAD, form=PROJECTION))
    if not config.block.key_bias:
        query, value = ("q_proj.bias", "v_proj.bias") if separate else ("q_bias", "v_bias")
        attentions = (f"blocks.{block}.attn." for block in range(config.depth))
        biases = {
            f"blocks.{block}.attention.qkv.bias": (attention + query, attention + value)
            for block, attention in enumerate(attentions)
        }
        rules = [rule(each.ours, *biases[each.ours], form=KEYLESS) if each.ours in biases else each for each in rules]
    if isinstance(config.relative, RelativeBias):
        each = (f"blocks.{block}.attn.{TABLE}" for block in range(config.depth))
        tables = (f"rel_pos_bias.{TABLE}",) if config.relative.shared else tuple(each)
        rules.append(rule("relative.table", *tables, form=LAYERS))
    return rules


def is_meant(tensors: Mapping[str, Tensor], architecture: str | None) -> bool:
    """Whether these are weights of one of the two classes: by their name, or else by keys that only they have."""
    if architecture is not None:
        return is_eva_name(architecture)
    own = r"blocks\.0\.(gamma_1|attn\.(q_bias|q_proj\.weight|relative_position_bias_table))|rope\.freqs|rel_pos_bias\."
    if any(re.match(own, name) for name in tensors):
        return True
    perception = "attn_pool.latent" in tensors or not {"norm.weight", "fc_norm.weight"} & tensors.keys()
    return "norm_pre.weight" in tensors and perception  # keys that another class of timm could have, in no known model


def read(raw: Raw, facts: Facts | None, hints: Hints) -> Checkpoint:
    """A checkpoint whose `config.json` is `facts`, if there is one."""
    tensors = {name: tensor for name, tensor in raw.tensors.items() if not name.endswith(INDEX)}  # follows from sizes
    raw = replace(raw, tensors=tensors)
    if facts is None:
        name, config, dialect = infer_model(raw, hints)
        preprocess, classes, notes = usual_preprocess(name, config), None, _assumptions(name, config, hints)
    else:
        arguments = _state(facts, hints)
        config, dialect = _settle(arguments, hints), dialect_of(arguments)
        dynamic = bool(arguments.get("dynamic_img_size")) and hints.image_size is None
        preprocess, notes = read_preprocess(facts.data, config, dynamic=dynamic)
        classes, more = read_classes(facts.data, config)
        notes = (*notes, *more)
    if projects(raw, facts and facts.data):
        config = replace(config, num_classes=0, projection=config.num_classes)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, dialect), raw.tensors),
        preprocess=preprocess,
        classes=classes,
        origin=Origin(format="timm", dialect={"suffix": raw.path.suffix, **dialect}),
        notes=notes,
    )


def dialect_of(arguments: Mapping[str, Any]) -> dict[str, str]:
    """How timm spells what its models spell in several ways, with these arguments."""
    dialect = {} if is_beit(arguments) else {"qkv": "fused" if arguments["qkv_fused"] else "separate"}
    if arguments["swiglu_mlp"]:
        split = is_beit(arguments) or arguments["scale_mlp"] or arguments["swiglu_align_to"]
        dialect["mlp"] = "split" if split else "packed"
    return dialect


def _settle(arguments: Settings, hints: Hints) -> ViTConfig:
    """The model of these arguments, with what the user knows better."""
    config = config_of(arguments)
    pooling = hints.pooling or config.pooling
    return replace(config, pooling=pooling, pool_prefix=pooling == "map", block=hints.override(config.block))


def _state(facts: Facts, hints: Hints) -> Settings:
    """The arguments that a `config.json` states."""
    name = facts.architecture
    arguments = merge_arguments(name, eva_arguments(name), facts.arguments)
    if facts.global_pool not in (None, arguments["global_pool"]) and hints.pooling is None:
        raise WeightsError(
            f"config.json says global_pool {facts.global_pool!r}, but timm builds {name} with "
            f"{arguments['global_pool']!r} from it; pass pooling to choose one."
        )
    for key, stated in (("num_classes", facts.data["num_classes"]), ("embed_dim", facts.num_features)):
        if stated not in (None, arguments[key]):
            raise WeightsError(f"config.json says {key} is {stated!r} in one place and {arguments[key]!r} in another.")
    arguments |= {"img_size": hints.image_size or arguments["img_size"]}
    arguments |= {"num_heads": hints.heads or arguments["num_heads"]}
    return arguments


def infer_model(raw: Raw, hints: Hints) -> tuple[str, ViTConfig, dict[str, str]]:
    """The architecture of a file without a `config.json`: the user's, or the only one that can be meant."""
    if hints.architecture is not None:
        name = hints.architecture.partition(".")[0]
        return name, *_model_of(name, raw, hints)
    names, sizes = {**EVA_NAMES, **BEIT_NAMES, **EVA_LOOKALIKES}, _sizes(raw)
    fitting = [name for name, usual in names.items() if _keys_fit(usual, raw)]
    fitting = [name for name in fitting if _grid_fits(names[name], raw, hints)] or fitting
    exact = [name for name in fitting if all(_sizes_of(names[name])[key] == size for key, size in sizes.items())]
    proven = [name for name in fitting if name in BEIT_NAMES]  # whose keys leave nothing open
    models = {name: _model_of(name, raw, hints) for name in exact or proven}
    if len({_without_first_values(config) for config, _ in models.values()}) == 1:
        return next((name, *model) for name, model in models.items())
    choices = list(models) or fitting
    if not choices:
        raise WeightsError(
            "none of timm's models that we read has exactly these keys (Sapiens2 is one that we do not read), and they "
            "do not tell how positions rotate; if there is a config.json, read the folder with it."
        )
    listed = ", ".join(choices[:SHOWN]) + (f" or {len(choices) - SHOWN} more" if len(choices) > SHOWN else "")
    raise WeightsError(
        "the keys and sizes of the file do not tell how its positions rotate, or how it is pooled; name its model in "
        f"timm with `architecture=`, one of {listed}."
    )


def _without_first_values(config: ViTConfig) -> ViTConfig:
    """A config for comparing what is computed: layer scales are learned, however they began."""
    return replace(config, block=replace(config.block, layer_scale=config.block.layer_scale and 1.0))


def _keys_fit(usual: Mapping[str, Any], raw: Raw) -> bool:
    """Whether the file has exactly the keys of a registered name, whatever the sizes."""
    arguments = _fit(usual, raw, heads=1)
    rules = key_table(config_of(arguments), dialect_of(arguments))
    return {key for each in rules for key in each.theirs} == raw.tensors.keys()


def _grid_fits(usual: Mapping[str, Any], raw: Raw, hints: Hints) -> bool:
    """Whether the positions are those of the tokens that have one in a registered name."""
    try:
        _image_size(_fit(usual, raw, heads=1), raw, hints)
    except WeightsError:
        return False
    return True


def _model_of(name: str, raw: Raw, hints: Hints) -> tuple[ViTConfig, dict[str, str]]:
    """The model of a registered name at the sizes of the file."""
    usual, sizes = eva_arguments(name), _sizes(raw)
    width, depth = sizes["embed_dim"], sizes["depth"]
    proven = raw.size(f"blocks.0.attn.{TABLE}", 1) or raw.size(f"rel_pos_bias.{TABLE}", 1) or raw.size("rope.freqs", 2)
    same = (usual["embed_dim"], usual["depth"]) == (width, depth)
    heads = hints.heads or proven or (usual["num_heads"] if same else None)
    head_size = raw.size("blocks.0.attn.q_norm.weight")
    arguments = _fit(usual, raw, heads or infer_heads(width, depth, hints, head_size))
    arguments["img_size"] = _image_size(arguments, raw, hints)
    return _settle(arguments, hints), dialect_of(arguments)


def _sizes(raw: Raw) -> dict[str, Any]:
    """What the shapes prove, by the names of arguments; and the width of the MLP."""
    width, _, rows, columns = raw.shape("patch_embed.proj.weight", 4)
    return {
        "embed_dim": width,
        "patch_size": (rows, columns),
        "depth": raw.count_layers(r"blocks\.(\d+)\."),
        "num_reg_tokens": raw.size("reg_token", axis=1) or 0,
        "hidden": raw.shape("blocks.0.mlp.fc2.weight", 2)[1],
    }


def _sizes_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a registered name."""
    stated = Settings(CONFIG, arguments)
    own = {"patch_size": stated.pair("patch_size"), "hidden": hidden_width(stated)}
    return {**arguments, "num_reg_tokens": stated.whole("num_reg_tokens", 0), **own}


def _fit(usual: Mapping[str, Any], raw: Raw, heads: int) -> Settings:
    """The arguments of a registered name with the sizes of the file, but for that of its pictures."""
    arguments, sizes = Settings(CONFIG, usual), _sizes(raw)
    hidden, width = sizes.pop("hidden"), sizes["embed_dim"]
    if is_beit(arguments):
        del sizes["num_reg_tokens"]
    else:
        arguments["swiglu_align_to"] = min(arguments["swiglu_align_to"], 1)
    arguments |= sizes | {
        "in_chans": raw.shape("patch_embed.proj.weight", 4)[1],
        "num_classes": raw.size("head.weight") or 0,
        "num_heads": heads,
        "mlp_ratio": exact_ratio(width, hidden),
    }
    if pool_hidden := raw.size("attn_pool.mlp.fc1.weight"):
        arguments["attn_pool_mlp_ratio"] = exact_ratio(width, pool_hidden)
    arguments["img_size"] = arguments["patch_size"]
    return arguments


def _image_size(arguments: Settings, raw: Raw, hints: Hints) -> Pair:
    """The picture size that the positions or the relative ones are for; any will do for those that rotate."""
    patch = arguments.pair("patch_size")
    rows = raw.size(f"blocks.0.attn.{TABLE}") or raw.size(f"rel_pos_bias.{TABLE}")
    if "pos_embed" in raw.tensors:
        prefix = int(arguments.get("class_token", True)) + arguments.whole("num_reg_tokens", 0)
        covered = 0 if arguments.get("no_embed_class") else prefix
        return infer_image_size(raw.shape("pos_embed", 3)[1], (covered,), patch, hints)[0]
    if hints.image_size is not None or rows is None:
        return hints.image_size or usual_size(patch)
    side = (isqrt(rows - 3) + 1) // 2
    if (2 * side - 1) ** 2 + 3 != rows:
        raise WeightsError(
            f"{rows} relative positions are not those of a square grid; pass `image_size=`, the height and width."
        )
    return side * patch[0], side * patch[1]


def _assumptions(name: str, config: ViTConfig, hints: Hints) -> tuple[str, ...]:
    """What neither a key of a bare file nor a hint settles, one note each."""
    facts = "rotary positions, heads, pooling and LayerNorm epsilon"
    facts = facts if isinstance(config.relative, Rope) else "pooling and LayerNorm epsilon"
    return (
        *assumed("architecture", f"{name}, with its {facts}", "architecture", hints.architecture),
        "the file does not state its preprocessing: assumed what is usual for such models in timm; timm's config.json "
        "beside the file would settle it",
    )


def usual_preprocess(name: str, config: ViTConfig) -> Preprocess:
    """timm's usual preprocessing for a registered name."""
    spec = assume_preprocess(config)
    if re.search("dinov3|lingbot|_pe_", name):
        spec = replace(spec, crop=1.0)
    statistics = {"eva": (CLIP_MEAN, CLIP_STD), "dinov3|lingbot|_rope_(?!reg)|beitv2": (IMAGENET_MEAN, IMAGENET_STD)}
    for pattern, (mean, std) in statistics.items():
        if config.channels == len(mean) and re.search(pattern, name):
            return replace(spec, mean=mean, std=std)
    return spec


def check_bare(config: ViTConfig, dialect: Dialect) -> None:
    """Raise if a file without a `config.json` could not be read again, whatever the user knows about it."""
    name, arguments = eva_architecture(config, dialect)
    if hidden := [f"{key} {value}" for key, value in changes_of(name, arguments).items() if key in UNSEEN]:
        raise WeightsError(
            "the keys of a file do not tell how positions rotate, and no name that timm registers stands for "
            f"{', '.join(hidden)}; write a folder instead of a file."
        )


def _covers(value: str, config: ViTConfig) -> str:
    if value == "class" and config.registers > 0 and config.class_token:
        return "it gives positions to [cls] and registers alike, or to neither"
    return ""


def _map(plain: Any, reason: str) -> Check:
    """Anything, but only the plain value where there is attention pooling."""
    return lambda value, config: reason if value != plain and config.pooling == "map" else ""


def _rotates(value: str, config: ViTConfig) -> str:
    rope = config.relative
    assert isinstance(rope, Rope)
    if rope.frequencies == "stored":
        return PERIODS
    if rope.frequencies == "mixed" and (value != "index" or rope.offset):
        return "its learned frequencies go with rows and columns that count from 0"
    usual = ("half", "yx") if value == "unit" else ("interleaved", rope.order)
    if (rope.pairing, rope.order) != usual or (value == "unit" and rope.frequencies == "mixed"):
        return 'it pairs halves, rows first, where coordinates are "unit", and neighbours where they are not'
    return ""


def _patch_bias(value: bool, config: ViTConfig) -> str:
    return "" if value != config.pre_norm else "its patches have a bias if it has no LayerNorm before its first block"


def _projection(value: int | None, config: ViTConfig) -> str:
    if value is None or (config.pre_norm and not config.num_classes):
        return ""
    return "it has a projection only in place of the head, and after a norm before the first block (PE)"


def _pool_prefix(value: bool, config: ViTConfig) -> str:
    reads = config.pooling == "map" and config.prefix > 0
    return "" if value == reads else "its attention pooling reads all tokens, and its mean only patches"


_POOLS = "it has plain MLPs where it has attention pooling"
EVA_HOLDS: Holds = {
    **COMMON,
    **dict.fromkeys(("class_token", "registers", "pool_norm", "pool_heads", "pool_mlp_width", "pre_norm"), anything),
    "pooling": only("cls", "mean", "map", reason="it pools the [cls] token, the mean of the patches or by attention"),
    "pool_prefix": _pool_prefix,
    "projection": _projection,
    "patch_bias": _patch_bias,
    "positions.kind": only("learned", "none", reason="its positions are learned"),
    "positions.covers": _covers,
    **{f"block.{name}": anything for name in ("qkv_bias", "key_bias", "qk_norm", "layer_scale", "attention_norm")},
    "block.mlp": _map("plain", _POOLS),
    "block.mlp_norm": _map(False, _POOLS),
    "block.activation": activations("gelu"),
    "block.norm_eps": epsilons(1e-6, 1e-5),
    **{f"relative.{name}": anything for name in ("kind", "base", "reference", "offset", "order", "pairing")},
    "relative.coordinates": _rotates,
    "relative.frequencies": anything,
}


def _last_norm(value: str, config: ViTConfig) -> str:
    usual = "after" if config.pooling == "mean" else "before"
    return "" if value == usual else "its last LayerNorm follows the mean of the patches, or comes before [cls] is read"


def _square(value: Pair, config: ViTConfig) -> str:
    return "" if len(set(config.grid)) == 1 else "its relative positions can be loaded for square grids only"


BEIT_HOLDS: Holds = {
    **COMMON,
    "image_size": _square,
    "pooling": only("cls", "mean", reason="it pools the [cls] token or the mean of the patches"),
    "pool_norm": _last_norm,
    **positions("learned", "none", covers="class"),
    **{f"block.{name}": anything for name in ("qkv_bias", "layer_scale", "mlp", "mlp_norm")},
    "block.key_bias": lambda value, config: "its keys have no bias" if value and config.block.qkv_bias else "",
    "block.activation": activations("gelu"),
    "block.norm_eps": epsilons(1e-6),
    "relative.kind": anything,
    "relative.shared": anything,
}


def holds(config: ViTConfig) -> Holds:
    """What the class of such a model holds."""
    return BEIT_HOLDS if config.relative.kind == "bias" else EVA_HOLDS

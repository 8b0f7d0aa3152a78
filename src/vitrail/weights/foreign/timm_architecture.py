"""A model as timm names it, in `config.json` and for `create_model`: a registered name and arguments that differ."""

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from vitrail.errors import WeightsError
from vitrail.model import ResNetStem, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import timm_naflex, timm_relpos
from vitrail.weights.foreign.timm_config import FIELDS, NEW_FIELDS, POOLINGS, Layout, mlp_of
from vitrail.weights.foreign.timm_eva_config import changes_of, eva_architecture, is_eva
from vitrail.weights.foreign.timm_names import NAMES, NORMS, named_arguments
from vitrail.weights.foreign.timm_preprocess import last_width, write_data
from vitrail.weights.infer import exact_ratio

# Blocks of a hybrid's ResNet → the first architecture that timm registers for it.
HYBRIDS: dict[tuple[int, ...], str] = {
    arguments["resnet"]: name for name, arguments in reversed(NAMES.items()) if "resnet" in arguments
}


def architecture(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """A name that timm registers and the arguments that turn it into this model."""
    name, norm = _nearest_name(config), (config.block.norm, config.block.norm_eps)
    named, mlp = named_arguments(name), mlp_of(config)
    arguments: dict[str, Any] = (
        {} if isinstance(config.stem, ResNetStem) else {"patch_size": _square(config.patch_size)}
    )
    arguments |= {
        "img_size": _square(config.image_size),
        **{argument: attrgetter(path)(config) for argument, path in FIELDS.items()},
        "reg_tokens": config.registers - config.distilled,
        "mlp_ratio": exact_ratio(config.width, (2 if mlp == "packed" else 1) * config.hidden_width),
        "init_values": config.block.layer_scale,
        "no_embed_class": config.positioned_prefix == 0,
        "pos_embed": "none" if config.positions.kind == "none" else "learn",
        "global_pool": next(name for name, pooling in POOLINGS.items() if pooling == config.pooling),
        "fc_norm": config.pool_norm == "after",
    }
    word = next((word for word, each in NORMS.items() if each == norm and isinstance(word, str) and word), None)
    rare = {argument: attrgetter(path)(config) for argument, path in NEW_FIELDS.items()}
    rare |= {"final_norm": config.pool_norm != "none"}
    rare |= {} if NORMS[named["norm_layer"] or ""] == norm else {"norm_layer": word}
    if bool(named["embed_norm_layer"]) != config.patch_norm or "norm_layer" in rare:
        rare["embed_norm_layer"] = word if config.patch_norm else ""
    arguments |= {argument: value for argument, value in rare.items() if value != named[argument]}
    if mlp == "plain" and config.block.activation != "gelu":
        arguments["act_layer"] = config.block.activation
    if config.block.layer_scale is None and named["init_values"]:
        arguments["init_values"] = 0  # timm takes None for no argument
    return name, arguments


def architecture_of(checkpoint: Checkpoint) -> tuple[str, dict[str, Any]]:
    """The name and arguments of a model in the layout that it is written in."""
    if is_eva(checkpoint.config):
        return eva_architecture(checkpoint.config, checkpoint.origin.dialect_of("timm"))
    name, arguments = architecture(checkpoint.config)
    if layout_of(checkpoint) == "naflex":
        return timm_naflex.NAME, timm_naflex.naflex_arguments(checkpoint.config, arguments)
    if layout_of(checkpoint) == "relpos":
        return timm_relpos.NAME, timm_relpos.relpos_arguments(checkpoint.config, arguments)
    return name, arguments


def layout_of(checkpoint: Checkpoint) -> Layout:
    """The layout to write a model in: that of the file that the weights came from, as long as it holds the model."""
    config, layout = checkpoint.config, checkpoint.origin.dialect_of("timm").get("layout", "classic")
    if timm_relpos.can_hold(config):
        return "relpos"
    return "naflex" if layout == "naflex" and timm_naflex.can_hold(config) else "classic"


def _nearest_name(config: ViTConfig) -> str:
    """A name that stands for what no argument can say: classes of layers, and an epsilon."""
    if isinstance(config.stem, ResNetStem):
        if config.stem.blocks not in HYBRIDS or config.stem.width_factor != 1.0:
            raise WeightsError(
                f"timm has no hybrid with ResNet blocks {config.stem.blocks}; write a file instead of a folder."
            )
        return HYBRIDS[config.stem.blocks]
    if config.distilled:
        return "deit_base_distilled_patch16_224"
    if config.block.mlp == "swiglu":
        return {"packed": "vit_giant_patch14_dinov2", "split": "aimv2_large_patch14_224"}[mlp_of(config)]
    return "vit_base_patch16_clip_224" if config.block.norm_eps == 1e-5 else "vit_base_patch16_224"


def _square(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def hub_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The `config.json` of a folder that `timm.create_model("local-dir:FOLDER")` loads, and transformers too.

    The class names are on the top level, where both libraries look for them.
    """
    name, arguments = architecture_of(checkpoint)
    if checkpoint.preprocess.size != checkpoint.config.image_size and layout_of(checkpoint) == "classic":
        arguments["dynamic_img_size"] = True
    return {
        "architecture": name,
        "num_classes": last_width(checkpoint.config),
        **({} if checkpoint.classes is None else {"label_names": list(checkpoint.classes)}),
        "num_features": checkpoint.config.width,
        "global_pool": arguments["global_pool"],
        "model_args": arguments,
        "pretrained_cfg": write_data(checkpoint),
    }


def name_hint(config: ViTConfig, dialect: Mapping[str, str]) -> str | None:
    """The architecture to name for a file without a `config.json`, where its keys do not suffice."""
    return eva_architecture(config, dialect)[0] if is_eva(config) else None


def how_to_load(checkpoint: Checkpoint, path: Path) -> str:
    if not path.suffix:
        return f'timm.create_model("local-dir:{path}", pretrained=True)'
    try:
        name, arguments = architecture_of(checkpoint)
    except WeightsError:
        return f"model.load_state_dict(...) of {path} into the timm model it came from"
    stated = {**arguments, "num_classes": last_width(checkpoint.config)}
    if is_eva(checkpoint.config):
        changes = changes_of(name, stated)
    else:
        usual = {**named_arguments(name), "fc_norm": arguments["global_pool"] == "avg"}
        changes = {key: value for key, value in stated.items() if usual.get(key, stated) != value}
    shown = ", ".join(f"{key}={value!r}" for key, value in changes.items())
    return f'timm.create_model("{name}", checkpoint_path="{path}"{", " + shown if shown else ""})'

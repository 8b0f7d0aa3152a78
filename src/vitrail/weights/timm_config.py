"""Writing timm's `config.json`: the architecture by name and arguments; `timm_hub.py` reads it."""

from pathlib import Path
from typing import Any

from vitrail.errors import WeightsError
from vitrail.model import ResNetStem, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import exact_ratio
from vitrail.weights.timm_names import named_arguments
from vitrail.weights.timm_transform import write_data

# Blocks of a hybrid's ResNet → the architecture that timm registers for it.
HYBRIDS: dict[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def architecture(config: ViTConfig) -> tuple[str, dict[str, Any]]:
    """A name that timm registers and the arguments that turn it into this model."""
    name = "vit_base_patch16_224"
    arguments: dict[str, Any] = {"patch_size": _square(config.patch_size)}
    if isinstance(config.stem, ResNetStem):
        if config.stem.blocks not in HYBRIDS or config.stem.width_factor != 1.0:
            raise WeightsError(
                f"timm has no hybrid with ResNet blocks {config.stem.blocks}; write a file instead of a folder."
            )
        name, arguments = HYBRIDS[config.stem.blocks], {}
    arguments |= {
        "img_size": _square(config.image_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": exact_ratio(config.width, config.hidden_width),
        "qkv_bias": config.block.qkv_bias,
        "qk_norm": config.block.qk_norm,
        "init_values": config.block.layer_scale,
        "class_token": config.class_token,
        "reg_tokens": config.registers,
        "no_embed_class": config.positioned_prefix == 0,
        "pos_embed": "none" if config.positions.kind == "none" else "learn",
        "global_pool": {"cls": "token", "mean": "avg", "map": "map"}[config.pooling],
        "fc_norm": config.pool_norm == "after",
    }
    if config.block.mlp == "swiglu":  # the only names with it; both halves count
        name, arguments["mlp_ratio"] = "vit_giant_patch14_dinov2", exact_ratio(config.width, 2 * config.hidden_width)
    elif config.block.activation != "gelu":
        arguments["act_layer"] = config.block.activation
    return name, arguments


def _square(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def hub_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The `config.json` of a folder that `timm.create_model("local-dir:FOLDER")` loads."""
    name, arguments = architecture(checkpoint.config)
    if checkpoint.preprocess.size != checkpoint.config.image_size:
        arguments["dynamic_img_size"] = True
    return {
        "architecture": name,
        "num_classes": checkpoint.config.num_classes,
        "num_features": checkpoint.config.width,
        "global_pool": arguments["global_pool"],
        "model_args": arguments,
        "pretrained_cfg": write_data(checkpoint),
    }


def how_to_load(checkpoint: Checkpoint, path: Path) -> str:
    if not path.suffix:
        return f'timm.create_model("local-dir:{path}", pretrained=True)'
    try:
        name, arguments = architecture(checkpoint.config)
    except WeightsError:
        return f"model.load_state_dict(...) of {path} into the timm model it came from"
    changes = {**arguments, "num_classes": checkpoint.config.num_classes}
    usual = {**named_arguments(name), "fc_norm": arguments["global_pool"] == "avg"}
    shown = ", ".join(f"{key}={value!r}" for key, value in changes.items() if value != usual[key])
    return f'timm.create_model("{name}", checkpoint_path="{path}"{", " + shown if shown else ""})'

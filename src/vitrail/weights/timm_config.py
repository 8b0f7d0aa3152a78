"""timm's `config.json`: the architecture by name and arguments, the evaluation transform, the class names."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from vitrail.data.preprocess import Preprocess, preset
from vitrail.errors import WeightsError
from vitrail.model import ResNetStem, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import Hints, exact_ratio

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
                f"timm registers no hybrid with ResNet blocks {config.stem.blocks}; write a file instead."
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
    return name, arguments


def _square(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def hub_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The `config.json` of a folder that `timm.create_model("local-dir:FOLDER")` loads."""
    name, arguments = architecture(checkpoint.config)
    spec = checkpoint.preprocess
    data = {
        "input_size": [spec.channels, *spec.size],
        "mean": list(spec.mean),
        "std": list(spec.std),
        "interpolation": spec.interpolation,
        "crop_pct": spec.crop if spec.resize_to is None else spec.size[0] / spec.resize_to,
        "crop_mode": "squash" if spec.resize == "squash" else "center",
    }
    pretrained = {**data, "num_classes": checkpoint.config.num_classes, "label_names": checkpoint.classes}
    return {
        "architecture": name,
        "num_classes": checkpoint.config.num_classes,
        "num_features": checkpoint.config.width,
        "global_pool": arguments["global_pool"],
        "model_args": arguments,
        "pretrained_cfg": {key: value for key, value in pretrained.items() if value is not None},
    }


POOLINGS: dict[str, Any] = {"token": "cls", "avg": "mean", "map": "map"}
ACTIVATIONS: dict[str, Any] = {"gelu": "gelu", "gelu_tanh": "gelu_tanh"}


def told_hints(sidecars: Mapping[str, Any], hints: Hints) -> Hints:
    """What `config.json` says beyond the weights; what the user says goes before it."""
    facts: Any = sidecars.get("config.json")
    if not isinstance(facts, Mapping):
        return hints
    told = cast("Mapping[str, Any]", facts)
    arguments: Any = told.get("model_args")
    arguments = cast("Mapping[str, Any]", arguments) if isinstance(arguments, Mapping) else {}
    size: Any = arguments.get("img_size")
    size = (size, size) if isinstance(size, int) else tuple(cast("Any", size)) if isinstance(size, list) else None
    pooling = arguments.get("global_pool", told.get("global_pool"))
    return Hints(
        heads=hints.heads or arguments.get("num_heads"),
        image_size=hints.image_size or size,
        pooling=hints.pooling or POOLINGS.get(str(pooling)),
        activation=hints.activation or ACTIVATIONS.get(str(arguments.get("act_layer"))),
        norm_eps=hints.norm_eps,
    )


def _pretrained_cfg(sidecars: Mapping[str, Any]) -> Mapping[str, Any]:
    facts: Any = sidecars.get("config.json")
    told: Any = cast("Any", facts).get("pretrained_cfg") if isinstance(facts, Mapping) else None
    return cast("Mapping[str, Any]", told) if isinstance(told, Mapping) else {}


def read_preprocess(sidecars: Mapping[str, Any], config: ViTConfig) -> tuple[Preprocess, tuple[str, ...]]:
    """What `config.json` says, or timm's usual evaluation with a note that it was assumed."""
    spec = preset("timm", config.image_size, config.channels)
    told = _pretrained_cfg(sidecars)
    if not told:
        return spec, (
            "the file does not say its mean and std: assumed 0.5; DeiT, DINO and MAE weights need ImageNet's",
        )
    changes: dict[str, Any] = {}
    if len(told.get("mean") or ()) == len(told.get("std") or ()) == config.channels:
        changes |= {"mean": tuple(told["mean"]), "std": tuple(told["std"])}
    if told.get("interpolation") in ("nearest", "bilinear", "bicubic", "lanczos"):
        changes["interpolation"] = told["interpolation"]
    if told.get("crop_pct") is not None:
        changes["crop"] = float(told["crop_pct"])
    if told.get("crop_mode") == "squash":
        changes["resize"] = "squash"
    return replace(spec, **changes), ()


def read_classes(sidecars: Mapping[str, Any], config: ViTConfig) -> tuple[str, ...] | None:
    names: Any = _pretrained_cfg(sidecars).get("label_names")
    return tuple(map(str, names)) if isinstance(names, list) and len(cast("Any", names)) == config.num_classes else None


def how_to_load(checkpoint: Checkpoint, path: Path) -> str:
    if not path.suffix:
        return f'timm.create_model("local-dir:{path}", pretrained=True)'
    try:
        name, arguments = architecture(checkpoint.config)
    except WeightsError:
        return f"model.load_state_dict(...) of {path} into the timm model it came from"
    changes = {**arguments, "num_classes": checkpoint.config.num_classes}
    shown = ", ".join(f"{key}={value!r}" for key, value in changes.items() if value != DEFAULTS.get(key, object()))
    return f'timm.create_model("{name}", checkpoint_path="{path}"{", " + shown if shown else ""})'


# timm's ViT-B/16 at 224 pixels: what `how_to_load` need not mention.
DEFAULTS: dict[str, Any] = {
    **architecture(ViTConfig())[1],
    "num_classes": 1000,
}

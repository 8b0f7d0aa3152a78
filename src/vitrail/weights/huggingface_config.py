"""transformers' `config.json` and `preprocessor_config.json`, read and written."""

import math
from collections.abc import Mapping
from typing import Any, cast

from vitrail.data.preprocess import Preprocess, preset
from vitrail.errors import ConfigError, WeightsError
from vitrail.model import BlockConfig, PositionConfig, Rates, ViTConfig
from vitrail.model.config import Pair
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import Hints, Raw, exact_ratio, optional_size

# Name of an activation in transformers → ours; the first name of each of ours is the one that we write.
ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}
INTERPOLATIONS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}  # Pillow's numbers
DINOV2 = ("dinov2", "dinov2_with_registers")
DEFAULT_PATCH, DEFAULT_IMAGE, DEFAULT_EPS = 16, 224, {"vit": 1e-12, "dinov2": 1e-6, "dinov2_with_registers": 1e-6}


def is_dinov2(config: ViTConfig) -> bool:
    """Layer scale and registers are what transformers' DINOv2 has and its ViT has not."""
    return config.block.layer_scale is not None or config.registers > 0


def read_config(raw: Raw, facts: Mapping[str, Any], prefix: str, hints: Hints) -> ViTConfig:
    """Our config from theirs; sizes that the tensors show are taken from the tensors."""
    kind = facts.get("model_type")
    if kind not in ("vit", *DINOV2):
        raise WeightsError(f"{raw.path}: model_type must be vit, dinov2 or dinov2_with_registers; got {kind!r}.")
    if facts.get("use_swiglu_ffn"):
        raise WeightsError(
            f"{raw.path} has SwiGLU MLPs (DINOv2's ViT-g), which the paper's ViT has not; we cannot load it."
        )
    if kind in DINOV2 and "classifier.weight" in raw.tensors:
        raise WeightsError(
            f"{raw.path}: DINOv2's classifier reads [cls] and the mean patch side by side; load the backbone."
        )
    patch = _pair(facts.get("patch_size", DEFAULT_PATCH), "patch_size")
    image_size = hints.image_size or _pair(facts.get("image_size", DEFAULT_IMAGE), "image_size")
    activation = ACTIVATIONS.get(str(facts.get("hidden_act", "gelu")))
    if activation is None and hints.activation is None:
        raise WeightsError(
            f"{raw.path}: hidden_act must be one of {', '.join(ACTIVATIONS)}; got {facts['hidden_act']!r}."
        )
    width = _number(facts, "hidden_size", 768)
    mlp_width = int(width * facts.get("mlp_ratio", 4)) if kind in DINOV2 else _number(facts, "intermediate_size", 3072)
    if kind == "vit" and facts.get("pooler_act", "tanh") != "tanh":
        raise WeightsError(f"{raw.path}: the pooler's activation must be tanh; got {facts['pooler_act']!r}.")
    return ViTConfig(
        image_size=image_size,
        patch_size=patch,
        channels=_number(facts, "num_channels", 3),
        width=width,
        depth=_number(facts, "num_hidden_layers", 12),
        heads=hints.heads or _number(facts, "num_attention_heads", 12),
        mlp_width=mlp_width,
        num_classes=optional_size(raw, "classifier.weight") or 0,
        registers=_number(facts, "num_register_tokens", 4) if kind == DINOV2[1] else 0,
        pooling=hints.pooling or "cls",
        representation=optional_size(raw, f"{prefix}pooler.dense.weight"),
        block=BlockConfig(
            qkv_bias=bool(facts.get("qkv_bias", True)),
            norm_eps=hints.norm_eps or float(facts.get("layer_norm_eps", DEFAULT_EPS[kind])),
            activation=hints.activation or cast("Any", activation),
            attention_scale=hints.attention_scale,
            layer_scale=float(facts.get("layerscale_value", 1.0)) if kind in DINOV2 else None,
        ),
        positions=PositionConfig(resample="timm" if kind == DINOV2[1] else "hf"),  # that one antialiases
        rates=Rates(
            dropout=float(facts.get("hidden_dropout_prob", 0.0)),
            attention=float(facts.get("attention_probs_dropout_prob", 0.0)),
            path=float(facts.get("drop_path_rate", 0.0)),
        ),
    )


def _number(facts: Mapping[str, Any], name: str, default: int) -> int:
    value = facts.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise WeightsError(f"config.json: {name} must be a whole number; got {value!r}.")
    return value


def _pair(value: Any, name: str) -> Pair:
    sides: list[Any] = [value, value] if isinstance(value, int) else list(value) if isinstance(value, list) else []  # pyright: ignore
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise WeightsError(f"config.json: {name} must be one whole number or two; got {value!r}.")
    return sides[0], sides[1]


def model_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The `config.json` with which `from_pretrained` builds this model."""
    config, block = checkpoint.config, checkpoint.config.block
    facts: dict[str, Any] = {
        "attention_probs_dropout_prob": config.rates.attention,
        "hidden_act": next(name for name, ours in ACTIVATIONS.items() if ours == block.activation),
        "hidden_dropout_prob": config.rates.dropout,
        "hidden_size": config.width,
        "image_size": _square(config.image_size),
        "initializer_range": 0.02,
        "layer_norm_eps": block.norm_eps,
        "num_attention_heads": config.heads,
        "num_channels": config.channels,
        "num_hidden_layers": config.depth,
        "patch_size": _square(config.patch_size),
        "qkv_bias": block.qkv_bias,
    }
    if is_dinov2(config):
        registers = {"num_register_tokens": config.registers} if config.registers else {}
        kind, name = (DINOV2[1], "Dinov2WithRegistersModel") if config.registers else (DINOV2[0], "Dinov2Model")
        facts |= {
            "drop_path_rate": config.rates.path,
            "mlp_ratio": exact_ratio(config.width, config.hidden_width),
            "layerscale_value": block.layer_scale,
            "use_swiglu_ffn": False,
            **registers,
        }
        return {"architectures": [name], "model_type": kind, **facts}
    facts |= {"intermediate_size": config.hidden_width, "encoder_stride": config.patch_size[0]}
    if config.representation:
        facts |= {"pooler_output_size": config.representation, "pooler_act": "tanh"}
    if config.num_classes:
        names = checkpoint.classes or tuple(f"LABEL_{index}" for index in range(config.num_classes))
        facts |= {
            "id2label": {str(index): name for index, name in enumerate(names)},
            "label2id": {name: index for index, name in enumerate(names)},
        }
    architecture = "ViTForImageClassification" if config.num_classes else "ViTModel"
    return {"architectures": [architecture], "model_type": "vit", **facts}


def _square(size: Pair) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def read_classes(facts: Mapping[str, Any], config: ViTConfig) -> tuple[str, ...] | None:
    """The class names in the order of the head; the placeholders LABEL_0, LABEL_1, … are no names."""
    labels: Any = facts.get("id2label")
    if not config.num_classes or not isinstance(labels, Mapping):
        return None
    by_index = {str(index): str(name) for index, name in cast("Mapping[Any, Any]", labels).items()}
    names = [by_index.get(str(index)) for index in range(config.num_classes)]
    if None in names or len(by_index) != config.num_classes:
        raise WeightsError(
            f"config.json: id2label must name the classes 0 to {config.num_classes - 1}; got {len(by_index)}."
        )
    known = tuple(str(name) for name in names)
    return None if all(name == f"LABEL_{index}" for index, name in enumerate(known)) else known


def read_preprocess(sidecars: Mapping[str, Any], config: ViTConfig) -> Preprocess:
    """What `preprocessor_config.json` says, or the family's usual evaluation."""
    family = "dinov2" if is_dinov2(config) else "hf"
    told: Any = sidecars.get("preprocessor_config.json")
    if not isinstance(told, Mapping):
        return preset(family, config.image_size, config.channels)
    facts = cast("Mapping[str, Any]", told)
    try:
        return _parse_processor(facts, config)
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise WeightsError(f"preprocessor_config.json cannot be understood: {error}") from error


def _parse_processor(facts: Mapping[str, Any], config: ViTConfig) -> Preprocess:
    if not facts.get("do_resize", True):
        raise WeightsError("preprocessor_config.json must resize; do_resize is false, and models need one size.")
    numbers = {number: name for name, number in INTERPOLATIONS.items()}
    size: Any = facts.get("size", {"height": config.image_size[0], "width": config.image_size[1]})
    size = {"height": size, "width": size} if isinstance(size, int) else size  # written by early releases
    # Ours scales pixels to [0, 1] first; another factor (or none) moves into the mean and standard deviation.
    factor = 255 * (facts.get("rescale_factor", 1 / 255) if facts.get("do_rescale", True) else 1.0)
    mean, std = (
        tuple(value / factor for value in facts[name])
        if facts.get("do_normalize", True)
        else (default,) * config.channels
        for name, default in (("image_mean", 0.0), ("image_std", 1.0 / factor))
    )
    common: dict[str, Any] = {
        "channels": config.channels,
        "mean": mean,
        "std": std,
        "interpolation": numbers[facts.get("resample", 2)],
        "kernel": "pillow" if facts.get("resample", 2) == INTERPOLATIONS["lanczos"] else "bytes",
    }
    if "height" in size:
        return Preprocess(size=(size["height"], size["width"]), resize="squash", **common)
    if not facts.get("do_center_crop", True):
        raise WeightsError(
            "preprocessor_config.json must crop after resizing the shortest side, or give height and width."
        )
    crop: Any = facts.get("crop_size", size["shortest_edge"])
    crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
    return Preprocess(
        size=(crop["height"], crop["width"]),
        resize="shortest",
        resize_to=size["shortest_edge"],
        anchor="floor",
        **common,
    )


def processor_config(spec: Preprocess) -> dict[str, Any]:
    """The `preprocessor_config.json` of the transformers processor that does the same."""
    facts: dict[str, Any] = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(spec.mean),
        "image_std": list(spec.std),
        "resample": INTERPOLATIONS[spec.interpolation],
        "rescale_factor": 1 / 255,
    }
    height, width = spec.size
    if spec.resize == "squash":
        size = {"height": height, "width": width}
        return {"image_processor_type": "ViTImageProcessor", "size": size, **facts}
    edge = spec.resize_to or math.floor(min(spec.size) / spec.crop)
    facts |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}, "do_convert_rgb": True}
    return {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": edge}, **facts}

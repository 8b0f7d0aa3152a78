"""transformers' `config.json`, read and written; a closed world: each key is used, irrelevant, or refused by name."""

from collections.abc import Mapping
from typing import Any, cast

from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, Rates, ViTConfig
from vitrail.model.config import Pair
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import Hints, Raw

# Name of an activation in transformers → ours; the first name of each of ours is the one that we write.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
}
DINOV2 = ("dinov2", "dinov2_with_registers")
KINDS = ("vit", *DINOV2)
DEFAULT_PATCH = {"vit": 16, "dinov2": 14, "dinov2_with_registers": 16}
DEFAULT_EPS = {"vit": 1e-12, "dinov2": 1e-6, "dinov2_with_registers": 1e-6}
CLASSIFIER = "ViTForImageClassification"
ARCHITECTURES = {
    "vit": (CLASSIFIER, "ViTModel"),
    "dinov2": ("Dinov2Model",),
    "dinov2_with_registers": ("Dinov2WithRegistersModel",),
}

_COMMON = """
    model_type architectures hidden_size num_hidden_layers num_attention_heads head_dim hidden_act hidden_dropout_prob
    attention_probs_dropout_prob layer_norm_eps image_size patch_size num_channels qkv_bias id2label num_labels
    problem_type
"""
_DINOV2 = "mlp_ratio layerscale_value drop_path_rate use_swiglu_ffn"
USED = {
    "vit": frozenset(f"{_COMMON} intermediate_size pooler_output_size pooler_act".split()),
    "dinov2": frozenset(f"{_COMMON} {_DINOV2}".split()),
    "dinov2_with_registers": frozenset(f"{_COMMON} {_DINOV2} num_register_tokens".split()),
}
# What changes no number that a model of these kinds computes at inference: where the file comes from and how
# transformers handles it; …
_HANDLING = """
    _name_or_path name_or_path _commit_hash transformers_version torch_dtype dtype use_cache gradient_checkpointing
    _attn_implementation attn_implementation _attn_implementation_autoset torchscript return_dict use_return_dict
    output_attentions output_hidden_states output_scores return_dict_in_generate use_bfloat16 tf_legacy_loss
    chunk_size_feed_forward finetuning_task task_specific_params
"""
# … the inverse of id2label, first values of weights, the decoder of masked pictures, DINOv2 as a backbone; …
_ELSEWHERE = """
    label2id initializer_range encoder_stride use_mask_token apply_layernorm reshape_hidden_states stage_names
    out_features out_indices _out_features _out_indices
"""
# … and what every config of older releases says about generating text.
_TEXT = """
    tie_word_embeddings tie_encoder_decoder cross_attention_hidden_size max_length min_length do_sample early_stopping
    num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    tokenizer_class prefix bos_token_id pad_token_id eos_token_id sep_token_id decoder_start_token_id
"""
IRRELEVANT = frozenset(f"{_HANDLING} {_ELSEWHERE} {_TEXT}".split())
# What many files contain, and must have this value.
NEEDED: dict[str, Any] = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
}
NOT_SQUARE = "DINOv2 in transformers treats positions as those of a square, whatever the picture's shape"


def is_dinov2(config: ViTConfig) -> bool:
    """transformers' DINOv2 has layer scale and registers, and its ViT does not."""
    return config.block.layer_scale is not None or config.registers > 0


def kind_of(raw: Raw, facts: Mapping[str, Any]) -> str:
    """The family, once its config.json holds nothing that we do not know."""
    kind = facts.get("model_type")
    if kind not in KINDS:
        raise WeightsError(f"{raw.path}: model_type must be vit, dinov2 or dinov2_with_registers; got {kind!r}.")
    if kind in DINOV2 and "classifier.weight" in raw.tensors:
        raise WeightsError(
            f"{raw.path}: DINOv2's classifier reads [cls] and the mean patch side by side; load the backbone."
        )
    for key, value in facts.items():
        if value is None or key in USED[kind] or key in IRRELEVANT or value == NEEDED.get(key, _Nothing):
            continue
        if key in NEEDED:
            raise WeightsError(f"config.json: {key} must be {NEEDED[key]!r}; got {value!r}, which we cannot compute.")
        raise WeightsError(
            f"config.json has {key}, which a {kind} model does not have; remove it if it has no effect on the model."
        )
    _check_architectures(facts.get("architectures"), kind)
    return kind


class _Nothing:
    """Not equal to any value of a JSON file."""


def _check_architectures(names: Any, kind: str) -> None:
    listed = [] if names is None else cast("list[Any]", names) if isinstance(names, list) else [names]
    for name in listed:
        if str(name).removeprefix("TF").removeprefix("Flax") not in ARCHITECTURES[kind]:
            known = " or ".join(ARCHITECTURES[kind])
            raise WeightsError(f"config.json: architectures of a {kind} model must be {known}; got {name!r}.")


def read_config(raw: Raw, facts: Mapping[str, Any], prefix: str, hints: Hints) -> ViTConfig:
    """Our config from theirs; sizes that the tensors show are taken from the tensors."""
    kind = kind_of(raw, facts)
    facts = {key: value for key, value in facts.items() if value is not None}
    activation = ACTIVATIONS.get(str(facts.get("hidden_act", "gelu")))
    if activation is None and hints.activation is None:
        raise WeightsError(
            f"{raw.path}: hidden_act must be one of {', '.join(ACTIVATIONS)}; got {facts['hidden_act']!r}."
        )
    width, heads = _whole(facts, "hidden_size", 768), hints.heads or _whole(facts, "num_attention_heads", 12)
    if "head_dim" in facts and _whole(facts, "head_dim", 0) * heads != width:
        raise WeightsError(f"config.json: head_dim must be hidden_size / heads; got {facts['head_dim']!r}.")
    gated = kind in DINOV2 and _flag(facts, "use_swiglu_ffn", False)
    mlp_width = (
        hidden_width(width, _number(facts, "mlp_ratio", 4), gated)
        if kind in DINOV2
        else _whole(facts, "intermediate_size", 3072)
    )
    config = ViTConfig(
        image_size=hints.image_size or _pair(facts.get("image_size", 224), "image_size"),
        patch_size=_pair(facts.get("patch_size", DEFAULT_PATCH[kind]), "patch_size"),
        channels=_whole(facts, "num_channels", 3),
        width=width,
        depth=_whole(facts, "num_hidden_layers", 12),
        heads=heads,
        mlp_width=mlp_width,
        num_classes=raw.size("classifier.weight") or 0,
        registers=_whole(facts, "num_register_tokens", 4) if kind == DINOV2[1] else 0,
        pooling=hints.pooling or "cls",
        representation=raw.size(f"{prefix}pooler.dense.weight"),
        block=BlockConfig(
            qkv_bias=_flag(facts, "qkv_bias", True),
            norm_eps=hints.norm_eps or _number(facts, "layer_norm_eps", DEFAULT_EPS[kind]),
            activation=hints.activation or cast("Any", activation),
            attention_scale=hints.attention_scale,
            layer_scale=_number(facts, "layerscale_value", 1.0) if kind in DINOV2 else None,
            mlp="swiglu" if gated else "plain",
        ),
        positions=PositionConfig(resample="timm" if kind == DINOV2[1] else "hf"),  # that one antialiases
        rates=Rates(
            dropout=_number(facts, "hidden_dropout_prob", 0.0),
            attention=_number(facts, "attention_probs_dropout_prob", 0.0),
            path=_number(facts, "drop_path_rate", 0.0),
        ),
    )
    _check_head(raw, facts, config)
    if kind in DINOV2 and not is_square(config):
        raise WeightsError(f"{raw.path}: {NOT_SQUARE}, and image_size and patch_size are not those of a square.")
    return config


def hidden_width(width: int, ratio: float, gated: bool) -> int:
    """Features inside DINOv2's MLPs, as transformers computes them."""
    hidden = int(width * ratio)
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden


def mlp_ratio(width: int, hidden: int, gated: bool) -> int | None:
    """The whole number from which transformers computes the width of DINOv2's MLPs; None if there is none."""
    return next((ratio for ratio in range(1, 65) if hidden_width(width, ratio, gated) == hidden), None)


def is_square(config: ViTConfig) -> bool:
    return config.image_size[0] == config.image_size[1] and config.grid[0] == config.grid[1]


def _check_head(raw: Raw, facts: Mapping[str, Any], config: ViTConfig) -> None:
    """What config.json says about the classifier and the pooler must agree with the weights."""
    if config.num_classes and facts.get("num_labels", config.num_classes) != config.num_classes:
        raise WeightsError(
            f"config.json: num_labels is {facts['num_labels']!r}, but the classifier has {config.num_classes} rows."
        )
    if config.representation is None:
        return
    if facts.get("pooler_act", "tanh") != "tanh":
        raise WeightsError(f"{raw.path}: the pooler's activation must be tanh; got {facts['pooler_act']!r}.")
    size = facts.get("pooler_output_size") or config.width
    if size != config.representation:
        raise WeightsError(
            f"config.json: pooler_output_size is {size!r}, but the pooler has {config.representation} rows."
        )


def notes_of(facts: Mapping[str, Any], config: ViTConfig) -> tuple[str, ...]:
    """What transformers would do differently with the same logits, or with missing weights."""
    notes: list[str] = []
    if CLASSIFIER in (facts.get("architectures") or ()) and not config.num_classes:
        notes.append(f"config.json names {CLASSIFIER}, but the weights have no classifier, only features")
    problem = facts.get("problem_type")
    if config.num_classes and (problem not in (None, "single_label_classification") or config.num_classes == 1):
        notes.append(
            f"transformers treats these logits one by one ({problem or 'one class'}); here the probabilities of all "
            "classes add up to 1"
        )
    return tuple(notes)


def _whole(facts: Mapping[str, Any], name: str, default: int) -> int:
    value = facts.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise WeightsError(f"config.json: {name} must be a whole number; got {value!r}.")
    return value


def _number(facts: Mapping[str, Any], name: str, default: float) -> float:
    value = facts.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WeightsError(f"config.json: {name} must be a number; got {value!r}.")
    return float(value)


def _flag(facts: Mapping[str, Any], name: str, default: bool) -> bool:
    value = facts.get(name, default)
    if not isinstance(value, bool):
        raise WeightsError(f"config.json: {name} must be true or false; got {value!r}.")
    return value


def _pair(value: Any, name: str) -> Pair:
    sides: list[Any] = [value, value] if isinstance(value, int) else list(value) if isinstance(value, list) else []  # pyright: ignore
    if len(sides) != 2 or not all(isinstance(side, int) and not isinstance(side, bool) for side in sides):
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
            "mlp_ratio": mlp_ratio(config.width, config.hidden_width, block.mlp == "swiglu"),
            "layerscale_value": block.layer_scale,
            "use_swiglu_ffn": block.mlp == "swiglu",
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
    """The class names in the order of the head; the placeholders LABEL_0, LABEL_1, … do not count as names."""
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

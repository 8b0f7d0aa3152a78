"""transformers' `config.json`, read and written; a closed world: each key is used, irrelevant, or refused by name."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, cast

from vitrail.errors import WeightsError, shorten
from vitrail.model import BlockConfig, PositionConfig, Rates, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.sidecars import CONFIG, Settings

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
CLASSIFIER = "ViTForImageClassification"
ARCHITECTURES = {
    "vit": (CLASSIFIER, "ViTModel"),
    "dinov2": ("Dinov2Model",),
    "dinov2_with_registers": ("Dinov2WithRegistersModel",),
}

# Key → our field, the kind of its value, and transformers' default: one for all families, or for each.
Fields = dict[str, tuple[str, str, Any]]
COMMON: Fields = {
    "attention_probs_dropout_prob": ("rates.attention", "number", 0.0),
    "hidden_dropout_prob": ("rates.dropout", "number", 0.0),
    "hidden_size": ("width", "whole", 768),
    "image_size": ("image_size", "pair", 224),
    "layer_norm_eps": ("block.norm_eps", "number", {"vit": 1e-12, "dinov2": 1e-6, "dinov2_with_registers": 1e-6}),
    "num_attention_heads": ("heads", "whole", 12),
    "num_channels": ("channels", "whole", 3),
    "num_hidden_layers": ("depth", "whole", 12),
    "patch_size": ("patch_size", "pair", {"vit": 16, "dinov2": 14, "dinov2_with_registers": 16}),
    "qkv_bias": ("block.qkv_bias", "flag", True),
}
_DINOV2: Fields = {
    **COMMON,
    "drop_path_rate": ("rates.path", "number", 0.0),
    "layerscale_value": ("block.layer_scale", "number", 1.0),
}
FIELDS: dict[str, Fields] = {
    "vit": {**COMMON, "intermediate_size": ("mlp_width", "whole", 3072)},
    "dinov2": _DINOV2,
    "dinov2_with_registers": {**_DINOV2, "num_register_tokens": ("registers", "whole", 4)},
}
# The keys that are used otherwise.
_OTHERS = "model_type architectures head_dim hidden_act id2label num_labels problem_type"
OTHERS = {
    "vit": frozenset(f"{_OTHERS} pooler_output_size pooler_act".split()),
    **dict.fromkeys(DINOV2, frozenset(f"{_OTHERS} mlp_ratio use_swiglu_ffn".split())),
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
REQUIRED: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
}
NOT_SQUARE = "DINOv2 in transformers treats positions as those of a square, whatever the picture's shape"


def kind_for(config: ViTConfig) -> str:
    """The family of a model: transformers' DINOv2 has layer scale and registers, and its ViT does not."""
    if config.registers:
        return "dinov2_with_registers"
    return "vit" if config.block.layer_scale is None else "dinov2"


def is_dinov2(config: ViTConfig) -> bool:
    return kind_for(config) in DINOV2


def kind_of(raw: Raw, settings: Settings) -> str:
    """The family, once its config.json holds nothing that we do not know."""
    kind = settings.get("model_type")
    if kind not in KINDS:
        raise WeightsError(f"{raw.path}: model_type must be vit, dinov2 or dinov2_with_registers; got {shorten(kind)}.")
    settings.refuse_unknown(FIELDS[kind].keys() | OTHERS[kind] | IRRELEVANT, REQUIRED, f"a {kind} model does not have")
    names = settings.get("architectures") or []
    for name in cast("list[Any]", names) if isinstance(names, list) else [names]:
        if str(name).removeprefix("TF").removeprefix("Flax") not in ARCHITECTURES[kind]:
            known = " or ".join(ARCHITECTURES[kind])
            raise WeightsError(f"config.json: architectures of a {kind} model must be {known}; got {shorten(name)}.")
    return kind


def read_config(raw: Raw, values: Mapping[str, Any], prefix: str, hints: Hints) -> ViTConfig:
    """Our config from theirs; sizes that the tensors show are taken from the tensors."""
    kind = kind_of(raw, Settings(CONFIG, values))
    settings = Settings(CONFIG, {key: value for key, value in values.items() if value is not None})
    parts: dict[str, dict[str, Any]] = {"": {}, "block": {}, "rates": {}}
    for key, (path, sort, default) in FIELDS[kind].items():
        part, _, field = path.rpartition(".")
        usual = default[kind] if isinstance(default, dict) else default
        parts[part][field] = getattr(settings, sort)(key, usual)
    sizes, block = parts[""], parts["block"]
    activation = hints.activation or ACTIVATIONS.get(str(settings.get("hidden_act", "gelu")))
    if activation is None:
        raise WeightsError(
            f"{raw.path}: hidden_act must be one of {', '.join(ACTIVATIONS)}; got {shorten(settings['hidden_act'])}."
        )
    if kind in DINOV2:
        gated = settings.flag("use_swiglu_ffn", False)
        sizes["mlp_width"] = hidden_width(sizes["width"], settings.number("mlp_ratio", 4), gated)
        block["mlp"] = "swiglu" if gated else "plain"
    sizes["heads"], sizes["image_size"] = hints.heads or sizes["heads"], hints.image_size or sizes["image_size"]
    if "head_dim" in settings and settings.whole("head_dim") * sizes["heads"] != sizes["width"]:
        raise WeightsError(f"config.json: head_dim must be hidden_size / heads; got {shorten(settings['head_dim'])}.")
    config = ViTConfig(
        **sizes,
        num_classes=raw.size("classifier.weight") or 0,
        pooling=hints.pooling or "cls",
        representation=raw.size(f"{prefix}pooler.dense.weight"),
        block=hints.override(BlockConfig(**block, activation=cast("Any", activation))),
        positions=PositionConfig(resample="timm" if kind == DINOV2[1] else "hf"),  # that one antialiases
        rates=Rates(**parts["rates"]),
    )
    _check_head(raw, settings, config)
    return config


def check_dinov2(raw: Raw, config: ViTConfig) -> None:
    """Raise for what transformers' DINOv2 computes in its own way."""
    if is_dinov2(config) and config.num_classes:
        raise WeightsError(
            f"{raw.path}: DINOv2's classifier reads [cls] and the mean patch side by side; load the backbone."
        )
    if is_dinov2(config) and not is_square(config):
        raise WeightsError(f"{raw.path}: {NOT_SQUARE}, and image_size and patch_size are not those of a square.")


def hidden_width(width: int, ratio: float, gated: bool) -> int:
    """Features inside DINOv2's MLPs, as transformers computes them."""
    hidden = int(width * ratio)
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden


def mlp_ratio(width: int, hidden: int, gated: bool) -> int | None:
    """The whole number from which transformers computes the width of DINOv2's MLPs; None if there is none."""
    return next((ratio for ratio in range(1, 65) if hidden_width(width, ratio, gated) == hidden), None)


def is_square(config: ViTConfig) -> bool:
    return config.image_size[0] == config.image_size[1] and config.grid[0] == config.grid[1]


def _check_head(raw: Raw, settings: Mapping[str, Any], config: ViTConfig) -> None:
    """What config.json says about the classifier and the pooler must agree with the weights."""
    if config.num_classes and settings.get("num_labels", config.num_classes) != config.num_classes:
        raise WeightsError(
            f"config.json: num_labels is {settings['num_labels']!r}, but the classifier has {config.num_classes} rows."
        )
    if config.representation is None:
        return
    if settings.get("pooler_act", "tanh") != "tanh":
        raise WeightsError(f"{raw.path}: the pooler's activation must be tanh; got {shorten(settings['pooler_act'])}.")
    size = settings.get("pooler_output_size") or config.width
    if size != config.representation:
        raise WeightsError(
            f"config.json: pooler_output_size is {size!r}, but the pooler has {config.representation} rows."
        )


def notes_of(settings: Mapping[str, Any], config: ViTConfig) -> tuple[str, ...]:
    """What transformers would do differently with the same logits, or with missing weights."""
    notes: list[str] = []
    if CLASSIFIER in (settings.get("architectures") or ()) and not config.num_classes:
        notes.append(f"config.json names {CLASSIFIER}, but the weights have no classifier, only features")
    problem = settings.get("problem_type")
    if config.num_classes and (problem not in (None, "single_label_classification") or config.num_classes == 1):
        notes.append(
            f"transformers treats these logits one by one ({problem or 'one class'}); here the probabilities of all "
            "classes add up to 1"
        )
    return tuple(notes)


def model_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The `config.json` with which `from_pretrained` builds this model."""
    config, kind = checkpoint.config, kind_for(checkpoint.config)
    values: dict[str, Any] = {
        key: _plain(attrgetter(path)(config)) for key, (path, _, _) in FIELDS[kind].items() if path != "mlp_width"
    }
    values |= {
        "hidden_act": next(name for name, ours in ACTIVATIONS.items() if ours == config.block.activation),
        "initializer_range": 0.02,
    }
    if kind in DINOV2:
        gated = config.block.mlp == "swiglu"
        values |= {"mlp_ratio": mlp_ratio(config.width, config.hidden_width, gated), "use_swiglu_ffn": gated}
        return {"architectures": [ARCHITECTURES[kind][0]], "model_type": kind, **values}
    values |= {"intermediate_size": config.hidden_width, "encoder_stride": config.patch_size[0]}
    if config.representation:
        values |= {"pooler_output_size": config.representation, "pooler_act": "tanh"}
    if config.num_classes:
        names = checkpoint.classes or tuple(f"LABEL_{index}" for index in range(config.num_classes))
        values |= {
            "id2label": {str(index): name for index, name in enumerate(names)},
            "label2id": {name: index for index, name in enumerate(names)},
        }
    architecture = ARCHITECTURES[kind][0 if config.num_classes else 1]
    return {"architectures": [architecture], "model_type": kind, **values}


def _plain(value: Any) -> Any:
    """A pair as one number where both are equal."""
    pair = isinstance(value, tuple)
    return value[0] if pair and value[0] == value[1] else list(cast("Any", value)) if pair else value


def read_classes(settings: Mapping[str, Any], config: ViTConfig) -> tuple[str, ...] | None:
    """The class names in the order of the head; the placeholders LABEL_0, LABEL_1, … do not count as names."""
    labels: Any = settings.get("id2label")
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

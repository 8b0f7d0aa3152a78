"""transformers' families, and their `config.json`, read and written.

A closed world: each key is used, irrelevant, or refused by name. A new family is one value in `FAMILIES`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from vitrail.errors import WeightsError, shorten
from vitrail.model import ViTConfig
from vitrail.model.parts import Pair
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign.huggingface_beit import BEIT, DATA2VEC
from vitrail.weights.foreign.huggingface_dino import DINOV2, DINOV2_WITH_REGISTERS, DINOV3
from vitrail.weights.foreign.huggingface_family import Family, Model, Values, build_config, is_square, values_of
from vitrail.weights.foreign.huggingface_towers import AIMV2, CLIP, METACLIP, SIGLIP, SIGLIP2
from vitrail.weights.foreign.huggingface_vit import DEIT, IJEPA, MAE, MSN, VIT
from vitrail.weights.formats import SIZES, walk
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.sidecars import CONFIG, Settings

# In this order they are tried for a model that several can hold, and for a file without `config.json`.
FAMILIES = (
    VIT,
    DINOV2_WITH_REGISTERS,
    DINOV2,
    DINOV3,
    DEIT,
    CLIP,
    METACLIP,
    SIGLIP,
    SIGLIP2,
    AIMV2,
    BEIT,
    DATA2VEC,
    MAE,
    MSN,
    IJEPA,
)


def family_for(config: ViTConfig, kind: str = "") -> Family:
    """The family that holds such a model: of this kind if it can, else the first that can, or the nearest.

    Where several are as near, it is one that holds more of what sets the model apart, and that resamples positions with
    the model's own kernel.
    """
    fields = walk(config, type(config)())
    special = {path: value for path, value, plain in fields if value != plain and path not in SIZES}

    def distance(family: Family) -> tuple[int, bool, int, bool]:
        holds = family.holding()
        held = sum(path in holds and not holds[path](value, config) for path, value in special.items())
        kernel = family.fixed.get("positions.resample", config.positions.resample)
        return len(family.refusals(config)), family.kind != kind, -held, kernel != config.positions.resample

    return min(FAMILIES, key=distance)


# Name of an activation in transformers → ours; the first name of each of ours is the one that we write.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
# The keys that are used otherwise: what is in the file, and what a classifier says about its classes.
LABELS = frozenset(["id2label", "num_labels", "problem_type"])
USED = frozenset(["model_type", "architectures", "head_dim", "hidden_act"])
# What changes no number that a model of these kinds computes at inference: where the file comes from and how
# transformers handles it; …
_HANDLING = """
    _name_or_path name_or_path _commit_hash transformers_version torch_dtype dtype use_cache gradient_checkpointing
    _attn_implementation attn_implementation _attn_implementation_autoset torchscript return_dict use_return_dict
    output_attentions output_hidden_states output_scores return_dict_in_generate use_bfloat16 tf_legacy_loss
    chunk_size_feed_forward finetuning_task task_specific_params
"""
# … the inverse of id2label, first values of weights, the decoder of masked pictures, models as backbones; …
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
# A config.json of two towers has those of both in it; of the text tower's, nothing is used.
VISION, OLD_VISION = "vision_config", "vision_config_dict"
AROUND = frozenset(
    f"{VISION} {OLD_VISION} text_config text_config_dict projection_dim logit_scale_init_value max_logit_scale "
    "initializer_factor".split()
)
# What many files contain, and must have this value.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
}


def family_of(where: Path, values: Mapping[str, Any]) -> Family:
    """The family that a `config.json` names, once nothing in it is unknown."""
    kind = values.get("model_type")
    for family in FAMILIES:
        if kind and kind in (family.kind, family.tower):
            _refuse_unknown(family, values)
            return family
    kinds = ", ".join(kind for family in FAMILIES for kind in (family.kind, family.tower) if kind)
    raise WeightsError(f"{where}: model_type must be one of {kinds}; got {shorten(kind)}.")


def class_of(where: Path, values: Mapping[str, Any], config: ViTConfig) -> Model:
    """The class that a `config.json` names, or the one of its family that such a model is."""
    family = family_of(where, values)
    fitting = [model for model in family.models if not list(model.misfits(config))]
    named = [model for model in fitting if model.name in (values.get("architectures") or ())]
    return (named or fitting or [family.model_for(config)])[0]


def _refuse_unknown(family: Family, values: Mapping[str, Any]) -> None:
    own = family.fields.keys() | family.words | family.irrelevant | USED | LABELS | IRRELEVANT
    whose = f"a {family.kind} model does not have"
    if values["model_type"] == family.tower:
        around = Settings(CONFIG, values)
        around.refuse_unknown(AROUND | LABELS | USED | IRRELEVANT, REQUIRED, f"a {family.tower} model does not have")
    Settings(CONFIG, backbone_settings(family, values)).refuse_unknown(own, REQUIRED, whose)
    names = values.get("architectures") or []
    known = dict.fromkeys(model.name for model in family.models)
    for name in cast("list[Any]", names) if isinstance(names, list) else [names]:
        if str(name).removeprefix("TF").removeprefix("Flax") not in known:
            classes = " or ".join(known)
            raise WeightsError(
                f"config.json: architectures of a {family.kind} model must be {classes}; got {shorten(name)}. "
                f"{family.unread}".rstrip()
            )


def backbone_settings(family: Family, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is said about the backbone: everything, or the part for the vision tower."""
    if values.get("model_type") != family.tower:
        return values
    part = values.get(OLD_VISION) or values.get(VISION) or {}  # transformers prefers the old one if it is there
    if not isinstance(part, Mapping):
        raise WeightsError(f"config.json: {VISION} must be an object; got {shorten(part)}.")
    named = part.get("model_type", family.kind)
    if named != family.kind:
        raise WeightsError(f"config.json: the model_type of {VISION} must be {family.kind}; got {shorten(named)}.")
    return cast("Mapping[str, Any]", part)


def read_config(raw: Raw, family: Family, model: Model, values: Mapping[str, Any], hints: Hints) -> ViTConfig:
    """Our config from theirs; sizes that the tensors show are taken from the tensors."""
    stated = backbone_settings(family, values)
    settings = Settings(CONFIG, {key: value for key, value in stated.items() if value is not None})
    found: Values = {**family.fixed, **model.fields}
    for key, (path, sort, default) in family.fields.items():
        found[path] = getattr(settings, sort)(key, default)
    family.read(settings, found)
    found |= _activation(raw, settings.get("hidden_act", family.activation), found.get("block.mlp") == "swiglu")
    found |= shown_by(raw, model)
    found |= {name: getattr(hints, name) for name in ("heads", "image_size", "pooling") if getattr(hints, name)}
    found |= {
        f"block.{name}": getattr(hints, name)
        for name in ("activation", "norm_eps", "attention_scale")
        if getattr(hints, name) is not None
    }
    found["image_size"] = whole_patches(found["image_size"], found["patch_size"])
    if "head_dim" in settings and settings.whole("head_dim") * found["heads"] != found["width"]:
        raise WeightsError(f"config.json: head_dim must be hidden_size / heads; got {shorten(settings['head_dim'])}.")
    config = build_config(found)
    _check_head(raw, values, settings, config, model)
    return config


def whole_patches(image_size: int | Pair, patch_size: int | Pair) -> Pair:
    """The part of a picture that its patches fill, from the top left: transformers ignores the rest."""
    sides, patches = ((size, size) if isinstance(size, int) else size for size in (image_size, patch_size))
    height, width = (
        side if side < patch else side // patch * patch for side, patch in zip(sides, patches, strict=True)
    )
    return height, width


def picture_size(family: Family, values: Mapping[str, Any], config: ViTConfig) -> Pair:
    """The size of the pictures that a `config.json` asks for, of which the patches may fill only a part."""
    stated = Settings(CONFIG, backbone_settings(family, values))
    if "image_size" not in family.fields:
        return config.image_size
    _, _, usual = family.fields["image_size"]
    size = stated.pair("image_size", usual) if stated.get("image_size") is not None else (usual, usual)
    return size if whole_patches(size, config.patch_size) == config.image_size else config.image_size


def _activation(raw: Raw, named: Any, gated: bool) -> Values:
    """The GELU; gated MLPs have none, and may say so."""
    if gated and named == "silu":
        return {}
    if not isinstance(named, str) or named not in ACTIVATIONS:
        raise WeightsError(f"{raw.path}: hidden_act must be one of {', '.join(ACTIVATIONS)}; got {shorten(named)}.")
    return {"block.activation": ACTIVATIONS[named]}


def shown_by(raw: Raw, model: Model) -> Values:
    """The sizes of the layers around the backbone, which the tensors show."""
    outer = {ours: raw.size(f"{theirs}.weight") for ours, theirs in model.outer.items()}
    found: Values = {"num_classes": outer.get("head") or 0, "projection": outer.get("projection")}
    pooler = next((name for name in raw.tensors if model.pooler and name.endswith(f"{model.pooler}.weight")), "")
    return {**found, "representation": raw.size(pooler) if pooler else None}


def check_square(raw: Raw, family: Family, config: ViTConfig) -> None:
    """Raise for a shape of pictures that transformers treats in its own way."""
    if "image_size" in family.holds and not is_square(config):
        reason = family.holds["image_size"](config.image_size, config)
        raise WeightsError(f"{raw.path}: {reason}, and image_size and patch_size are not those of a square.")


def _check_head(
    raw: Raw, values: Mapping[str, Any], settings: Mapping[str, Any], config: ViTConfig, model: Model
) -> None:
    """What config.json says about the classifier, the pooler and the projection must agree with the weights."""
    labels = values.get("num_labels")
    if config.num_classes and labels not in (None, config.num_classes):
        raise WeightsError(f"config.json: num_labels is {labels!r}, but the classifier has {config.num_classes} rows.")
    projection = (values if model.nested else settings).get("projection_dim", 512)
    if config.projection not in (None, projection):
        raise WeightsError(
            f"config.json: projection_dim is {projection!r}, but the projection has {config.projection} rows."
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
    named = [str(name) for name in cast("list[Any]", settings.get("architectures") or ())]
    if not config.num_classes and (heads := [name for name in named if "ForImageClassification" in name]):
        notes.append(f"config.json names {heads[0]}, but the weights have no classifier, only features")
    problem = settings.get("problem_type")
    if config.num_classes and (problem not in (None, "single_label_classification") or config.num_classes == 1):
        notes.append(
            f"transformers treats these logits one by one ({problem or 'one class'}); here the probabilities of all "
            "classes add up to 1"
        )
    return tuple(notes)


def model_config(checkpoint: Checkpoint, family: Family) -> dict[str, Any]:
    """The `config.json` with which `from_pretrained` builds this model."""
    config, model = checkpoint.config, family.model_for(checkpoint.config)
    values = {
        **values_of(config, family.fields),
        "hidden_act": next(name for name, ours in ACTIVATIONS.items() if ours == config.block.activation),
        "initializer_range": 0.02,
        **family.write(config, checkpoint.extras),
    }
    if "image_size" in values and checkpoint.preprocess.anchor == "corner":
        height, width = checkpoint.preprocess.resized(*config.image_size)
        values["image_size"] = height if height == width else [height, width]
    labels: dict[str, Any] = {}
    if config.num_classes:
        names = checkpoint.classes or tuple(f"LABEL_{index}" for index in range(config.num_classes))
        labels = {
            "id2label": {str(index): name for index, name in enumerate(names)},
            "label2id": {name: index for index, name in enumerate(names)},
        }
    named = {"architectures": [model.name]}
    if model.nested:
        return {**named, "model_type": family.tower, VISION: {"model_type": family.kind, **values}, **labels}
    return {**named, "model_type": family.kind, **values, **labels}


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

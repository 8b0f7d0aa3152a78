"""timm's `config.json`, read: an architecture, the arguments that differ from it, and its data.

It is a closed world: every key and every value is used, listed here as irrelevant, or refused by name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal, cast

from vitrail.errors import WeightsError, list_names, shorten
from vitrail.model import ResNetStem, ViTConfig
from vitrail.model.parts import RelativeBias
from vitrail.weights.foreign import timm_naflex, timm_relpos
from vitrail.weights.foreign.timm_eva_config import whole_patches
from vitrail.weights.foreign.timm_names import (
    DEFAULTS,
    FIXED,
    LOOKALIKES,
    NAMES,
    NORMS,
    OTHERS,
    PLAIN,
    QUICK_GELU,
    Norm,
    named_arguments,
)
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.keys import Form
from vitrail.weights.sidecars import CONFIG, Settings

# Top-level keys that do not affect what is computed; those of transformers' TimmWrapper among them.
_IRRELEVANT = """
    architectures chunk_size_feed_forward do_pooling dtype initializer_range is_encoder_decoder label_descriptions
    output_attentions output_hidden_states problem_type return_dict torch_dtype transformers_version _name_or_path
"""
_USED = "architecture model_type num_classes num_features global_pool label_names model_args pretrained_cfg"
KNOWN = frozenset(f"{_USED} {_IRRELEVANT}".split())
# Arguments that matter in training only.
_TRAINING = """
    drop_rate pos_drop_rate patch_drop_rate proj_drop_rate attn_drop_rate drop_path_rate weight_init fix_init
"""
TRAINING = frozenset(_TRAINING.split())
# Argument → our field with the same value.
FIELDS = {
    "in_chans": "channels",
    "embed_dim": "width",
    "depth": "depth",
    "num_heads": "heads",
    "qkv_bias": "block.qkv_bias",
    "qk_norm": "block.qk_norm",
    "class_token": "class_token",
}
# The same for arguments that timm had not always; they are written only if the name does not stand for them.
NEW_FIELDS = {
    "pre_norm": "pre_norm",
    "scale_attn_norm": "block.attention_norm",
    "scale_mlp_norm": "block.mlp_norm",
    "proj_bias": "block.proj_bias",
    "pool_include_prefix": "pool_prefix",
}
Layout = Literal["classic", "naflex", "relpos"]  # timm's classes whose names and arguments differ
UNSEEN = ("num_heads", "pool_include_prefix")  # which no key shows
POOLINGS: dict[Any, Literal["cls", "mean", "map"]] = {"token": "cls", "avg": "mean", "map": "map"}
Gelu = Literal["gelu", "gelu_tanh", "quick_gelu"]
GELUS: dict[Any, Gelu] = {None: "gelu", "gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}


@dataclass(frozen=True, kw_only=True)
class HubConfig:
    """What a `config.json` says."""

    architecture: str
    arguments: Settings  # timm's defaults, changed by the name, the data and `model_args`, in this order
    data: Mapping[str, Any]  # `pretrained_cfg`: the evaluation transform and the classes
    global_pool: Any  # at the top level; timm builds the model without it
    num_features: Any

    def settle_hints(self, hints: Hints) -> Hints:
        """Everything that the keys do not reveal; the user's hints take precedence."""
        return Hints(
            heads=hints.heads or self.arguments.whole("num_heads"),
            image_size=hints.image_size or whole_patches(self.arguments),
            patch_size=hints.patch_size or self.arguments.pair("patch_size"),
            pooling=hints.pooling or self.pooling(),
            activation=hints.activation or self.activation(),
            norm_eps=hints.norm_eps or self.norm()[1],
            attention_scale=hints.attention_scale,
        )

    def pooling(self) -> Literal["cls", "mean", "map"]:
        kind = self.arguments["global_pool"]
        if self.global_pool not in (None, kind):
            raise WeightsError(
                f"config.json says global_pool {self.global_pool!r}, but timm builds {self.architecture} with {kind!r} "
                "from it; pass pooling to choose one."
            )
        return self.arguments.choice("global_pool", POOLINGS)

    def activation(self) -> Gelu | None:
        choices = GELUS if self.arguments["mlp"] == "plain" else {"silu": None}  # SwiGLU has no GELU
        return self.arguments.choice("act_layer", choices)

    def norm(self, argument: str = "norm_layer") -> Norm:
        value: Any = self.arguments[argument] or ""
        if not isinstance(value, str | tuple) or value not in NORMS:
            raise WeightsError(f"config.json says {argument}={shorten(value)}, which our model does not compute.")
        return NORMS[cast("Any", value)]

    def trained_otherwise(self, hints: Hints) -> tuple[str, ...]:
        """The note on weights whose name in timm computes another GELU than they were trained with."""
        name, _, tag = self.architecture.partition(".")
        tag = tag or str(self.data.get("tag"))
        if hints.activation is not None or tag not in QUICK_GELU.get(name, ()) or self.activation() != "gelu":
            return ()
        return (
            f"{name}.{tag} was trained with quick_gelu, but timm computes gelu under this name: assumed gelu, as timm; "
            '`activation="quick_gelu"` changes that',
        )

    def check(self, config: ViTConfig) -> None:
        """Raise unless the weights fit the model that it describes."""
        arguments, block = self.arguments, config.block
        pairs: list[tuple[str, Any, Any]] = []
        for name, path in (FIELDS | NEW_FIELDS).items():
            actual: Any = attrgetter(path)(config)
            stated = bool(arguments[name]) if isinstance(actual, bool) else arguments.whole(name)
            pairs += [(name, stated, actual)] if name not in UNSEEN else []
        rows = config.projection or config.num_classes
        hidden = (2 if arguments["mlp"] == "packed" else 1) * config.hidden_width
        pairs += [
            ("reg_tokens", arguments.whole("reg_tokens"), config.registers - config.distilled),
            ("distillation token", arguments["distilled"], config.distilled),
            ("patch_size", arguments.pair("patch_size"), config.patch_size),
            ("num_classes", arguments["num_classes"], rows),
            ("num_classes", self.data["num_classes"], rows),
            ("MLP width (embed_dim × mlp_ratio)", int(arguments["embed_dim"] * arguments["mlp_ratio"]), hidden),
            ("kind of MLP", arguments["mlp"], mlp_of(config)),
            ("kind of norms", self.norm()[0], block.norm),
            ("norm of the patches (embed_norm_layer)", bool(arguments["embed_norm_layer"]), config.patch_norm),
            ("bias of the patches (no pre_norm)", not arguments["pre_norm"], config.patch_bias),
            ("init_values (layer scale)", bool(arguments["init_values"]), block.layer_scale is not None),
            ("representation layer (pre_logits)", None, config.representation),
            ("pos_embed", arguments["pos_embed"] == "learn", config.positions.kind == "learned"),
            ("last norm (final_norm, fc_norm)", _last_norm(arguments), config.pool_norm),
            ("shared_rel_pos", arguments["shared_rel_pos"], config.relative == RelativeBias(shared=True)),
            ("ResNet blocks", arguments["resnet"], config.stem.blocks if isinstance(config.stem, ResNetStem) else None),
            ("num_features", config.width if self.num_features is None else self.num_features, config.width),
        ]
        if config.patch_norm and self.norm("embed_norm_layer") != self.norm():
            raise WeightsError(
                "config.json says another norm_layer than embed_norm_layer; all our norms are of one kind."
            )
        if config.positions.kind == "learned":
            covered = 0 if arguments["no_embed_class"] else config.prefix
            pairs.append(("positions of prefix tokens (no_embed_class)", covered, config.positioned_prefix))
        for name, stated, actual in pairs:
            if stated != actual:
                raise WeightsError(
                    f"the weights do not fit their config.json ({self.architecture}): {name} is {_show(stated)} "
                    f"there and {_show(actual)} in the weights."
                )


def other_names(config: ViTConfig, hints: Hints, layout: Layout) -> str:
    """The names in timm whose models have the keys of this one but compute something else, with what; "" if none do.

    What the user passed as a hint is settled, and counts as no difference.
    """
    different: list[str] = []
    for name, arguments in {**NAMES, **LOOKALIKES}.items():
        stated = Settings(CONFIG, {**PLAIN, **arguments})
        if stated["layout"] != layout:
            continue
        stated |= {"num_classes": config.num_classes, "in_chans": config.channels}
        hub = HubConfig(architecture=name, arguments=stated, data=stated, global_pool=None, num_features=None)
        try:
            hub.check(config)
        except WeightsError:
            continue
        ours = {"heads": config.heads, "pooling": config.pooling, "activation": config.block.activation}
        theirs = {"heads": stated["num_heads"], "pooling": hub.pooling(), "activation": hub.activation()}
        ours["pool_prefix"], theirs["pool_prefix"] = config.pool_prefix, stated["pool_include_prefix"]
        ours["resample"], theirs["resample"] = config.positions.resample, stated["resample"]
        traits = [
            f"{fact} {theirs[fact]}"
            for fact in ours
            if getattr(hints, fact, None) is None and theirs[fact] not in (None, ours[fact])
        ]
        traits += [OTHERS[name]] if name in LOOKALIKES else []
        different += [f"{name} ({', '.join(traits)})"] if traits else []
    return ", ".join(different)


def _last_norm(arguments: Mapping[str, Any]) -> Literal["before", "after", "none"]:
    """Where the last norm is: before the pooling, or after it."""
    if not arguments["final_norm"]:
        return "none"
    pooled = arguments["global_pool"] in ("avg", "avgmax", "max")
    after = pooled if arguments["fc_norm"] is None else bool(arguments["fc_norm"])
    if after and arguments["global_pool"] == "token":
        raise WeightsError("config.json says fc_norm with global_pool 'token'; we read fc_norm with 'avg' and 'map'.")
    return "after" if after else "before"


def mlp_of(config: ViTConfig) -> Literal["plain", "packed", "split"]:
    """How timm has the matrices of a model's MLPs: AIMv2 keeps both halves of a gated one apart."""
    if config.block.mlp == "plain":
        return "plain"
    return "split" if config.block.norm == "rms" and not config.block.proj_bias else "packed"


# CLIP's projection is a head whose bias is zero.
HEAD = ("head.weight", "head.bias")
PROJECTION = Form(lambda theirs: theirs[0], lambda ours: (ours, ours.new_zeros(len(ours))))


def projects(raw: Raw, data: Mapping[str, Any] | None) -> bool:
    """Whether what timm calls the head is CLIP's projection: without a bias, and without names of classes."""
    bias = raw.tensors.get("head.bias")
    named = data is not None and data.get("label_names")
    return "norm_pre.weight" in raw.tensors and bias is not None and not named and not bias.any()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a `config.json` holds, before its architecture is looked up."""

    architecture: str
    model_args: Mapping[str, Any]
    data: Mapping[str, Any]  # `pretrained_cfg`
    global_pool: Any
    num_features: Any

    @property
    def arguments(self) -> dict[str, Any]:
        """What changes the arguments of the name."""
        return {**_from_data(self.data), **self.model_args}


def read_facts(sidecars: Mapping[str, Any]) -> Facts | None:
    """The `config.json` beside the weights, where there is one."""
    facts = sidecars.get(CONFIG)
    if facts is None:
        return None
    if not isinstance(facts.get("architecture"), str) or facts.get("model_type", "timm_wrapper") != "timm_wrapper":
        raise WeightsError(
            "the config.json beside the weights names no architecture of timm, so it belongs to something else; "
            "move the weights to a folder of their own."
        )
    facts = _split_old_form(facts)
    _refuse_unknown(CONFIG, facts, KNOWN)
    model_args = _mapping("model_args", facts.get("model_args") or {})
    data = {**_mapping("pretrained_cfg", facts["pretrained_cfg"])}
    data |= {name: facts[name] for name in ("num_classes", "label_names") if name in facts}
    data.setdefault("num_classes", DEFAULTS["num_classes"])
    return Facts(
        architecture=facts["architecture"],
        model_args=model_args,
        data=data,
        global_pool=facts.get("global_pool"),
        num_features=facts.get("num_features"),
    )


def understand(facts: Facts) -> HubConfig:
    """The arguments of timm's `VisionTransformer` that a `config.json` stands for."""
    named = named_arguments(facts.architecture)
    if named["layout"] == "naflex":
        arguments = {**named, **timm_naflex.classic_arguments(facts.arguments, named)}
    elif named["layout"] == "relpos":
        arguments = {**named, **timm_relpos.classic_arguments(facts.arguments)}
    else:
        arguments = {**named, **facts.arguments}
        _refuse_arguments(facts.model_args, arguments)
    return HubConfig(
        architecture=facts.architecture,
        arguments=Settings(CONFIG, arguments),
        data=facts.data,
        global_pool=facts.global_pool,
        num_features=facts.num_features,
    )


def _split_old_form(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first config.json files had all of `pretrained_cfg` on the top level."""
    if "pretrained_cfg" in facts:
        return facts
    data = dict(facts)
    top = {name: data.pop(name) for name in ("architecture", "num_features") if name in data}
    if "labels" in data:
        data["label_names"] = data.pop("labels")
    return {**top, "pretrained_cfg": data}


def _from_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that timm takes from `pretrained_cfg`."""
    size: Any = data.get("input_size") or (3, 224, 224)
    if not isinstance(size, list | tuple) or len(cast("Any", size)) != 3:
        raise WeightsError(
            f"pretrained_cfg of config.json: input_size must be channels, height, width; got {shorten(size)}."
        )
    arguments: dict[str, Any] = {"in_chans": size[0], "num_classes": data["num_classes"]}
    return arguments | ({"img_size": tuple(cast("Any", size[1:]))} if data.get("fixed_input_size") else {})


def _refuse_arguments(model_args: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    _refuse_unknown("model_args of config.json", model_args, DEFAULTS.keys() | TRAINING)
    for name, allowed in FIXED.items():
        if not any(arguments[name] is value or arguments[name] == value for value in allowed):
            raise WeightsError(f"config.json says {name}={shorten(arguments[name])}, which our model does not compute.")
    if arguments["pos_embed"] not in ("", "none", "learn"):
        raise WeightsError(
            f"config.json says pos_embed={shorten(arguments['pos_embed'])}; it must be 'learn' or 'none'."
        )


def _refuse_unknown(where: str, values: Mapping[str, Any], known: frozenset[str] | set[str]) -> None:
    if unknown := sorted(values.keys() - known):
        raise WeightsError(
            f"{where} has {list_names(unknown)}, which we do not know, so the model may compute something else."
        )


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WeightsError(f"{where} must be a JSON object; got {type(value).__name__}.")
    return cast("Mapping[str, Any]", value)


def _show(value: Any) -> str:
    return "×".join(map(str, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else str(value)


def settle_name(hints: Hints, raw: Raw) -> Hints:
    """What the name that the user gives stands for, of what keys do not reveal; other hints take precedence."""
    if hints.architecture is None:
        return hints
    stated = Settings(CONFIG, named_arguments(hints.architecture))
    hub = HubConfig(architecture=hints.architecture, arguments=stated, data=stated, global_pool=None, num_features=None)
    same = stated["embed_dim"] == raw.shape("blocks.0.norm1.weight", 1)[0]
    heads = hints.heads or (stated["num_heads"] if same else None)
    return replace(hub.settle_hints(hints), heads=heads, image_size=hints.image_size, architecture=hints.architecture)

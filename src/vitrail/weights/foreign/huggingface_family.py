"""What a family of transformers is: a value that says how its files name, lay out and describe a model.

Reading and writing, with and without `config.json`, follow from it; `huggingface_config.py` has a
table of all families.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal

from torch import Tensor

from vitrail.errors import WeightsError, shorten
from vitrail.model import BlockConfig, PositionConfig, Rates, ViTConfig
from vitrail.model.parts import NoRelative, RelativeBias, Rope
from vitrail.weights import keys
from vitrail.weights.foreign.mae import DecoderNames
from vitrail.weights.formats import COMMON, Check, Holds, activations, anything, only, refusals
from vitrail.weights.keys import KEYLESS, Form, Names, Rule, Spelling, prefix_parts, torch_spelling
from vitrail.weights.sidecars import Settings

# A key of config.json → our field, the kind of its value (a method of `Settings`), and transformers' default.
Fields = Mapping[str, tuple[str, str, Any]]
Values = dict[str, Any]  # our field, such as `block.norm_eps` → its value
# Where a class gives what our model computes: an attribute of its output, the first token, the mean of all tokens or of
# all but the first, or the method that gives a picture's embedding.
Answer = Literal[
    "logits", "pooler_output", "image_embeds", "first token", "mean token", "mean patch", "get_image_features"
]
QKV, TABLE, TABLES = "blocks.{}.attention.qkv", "relative.table", "relative.table.{}"  # the last: one of each block


@dataclass(frozen=True, kw_only=True)
class Model:
    """A class of a family: what it adds to the backbone, and how it pools.

    Attributes:
        prefixes: what the names of its backbone begin with; the usual one first.
        signs: tensors that tell it from the classes after it, in the backbone or beside it.
        outer: modules beside the backbone; `inner`: those of the backbone that have another name in this class.
        fields: what it computes, as fields of our config.
        pooler: the Linear + tanh that it may have, as a module of the backbone.
        unused: modules of the backbone that it stores and does not read; they are kept beside our model.
        kept: other tensors that are kept.
        left_out: the beginnings of names of tensors that are not.
        decoders: how a masked autoencoder's decoder may be spelled, which is kept if it is the paper's.
        remark: on what is kept or left out, or on what is computed.
        refused: why it is refused unless the user chooses the pooling.
        nested: whether its `config.json` has the backbone's in it, as `vision_config`.
        answer: where it gives what our model computes; `run_as`: another class that does, if it does not; `arguments`:
            what `from_pretrained` needs to know for that.
        written: whether we write it; otherwise one of the other classes.
    """

    name: str
    prefixes: tuple[str, ...] = ("",)
    signs: tuple[str, ...] = ()
    outer: Names = field(default_factory=dict[str, str])
    inner: Names = field(default_factory=dict[str, str])
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    pooler: str = ""
    unused: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    decoders: tuple[DecoderNames, ...] = ()
    remark: str = ""
    refused: str = ""
    nested: bool = False
    answer: Answer = "first token"
    run_as: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    written: bool = True

    def misfits(self, config: ViTConfig) -> Iterator[str]:
        """Why this class cannot be a model with such a pooling and head."""
        if ("head" in self.outer) != (config.num_classes > 0):
            yield "it always has a head" if "head" in self.outer else "it is a backbone without a head"
        if config.representation is not None and not self.pooler:
            yield "its classifier has no representation layer before it (drop the layer or the head)"
        if (config.projection is not None) != ("projection" in self.outer):
            yield "it has no projection" if config.projection else "it always has a projection"
        for path, plain in POOLING.items():
            value = self.fields.get(path, plain)
            if getattr(config, path) != value:
                yield WORDS.get((path, value), f"its {path} is {value!r}, here it is {getattr(config, path)!r}")


# What a class decides, besides its head and layers, with the plain value.
POOLING = {"pooling": "cls", "pool_norm": "before", "summary_tokens": 1, "distilled": False}
WORDS = {
    ("pooling", "cls"): "it pools the [cls] token",
    ("pooling", "mean"): "it pools the mean of the patches",
    ("pooling", "map"): "it pools by attention",
    ("pool_norm", "before"): "its last norm comes before the pooling",
    ("pool_norm", "after"): "its last norm comes after the pooling",
    ("pool_norm", "none"): "it pools without a last norm",
    ("distilled", True): "it has a second head for its distillation token",
    ("pre_norm", True): "it has a norm before its first block",
    ("patch_bias", False): "its patch projection has no bias",
    ("patch_norm", True): "it has a norm of its patches",
    ("class_token", False): "it has no [cls] token",
    ("registers", 1): "it has one token beside [cls], for distillation",
    ("block.key_bias", False): "its keys have no biases",
    ("block.mlp", "swiglu"): "its MLPs are gated",
    ("block.norm", "rms"): "its norms are RMSNorms",
    ("relative.kind", "rope"): "its positions are rotary",
}


def _no_words(settings: Settings, values: Values) -> None:
    """All keys are fields."""


def _no_facts(config: ViTConfig, extras: Mapping[str, Tensor]) -> Mapping[str, Any]:
    return {}


def _no_forms(config: ViTConfig) -> Mapping[str, Form]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models, and all that its files may say.

    Attributes:
        kind: its `model_type`.
        tower: the `model_type` of a model with a text tower whose vision tower it is.
        models: its classes; the first whose sign is in a file is the file's.
        names: the backbone's modules, one table for each generation of names; the first is the one of the hub.
        sign: a pattern in the names of a file without `config.json` that no other family has; "" for none.
        fields: the keys of its `config.json` that are fields of ours.
        fixed: fields of ours that are always so.
        activation: its `hidden_act` where `config.json` has none.
        words: other keys that are used; `read` and `write` know them.
        irrelevant: keys of its own that change no number at inference.
        read: what follows from those words.
        write: those words for a model of ours, and the tensors that are kept beside it.
        forms: layouts of tensors; `spelling`: how modules spell their weights.
        holds: checks of its own, by field.
        mask_token: the shape of the token of its pre-training, if it has one; `needs_mask_token`: if always.
        needs_registers: whether a model without registers has an empty tensor for them.
        patch_dimensions: of the weight that projects patches: 4 for a convolution, 2 for a Linear.
        buffers: a pattern of tensors in older files that transformers computes by itself.
        resamples: whether it takes pictures of any size without being asked to.
        head_size: features of each head, in all of its published models; None if that varies.
        processor: its image processor where the file names none; `preset`: ours where there is no file.
        lookalikes: other models with the same keys that compute something else, for files without `config.json`.
        unread: a sentence on its other classes, which are not read.
    """

    kind: str
    tower: str = ""
    models: tuple[Model, ...]
    names: Mapping[str, Names]
    sign: str = ""
    fields: Fields
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    activation: str = "gelu"
    words: frozenset[str] = frozenset()
    irrelevant: frozenset[str] = frozenset()
    read: Callable[[Settings, Values], None] = _no_words
    write: Callable[[ViTConfig, Mapping[str, Tensor]], Mapping[str, Any]] = _no_facts
    forms: Callable[[ViTConfig], Mapping[str, Form]] = _no_forms
    spelling: Spelling = torch_spelling
    holds: Holds = field(default_factory=dict[str, Check])
    mask_token: tuple[int, ...] = ()
    needs_mask_token: bool = False
    needs_registers: bool = False
    patch_dimensions: int = 4
    buffers: str = ""
    resamples: bool = False
    head_size: int | None = None
    processor: str = "ViTImageProcessor"
    preset: str = "hf"
    lookalikes: str = ""
    unread: str = ""

    @property
    def patches(self) -> str:
        """The weight that cuts and projects patches, without a prefix."""
        return f"{next(iter(self.names.values()))['embed.patches']}.weight"

    def find_prefix(self, tensors: Mapping[str, Tensor]) -> str | None:
        """What the names of the backbone begin with; None if this is not such a model."""
        prefixes = dict.fromkeys(prefix for model in self.models for prefix in model.prefixes)
        if not any(name.endswith(tuple(self._queries().values())) for name in tensors):
            return None
        return next((prefix for prefix in prefixes if prefix + self.patches in tensors), None)

    def find_model(self, tensors: Mapping[str, Tensor], prefix: str) -> Model:
        """The class whose tensors these are."""
        return next(
            model for model in self.models if all(sign in tensors or prefix + sign in tensors for sign in model.signs)
        )

    def find_blocks(self, tensors: Mapping[str, Tensor], prefix: str) -> dict[str, str]:
        """Which of the names the blocks have, and what those begin with if it is not the prefix."""
        queries = self._queries()
        for generation, query in queries.items():
            if prefix + query in tensors:
                return {"generation": generation}
        for generation, query in queries.items():
            for name in tensors:
                if name.endswith(query):
                    return {"generation": generation, "blocks": name.removesuffix(query)}
        return {"generation": next(iter(queries))}

    def _queries(self) -> dict[str, str]:
        """Generation → the weight of the first block's queries, without a prefix."""
        return {
            generation: f"{keys.parts_of(names[QKV])[0].format(0)}.weight" for generation, names in self.names.items()
        }

    def names_of(self, model: Model, dialect: Mapping[str, str], config: ViTConfig | None = None) -> Names:
        """The names of all modules in a file of this dialect; `config` tells names that depend on it."""
        names = dict(self.names.get(dialect.get("generation", ""), next(iter(self.names.values()))))
        if config is not None and not config.block.key_bias:
            query, _, value = keys.parts_of(names[QKV])
            names[f"{QKV}.bias"] = (f"{query}.bias", f"{value}.bias")
        if config is not None and config.relative == RelativeBias(shared=False):
            each = keys.parts_of(names[TABLES])[0]
            names[TABLE] = tuple(each.format(index) for index in range(config.depth))
        prefix = dialect.get("prefix", model.prefixes[0])
        blocks = dialect.get("blocks", prefix)
        named = {
            ours: prefix_parts(blocks if ours.startswith("blocks.") else prefix, theirs)
            for ours, theirs in names.items()
            if ours != TABLES
        }
        inner = {ours: prefix_parts(prefix, theirs) for ours, theirs in model.inner.items()}
        return {**named, **inner, **model.outer}

    def key_table(self, config: ViTConfig, model: Model, dialect: Mapping[str, str]) -> list[Rule]:
        forms = dict(self.forms(config))
        if not config.block.key_bias:
            forms[f"{QKV}.bias"] = KEYLESS
        return keys.key_table(config, self.names_of(model, dialect, config), self.spelling, forms)

    def model_for(self, config: ViTConfig) -> Model:
        """The class that such a model is written as: the one that fits, or the nearest."""
        written = [model for model in self.models if model.written]
        return min(written, key=lambda model: len(list(model.misfits(config))))

    def holding(self) -> Holds:
        """What it can hold: what `config.json` says, what is always so, and what one of its classes computes."""
        fixed: dict[str, Check] = {
            path: only(value, reason=WORDS.get((path, value), f"its {path} is always {value!r}"))
            for path, value in self.fixed.items()
            if not path.startswith("positions.")
        }
        return {
            **COMMON,
            **{path: anything for path, _, _ in self.fields.values()},
            **dict.fromkeys((*POOLING, "representation", "projection"), anything),
            **fixed,
            "block.activation": _activation,
            "positions.kind": only(self.fixed.get("positions.kind", "learned"), reason=self._positions()),
            "positions.covers": self._covers,
            "pooling": lambda value, config: "; ".join(self.model_for(config).misfits(config)),
            **self.holds,
        }

    def _positions(self) -> str:
        none = self.fixed.get("positions.kind") == "none"
        return "no positions are added to its patches" if none else "its positions are learned"

    def _covers(self, value: str, config: ViTConfig) -> str:
        covers = self.fixed.get("positions.covers", "class")
        if config.positions.kind != "learned" or not config.prefix or value == covers:
            return ""
        return {
            "class": "its positions cover [cls] too, and no register",
            "all": "its positions cover [cls] and every other token",
            "patches": "its positions cover patches only",
        }[covers]

    def refusals(self, config: ViTConfig) -> list[str]:
        return refusals(self.holding(), config)


def _activation(value: str, config: ViTConfig) -> str:
    return "" if config.block.mlp == "swiglu" else activations("gelu", "gelu_tanh", "quick_gelu")(value, config)


def square(reason: str) -> Holds:
    """Pictures, patches and grids are square."""
    return {"image_size": lambda value, config: "" if is_square(config) else reason}


def is_square(config: ViTConfig) -> bool:
    return config.image_size[0] == config.image_size[1] and config.grid[0] == config.grid[1]


def build_config(values: Values) -> ViTConfig:
    """Our config from its fields by path."""
    parts: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        part, _, name = path.rpartition(".")
        parts.setdefault(part, {})[name] = value
    relative = {"none": NoRelative, "rope": Rope, "bias": RelativeBias}[parts.get("relative", {}).get("kind", "none")]
    return ViTConfig(
        **parts[""],
        block=BlockConfig(**parts.get("block", {})),
        positions=PositionConfig(**parts.get("positions", {})),
        rates=Rates(**parts.get("rates", {})),
        relative=relative(**parts.get("relative", {})),
    )


# Fields that may be None, which stands for what is computed.
COMPUTED = {"mlp_width": "hidden_width", "block.mlp_bias": "block.mlp_has_bias"}


def values_of(config: ViTConfig, fields: Fields) -> dict[str, Any]:
    """The keys of config.json that are fields of ours; a pair is one number where both are equal."""
    found: dict[str, Any] = {}
    for key, (path, _, _) in fields.items():
        value = attrgetter(COMPUTED.get(path, path))(config)
        if isinstance(value, tuple):
            value = value[0] if value[0] == value[1] else list(value)
        found[key] = value
    return found


def with_values(config: ViTConfig, values: Values) -> ViTConfig:
    """A config with other values at these paths."""
    parts: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        part, _, name = path.rpartition(".")
        parts.setdefault(part, {})[name] = value
    top = parts.pop("", {})
    return replace(config, **top, **{part: replace(getattr(config, part), **values) for part, values in parts.items()})


# What several families share.
HEAD: Names = {"head": "classifier"}
NOT_SQUARE = "its pictures and patches are square"


def sizes(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    hidden: int | None = 3072,
    image: int | None = 224,
    patch: int = 16,
    one_number: bool = False,
) -> Fields:
    """Sizes, which every family has; those of pictures and patches are one number in some."""
    sides = "side" if one_number else "pair"
    return {
        "hidden_size": ("width", "whole", width),
        "num_attention_heads": ("heads", "whole", heads),
        "num_channels": ("channels", "whole", 3),
        "num_hidden_layers": ("depth", "whole", depth),
        "patch_size": ("patch_size", sides, patch),
        **({} if hidden is None else {"intermediate_size": ("mlp_width", "whole", hidden)}),
        **({} if image is None else {"image_size": ("image_size", sides, image)}),
    }


def eps(value: float, key: str = "layer_norm_eps") -> Fields:
    """The epsilon of all norms."""
    return {key: ("block.norm_eps", "number", value)}


DROPOUT: Fields = {
    "attention_probs_dropout_prob": ("rates.attention", "number", 0.0),
    "hidden_dropout_prob": ("rates.dropout", "number", 0.0),
}
ATTENTION_DROPOUT: Fields = {"attention_dropout": ("rates.attention", "number", 0.0)}
QKV_BIAS: Fields = {"qkv_bias": ("block.qkv_bias", "flag", True)}


def check_gate(settings: Settings, default: str) -> None:
    """Raise unless the activation of gated MLPs is SiLU, the only one that we compute."""
    named = settings.get("hidden_act", default)
    if named != "silu":
        raise WeightsError(f"config.json: hidden_act of gated MLPs must be silu; got {shorten(named)}.")

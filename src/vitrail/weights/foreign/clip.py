"""OpenAI's CLIP and OpenCLIP: the picture's tower of `.pt`, `.bin` and `.safetensors` files; the text's is left out.

The names of the tower's modules are those of Meta's Perception Encoder too (`pe.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from torch import Tensor

from vitrail.data.preprocess import Preprocess, preset
from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.weights import infer, keys
from vitrail.weights.checkpoint import LOGIT_BIAS, LOGIT_SCALE, Checkpoint
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, activations, anything, computes, only, positions
from vitrail.weights.infer import Hints, Notes, Raw, assumed, assumed_heads
from vitrail.weights.keys import TRANSPOSED, Form, Names, Rule, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.resolve import PICKLES
from vitrail.weights.sidecars import OPEN_CLIP, Settings
from vitrail.weights.tensor_files import write_pickle, write_safetensors
from vitrail.wording import counted

Activation = Literal["gelu", "gelu_tanh", "quick_gelu"]
BLOCK = BlockConfig(activation="gelu", norm_eps=1e-5, layer_scale=1e-4)
VISUAL = "visual."  # before the tower's names, where the file is a whole CLIP
SCALES = (LOGIT_SCALE, LOGIT_BIAS)
OPENAI = {"input_resolution", "context_length", "vocab_size"}  # buffers of OpenAI's archives
HEAD_SIZES = {1280: 80, 1408: 88, 1664: 104, 1792: 112}  # width → features of a head; otherwise 64

# Our modules → the tower's.
BLOCK_NAMES = {
    "norm1": "ln_1",
    "attention.qkv.weight": "attn.in_proj_weight",
    "attention.qkv.bias": "attn.in_proj_bias",
    "attention.proj": "attn.out_proj",
    "branch1.scale": "ls_1.gamma",
    "norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "branch2.scale": "ls_2.gamma",
}
NAMES: Names = {
    "embed.class_token": "class_embedding",
    "embed.positions": "positional_embedding",
    "embed.patches": "conv1",
    "pre_norm": "ln_pre",
    **under("blocks.{}", "transformer.resblocks.{}.", BLOCK_NAMES),
    "norm": "ln_post",
    "projection.weight": "proj",
}
# Tensors that are laid out otherwise than ours.
FORMS = {
    "embed.class_token": Form(lambda theirs: theirs[0][None, None], lambda ours: (ours[0, 0],)),  # (D) ↔ (1, 1, D)
    "embed.positions": Form(lambda theirs: theirs[0][None], lambda ours: (ours[0],)),  # (N, D) ↔ (1, N, D)
    "projection.weight": TRANSPOSED,
}


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return is_tower(tensors) and _prefix_of(tensors) + "attn_pool.probe" not in tensors and _normed(tensors)


def is_tower(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the names are those of such a tower, of a CLIP or a Perception Encoder."""
    prefix = _prefix_of(tensors)
    return {f"{prefix}conv1.weight", f"{prefix}transformer.resblocks.0.attn.in_proj_weight"} <= tensors.keys()


def _normed(tensors: Mapping[str, Tensor]) -> bool:
    return f"{_prefix_of(tensors)}ln_post.weight" in tensors


def _prefix_of(tensors: Mapping[str, Tensor]) -> str:
    return VISUAL if f"{VISUAL}conv1.weight" in tensors else ""


@dataclass(frozen=True, kw_only=True)
class Tower:
    """The part of a file that sees pictures, with names of its own."""

    raw: Raw
    prefix: str  # that its names had in the file
    extras: dict[str, Tensor]  # the similarity's scale and bias
    remarks: Notes
    openai: bool  # whether the file is one of OpenAI's own


def split_tower(raw: Raw) -> Tower:
    """The tower, without what reads texts."""
    tensors, prefix = raw.tensors, _prefix_of(raw.tensors)
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    others = tensors.keys() - {prefix + name for name in own}
    text = others - {*SCALES, *OPENAI}
    return Tower(
        raw=replace(raw, tensors=own),
        prefix=prefix,
        extras={name: tensors[name] for name in SCALES if name in others},
        remarks=(f"left out {counted(len(text), 'tensor')} of the tower that reads texts",) if text else (),
        openai=bool(others & OPENAI),
    )


def key_table(config: ViTConfig, names: Names = NAMES) -> list[Rule]:
    """The rules of a tower, without a prefix."""
    rules = keys.key_table(config, names)
    return [replace(each, form=FORMS.get(each.ours, each.form)) for each in rules]


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What no key shows, and where it is known from; None where it is not."""

    activation: Activation | None = None
    head_size: int | None = None
    preprocess: Preprocess | None = None


def read(raw: Raw, hints: Hints) -> Checkpoint:
    tower = split_tower(raw)
    stated = read_open_clip(raw.sidecars, tower.raw) if OPEN_CLIP in raw.sidecars else Stated()
    if stated.activation is None and (tower.openai or "quickgelu" in raw.path.name.lower()):
        stated = replace(stated, activation="quick_gelu")
    config = infer_config(tower.raw, hints, stated)
    preprocess = stated.preprocess or preset("clip" if config.pre_norm else "clipa", config.image_size, config.channels)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config), tower.raw.tensors),
        extras=tower.extras,
        preprocess=replace(preprocess, size=config.image_size),
        origin=Origin(format="clip", dialect={"prefix": tower.prefix}),
        notes=_assumptions(config, hints, stated, tower.openai),
        remarks=tower.remarks,
    )


def infer_config(raw: Raw, hints: Hints, stated: Stated) -> ViTConfig:
    """A tower without a LayerNorm before its blocks is a CLIPA's, which pools the mean, and has one after it."""
    width = raw.shape("conv1.weight", 4)[0]
    config = infer.infer_config(
        raw,
        hints,
        NAMES,
        block=replace(BLOCK, activation=stated.activation or BLOCK.activation),
        positions=PositionConfig(resample="timm"),
        head_size=stated.head_size or HEAD_SIZES.get(width, 64),
        pool_norm="before" if "ln_pre.weight" in raw.tensors else "after",
    )
    return replace(config, projection=raw.size("proj", axis=1))


def _assumptions(config: ViTConfig, hints: Hints, stated: Stated, openai: bool) -> Notes:
    gelu = "gelu, the erf form (OpenAI's, DFN's and MetaCLIP's weights were trained with quick_gelu)"
    notes = (
        *(assumed_heads(config, hints, "every CLIP of its width") if stated.head_size is None else ()),
        *assumed("GELU", gelu, "activation", hints.activation or stated.activation),
    )
    if openai or stated.preprocess is not None:
        return notes
    return (*notes, "the file does not state its preprocessing: assumed that of OpenAI's CLIP, or of OpenCLIP's CLIPA")


# Keys of OpenCLIP's config that the weights show as well, or that concern only texts and training.
_SHOWN = {"image_size", "layers", "width", "patch_size", "mlp_ratio", "ls_init_value", "no_ln_pre", "patch_dropout"}
_UNUSED = {"attn_pooler_heads", "attn_pooler_queries", "output_tokens", "pool_type", "final_ln_after_pool"}
_PLAIN = {
    "block_type": ("default",),
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn"), (False,)),
    **dict.fromkeys(("scale_fc", "attentional_pool", "timm_model_pretrained"), (False,)),
    "pos_embed_type": ("learnable", "sin_cos_2d"),
    "act_kwargs": ({},),
    "norm_kwargs": ({}, {"eps": BLOCK.norm_eps}),
}
_FILTERS, _RESIZES = ({name: name for name in names} for names in (("bicubic", "bilinear"), ("shortest", "squash")))


def read_open_clip(sidecars: Mapping[str, Any], raw: Raw) -> Stated:
    """What `open_clip_config.json` adds to the weights beside it."""
    file = Settings(OPEN_CLIP, sidecars[OPEN_CLIP])
    model, pictures = _part(file, "model_cfg"), _part(file, "preprocess_cfg")
    vision = _part(model, "vision_cfg")
    vision.refuse_unknown(_SHOWN | _UNUSED | {"head_width"}, _PLAIN, "we do not know")
    averaged = (vision.get("pool_type", "tok"), bool(vision.get("final_ln_after_pool", False)))
    if averaged != (("tok", averaged[1]) if "ln_pre.weight" in raw.tensors else ("avg", True)):
        raise WeightsError(
            f"{OPEN_CLIP} says pool_type {averaged[0]!r}, final_ln_after_pool {averaged[1]}; a tower with ln_pre pools "
            "'tok', one without it 'avg' before its last LayerNorm."
        )
    usual = preset("clip")
    return Stated(
        activation="quick_gelu" if model.flag("quick_gelu", False) else "gelu",
        head_size=vision.whole("head_width", 64),
        preprocess=replace(
            usual,
            mean=tuple(pictures.get("mean") or usual.mean),
            std=tuple(pictures.get("std") or usual.std),
            interpolation=pictures.choice("interpolation", {None: usual.interpolation, **_FILTERS}),
            resize=pictures.choice("resize_mode", {None: usual.resize, **_RESIZES}),
        ),
    )


def _part(settings: Settings, name: str) -> Settings:
    part: Any = settings.get(name) or {}
    if not isinstance(part, Mapping):
        raise WeightsError(f"{OPEN_CLIP}: {name} must be an object; got {part!r}.")
    return Settings(OPEN_CLIP, cast("Mapping[str, Any]", part))


def _norm(value: str, config: ViTConfig) -> str:
    usual = ("cls", "before") if config.pre_norm else ("mean", "after")
    return "" if (config.pooling, value) == usual else "it pools [cls], or the mean before its last LayerNorm (CLIPA)"


# What every tower with these names holds.
TOWER: Holds = {
    **COMMON,
    **positions("learned", covers="class"),
    **computes(BLOCK),
    "num_classes": only(0, reason="it has no head"),
    "patch_bias": only(False, reason="its patch projection has no bias"),
    "block.layer_scale": anything,
}
HOLDS: Holds = {
    **TOWER,
    "block.activation": activations("gelu", "quick_gelu"),
    "pre_norm": anything,
    "pooling": only("cls", "mean", reason="it pools the [cls] token, or the mean of the patches"),
    "pool_norm": _norm,
    "projection": lambda value, config: "" if value else "it always has a projection",
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    write_tower(checkpoint, path, key_table(checkpoint.config), "clip")


def write_tower(checkpoint: Checkpoint, path: Path, rules: list[Rule], name: Literal["clip", "pe"]) -> None:
    """The tower under the names of a whole CLIP, unless it was read without them, and the similarity's scale."""
    prefix = checkpoint.origin.dialect_of(name).get("prefix", VISUAL)
    tensors = {prefix + key: tensor for key, tensor in write_tensors(rules, checkpoint.tensors).items()}
    tensors |= {key: checkpoint.extras[key] for key in SCALES if prefix and key in checkpoint.extras}
    if path.suffix in PICKLES:
        write_pickle(path, tensors)
    else:
        write_safetensors(path, tensors, {"format": "pt"})


FORMAT = ForeignFormat(
    name="clip",
    suffixes=(".pt", ".bin", ".safetensors"),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
)

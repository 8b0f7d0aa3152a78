"""timm's VisionTransformer: `.safetensors` or `.pth` with a plain state dict, on the hub with a `config.json`.

Its first releases, of which write-ups keep copies, could have a representation layer and patches cut by hand.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PatchStem, PositionConfig, ResNetStem, ViTConfig
from vitrail.model.parts import Stem
from vitrail.weights import infer, keys
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import timm_eva, timm_naflex, timm_relpos
from vitrail.weights.foreign.mae import KEPT, read_decoder, spell
from vitrail.weights.foreign.timm_architecture import how_to_load, hub_config, layout_of
from vitrail.weights.foreign.timm_config import (
    HEAD,
    PROJECTION,
    HubConfig,
    Layout,
    mlp_of,
    other_names,
    projects,
    read_facts,
    settle_name,
    understand,
)
from vitrail.weights.foreign.timm_eva_config import is_eva
from vitrail.weights.foreign.timm_eva_names import eva_arguments, is_eva_name
from vitrail.weights.foreign.timm_names import LAYER_NORM, LAYER_NORM_5, OTHERS, PLAIN, named_arguments
from vitrail.weights.foreign.timm_preprocess import BARE, assume_preprocess, read_classes, read_preprocess
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, activations, anything, epsilons, only, resnet_stem
from vitrail.weights.infer import Hints, Raw, assumed, assumed_heads, leave_out, usual_size
from vitrail.weights.keys import Form, Names, Rule, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.resolve import PICKLES
from vitrail.weights.sidecars import CONFIG, Settings
from vitrail.weights.tensor_files import write_pickle, write_safetensors

PATCHES, BACKBONE = "patch_embed.proj.weight", "patch_embed.backbone."
BLOCK = BlockConfig(activation="gelu", norm_eps=LAYER_NORM[1], layer_scale=1e-5)
RESNET = ResNetStem(norm_eps=1e-5, ws_eps=1e-8, ws_form="variance")  # what timm's hybrids compute


# Keys that no model of timm has, but files of authors whose other keys are timm's.
OTHERS_KEYS = {
    *("mask_token", "register_tokens", "storage_tokens"),
    *("rope.freqs_cos", "blocks.0.mlp.w1.weight", "blocks.0.mlp.w12.weight"),
    *("rel_pos_bias.relative_position_index", "blocks.0.attn.relative_position_index"),
}

MAE, DECODER = "decoder_embed.weight", r"decoder_|mask_token$"  # of masked autoencoders, whose encoder has timm's keys


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    patches = timm_naflex.is_naflex(tensors) or PATCHES in tensors
    attention = {"blocks.0.attn.qkv.weight", "blocks.0.attn.q_proj.weight"} & tensors.keys()  # fused or separate
    others = OTHERS_KEYS - ({"mask_token"} if MAE in tensors else set())
    return patches and bool(attention) and not others & tensors.keys()


# Our modules → timm's.
BLOCK_NAMES = {
    "norm1": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.query_norm": "attn.q_norm",
    "attention.key_norm": "attn.k_norm",
    "attention.norm": "attn.norm",
    "attention.proj": "attn.proj",
    "branch1.scale": "ls1.gamma",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "mlp.gate": "mlp.fc1",  # both halves in one
    "mlp.up": "mlp.fc1",
    "mlp.norm": "mlp.norm",
    "mlp.down": "mlp.fc2",
    "branch2.scale": "ls2.gamma",
}
POOL_NAMES = {"probe": "latent", "query": "q", "key_value": "kv", "proj": "proj", "norm": "norm"}
SHORTCUT = {"conv_shortcut": "downsample.conv", "norm_shortcut": "downsample.norm"}
UNIT_NAMES = {**{f"{kind}{number}": f"{kind}{number}" for kind in ("conv", "norm") for number in (1, 2, 3)}, **SHORTCUT}
NAMES: Names = {
    "embed.class_token": "cls_token",
    "embed.registers": "reg_token",
    "embed.positions": "pos_embed",
    "embed.patches": "patch_embed.proj",
    "embed.patch_norm": "patch_embed.norm",
    "pre_norm": "norm_pre",
    **under("embed.stem.stages.{}.{}", "patch_embed.backbone.stages.{}.blocks.{}.", UNIT_NAMES),
    **under("blocks.{}", "blocks.{}.", BLOCK_NAMES),
    **under("pool", "attn_pool.", {**POOL_NAMES, "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}),
    "norm": "norm",
    "representation": "pre_logits.fc",
    "head": "head",
}
SPLIT = under("blocks.{}", "blocks.{}.", {"mlp.gate": "mlp.fc1_g", "mlp.up": "mlp.fc1_x"})  # AIMv2's
DISTILLED: Names = {"embed.registers": "dist_token", "distilled_head": "head_dist"}
# Tables of biases: ours is one tensor for all blocks.
FORMS = {"projection.weight": PROJECTION, "relative.table": Form(torch.stack, lambda ours: ours.unbind())}


def names_of(stem: Stem, pool_norm: str, *, split: bool, distilled: bool, projects: bool) -> Names:
    """The names of a model's modules, some of which depend on what else it has."""
    root = f"{BACKBONE}stem" if isinstance(stem, ResNetStem) and stem.blocks else BACKBONE.rstrip(".")
    names = {**NAMES, **(SPLIT if split else {}), **(DISTILLED if distilled else {})}
    names |= {"embed.stem.conv_root": f"{root}.conv", "embed.stem.norm_root": f"{root}.norm"}
    names |= {"norm": "fc_norm"} if pool_norm == "after" else {}
    if projects:
        names |= {"projection.weight": HEAD}
        del names["head"]
    return names


def key_table(config: ViTConfig, dialect: Mapping[str, str] | None = None) -> list[Rule]:
    if is_eva(config):
        return timm_eva.key_table(config, dialect or {})
    names = names_of(
        config.stem,
        config.pool_norm,
        split=mlp_of(config) == "split",
        distilled=config.distilled,
        projects=config.projection is not None,
    )
    rules = keys.key_table(config, {**names, **timm_relpos.table_names(config)})
    return [replace(each, form=FORMS.get(each.ours, each.form)) for each in rules]


def read(raw: Raw, hints: Hints) -> Checkpoint:
    extras = read_decoder(raw.tensors, spell("", "decoder_blocks.{}.", BLOCK_NAMES)) if MAE in raw.tensors else {}
    tensors, remarks = leave_out(raw.tensors, DECODER, "the masked autoencoder's decoder")
    raw, remarks = replace(raw, tensors=tensors), (KEPT,) if extras else remarks
    facts = read_facts(raw.sidecars)
    if facts is not None and hints.architecture is not None:
        facts = replace(facts, architecture=hints.architecture)
    if timm_eva.is_meant(raw.tensors, facts.architecture if facts else hints.architecture):
        return timm_eva.read(raw, facts, hints)
    hub = None if facts is None else understand(facts)
    layout, masked = detect_layout(raw.tensors), bool(remarks)
    if hub is not None and hub.arguments["layout"] != layout:
        raise WeightsError(f"the keys are not those of timm's {hub.architecture}, which config.json names.")
    settled = hub.settle_hints(hints) if hub else settle_name(hints, raw)
    if layout == "naflex":
        raw, settled = _read_naflex(raw, settled)
    elif layout == "relpos":
        raw, settled, more = _read_relpos(raw, settled, hub)
        remarks = (*remarks, *more)
    else:
        raw = replace(raw, tensors=unflatten_patches(raw.tensors))
    config = infer_config(raw, settled, hub)
    if hub is None:
        classes, notes = None, assumptions(config, settled, layout)
        if masked:  # pictures are prepared for MAE as for DINOv2
            preprocess = preset("dinov2", config.image_size, config.channels)
        else:
            preprocess, notes = assume_preprocess(config), (*notes, BARE)
    else:
        hub.check(config)
        dynamic = bool(hub.arguments["dynamic_img_size"]) and hints.image_size is None
        preprocess, notes = read_preprocess(hub.data, config, dynamic=dynamic)
        classes, more = read_classes(hub.data, config)
        notes = (*notes, *more, *hub.trained_otherwise(hints))
    dialect = {"suffix": raw.path.suffix} | ({"layout": layout} if layout == "naflex" else {})
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config), raw.tensors),
        extras=extras,
        preprocess=preprocess,
        classes=classes,
        origin=Origin(format="timm", dialect=dialect),
        notes=notes,
        remarks=remarks,
    )


def detect_layout(tensors: Mapping[str, Tensor]) -> Layout:
    """Which class of timm's has such names."""
    if timm_naflex.is_naflex(tensors):
        return "naflex"
    return "relpos" if timm_relpos.is_relpos(tensors) else "classic"


def _read_naflex(raw: Raw, hints: Hints) -> tuple[Raw, Hints]:
    """The tensors as those of a `VisionTransformer`, whose picture size is that of the grid of positions."""
    tensors, grid = timm_naflex.to_classic(raw.tensors, hints.patch_size)
    patch = tensors[PATCHES].shape[2:]
    size = None if grid is None else (grid[0] * patch[0], grid[1] * patch[1])
    return replace(raw, tensors=tensors), replace(hints, image_size=hints.image_size or size)


def _read_relpos(raw: Raw, hints: Hints, hub: HubConfig | None) -> tuple[Raw, Hints, tuple[str, ...]]:
    """The tensors with tables of biases; an MLP that computes them gives those of the model's picture size."""
    kind, patch = timm_relpos.kind_of(raw.tensors), raw.shape(PATCHES, 4)[2:]
    if hub is not None and hub.arguments["rel_pos_type"] != kind:
        raise WeightsError(
            f"config.json says rel_pos_type {hub.arguments['rel_pos_type']!r}; the weights have {kind!r}."
        )
    size = hints.image_size
    if size is None:
        grid = timm_relpos.grid_of(raw.tensors)
        size = usual_size((patch[0], patch[1])) if grid is None else (grid[0] * patch[0], grid[1] * patch[1])
    tensors = timm_relpos.tabulate(raw.tensors, (size[0] // patch[0], size[1] // patch[1]))
    remarks = () if kind == "bias" else (timm_relpos.REMARK.format(*size),)
    return replace(raw, tensors=tensors), replace(hints, image_size=size), remarks


def refuse_architecture(raw: Raw) -> None:
    """Raise for a folder of timm whose `config.json` names a model that we do not compute, whatever its keys are."""
    facts = raw.sidecars.get(CONFIG)
    if isinstance(facts, Mapping) and isinstance(facts.get("architecture"), str):
        name = facts["architecture"]
        eva_arguments(name) if is_eva_name(name) else named_arguments(name)


def unflatten_patches(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The first weights of timm multiply flat patches by a matrix, whose numbers are those of a convolution."""
    weight = tensors.get(PATCHES)
    if weight is None or weight.ndim != 2:
        return tensors
    side = isqrt(weight.shape[1] // 3)
    if 3 * side**2 != weight.shape[1]:
        return tensors
    return {**tensors, PATCHES: weight.unflatten(1, (3, side, side))}


def infer_config(raw: Raw, hints: Hints, hub: HubConfig | None = None) -> ViTConfig:
    stem, split = _infer_stem(raw), "blocks.0.mlp.fc1_g.weight" in raw.tensors
    pool_norm = "after" if "fc_norm.weight" in raw.tensors else "before" if "norm.weight" in raw.tensors else "none"
    distilled = "dist_token" in raw.tensors
    told = Settings(CONFIG, named_arguments(hints.architecture) if hints.architecture else PLAIN)
    told = hub.arguments if hub else told
    names = names_of(stem, pool_norm, split=split, distilled=distilled, projects=projects(raw, hub and hub.data))
    if distilled and "head_dist.weight" not in raw.tensors:
        raise WeightsError("it has a distillation token but no head for it, so we do not know what to read from it.")
    config = infer.infer_config(
        raw,
        hints,
        names,
        block=replace(BLOCK, norm=_infer_norm(raw)),
        positions=PositionConfig(covers="all", resample=told["resample"]),
        head_size=128 if split else None,  # of every AIMv2
        stem=stem,
        pool_norm=pool_norm,
        relative=timm_relpos.relative_of(raw.tensors),
    )
    block = replace(config.block, norm_eps=hints.norm_eps or usual_eps(config))
    return replace(config, block=block, pool_prefix=bool(told["pool_include_prefix"]))


def usual_eps(config: ViTConfig) -> float:
    """The epsilon of all models that timm registers with such keys."""
    block = config.block
    five = config.pre_norm or block.attention_norm or block.mlp_norm or mlp_of(config) == "split"
    return (LAYER_NORM_5 if five else LAYER_NORM)[1]


def assumptions(config: ViTConfig, hints: Hints, layout: Layout = "classic") -> tuple[str, ...]:
    """What neither a key of a bare file nor a hint settles, one note each."""
    pooling = hints.pooling or (config.pooling if config.pooling == "map" else None)  # whose layers are among the keys
    activation = hints.activation or (None if config.block.mlp == "plain" else "silu")
    notes = [
        *assumed_heads(config, hints),
        *assumed("pooling", config.pooling, "pooling", pooling),
        *assumed("GELU", f"{BLOCK.activation} (the erf form)", "activation", activation),
        *assumed("LayerNorm epsilon", f"{usual_eps(config):g}", "norm_eps", hints.norm_eps),
        *assumed("attention scale", f"1 / √{config.head_size}", "attention_scale", hints.attention_scale),
    ]
    if layout == "naflex" and hints.architecture is None:
        notes.append(
            "the file does not state how positions are brought to other grids: assumed bicubic; SigLIP 2's are bilinear"
        )
    if layout == "relpos" and config.block.layer_scale is None and hints.architecture is None:
        notes.append(f"timm's vit_relpos_*_rpn_* have the same keys and {OTHERS['vit_relpos_*_rpn_*']}")
    if others := other_names(config, hints, layout):
        notes.append(f"these models of timm have the same keys and compute something else: {others}")
    return tuple(notes)


def _infer_norm(raw: Raw) -> Literal["layer", "rms"]:
    """RMS norms have no biases; where one block's norm has one, those that are missing are damage."""
    return "layer" if any(name.endswith("norm1.bias") for name in raw.tensors) else "rms"


def _infer_stem(raw: Raw) -> Stem:
    roots = (f"{BACKBONE}stem.conv.weight", f"{BACKBONE}conv.weight")  # with stages, or without
    root = next((name for name in roots if name in raw.tensors), None)
    if root is None:
        if others := [name for name in raw.tensors if name.startswith(BACKBONE)]:
            raise WeightsError(
                f"its patches come from a convolutional network of its own ({others[0]}); the only one that our model "
                "has is the ResNet of Google's hybrids, with weight standardisation and GroupNorm."
            )
        return PatchStem()
    blocks = raw.count_units(r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.")
    return replace(RESNET, blocks=blocks, width_factor=raw.shape(root, 4)[0] / 64)


def _covers(value: str, config: ViTConfig) -> str:
    if config.distilled and value != "all":
        return "a distilled model of it gives positions to all tokens"
    if value == "class" and config.registers > 0 and config.class_token:
        return "it gives positions to [cls] and registers alike, or to neither (`fold_class_position=True` does that)"
    return ""


def _norm_eps(value: float, config: ViTConfig) -> str:
    """With an epsilon of 1e-5, timm has LayerNorms of plain models, and AIMv2's RMS norms."""
    block = config.block
    plain = block.norm == "layer" and (block.mlp, config.stem.kind, config.distilled) == ("plain", "patch", False)
    held = (1e-6, 1e-5) if plain or mlp_of(config) == "split" else (1e-6,)
    return epsilons(*held)(value, config)


def _patch_norm(value: bool, config: ViTConfig) -> str:
    held = not value or config.block.norm_eps == LAYER_NORM[1] or mlp_of(config) == "split"
    return "" if held else "its norm of the patches has epsilon 1e-6 (`norm_eps=1e-06` accepts that)"


def _plain_pool(value: object, config: ViTConfig, plain: object, what: str) -> str:
    """timm's attention pooling always has the paper's MLP, where ours has that of the blocks."""
    return "" if value == plain or config.pooling != "map" else f"its attention pooling has no {what}"


def _mlp(value: str, config: ViTConfig) -> str:
    if value == "plain" or (config.pooling != "map" and isinstance(config.stem, PatchStem) and not config.distilled):
        return ""
    return "it has gated MLPs only without attention pooling, a ResNet and a distillation token"


def _patch_bias(value: bool, config: ViTConfig) -> str:
    return "" if value != config.pre_norm else "its patches have a bias if and only if no norm precedes the first block"


def _summary_tokens(value: int, config: ViTConfig) -> str:
    return "" if value == 1 or config.distilled else "it pools one [cls] token"


def _registers(value: int, config: ViTConfig) -> str:
    return "" if not config.distilled or value == 1 else "a distilled model of it has no registers"


def _relative(value: str, config: ViTConfig) -> str:
    if value == "none" or timm_relpos.can_hold(config):
        return ""
    return "its relative positions are biases in an otherwise plain ViT, without other positions and registers"


def _projection(value: int | None, config: ViTConfig) -> str:
    if value is None or (config.pre_norm and not config.num_classes):
        return ""
    return "it has a projection only in place of the head, and after a norm before the first block (CLIP)"


HOLDS: Holds = {
    **COMMON,
    **resnet_stem(RESNET, "its ResNet has 32 groups, epsilon 1e-5 and divides weights by √(variance + 1e-8)"),
    "class_token": anything,
    "registers": _registers,
    "pooling": only("cls", "mean", "map", reason="it pools the [cls] token, the mean of the patches or by attention"),
    "pool_norm": anything,
    "pool_prefix": anything,
    "representation": only(None, reason="it has no representation layer (drop it when fine-tuning)"),
    "positions.kind": only("learned", "none", reason="its positions are learned"),
    "positions.covers": _covers,
    "patch_bias": _patch_bias,
    "patch_norm": _patch_norm,
    "pre_norm": anything,
    "projection": _projection,
    "distilled": anything,
    "summary_tokens": _summary_tokens,
    "relative.kind": _relative,
    "relative.shared": anything,
    "block.qkv_bias": anything,
    "block.qk_norm": anything,
    "block.layer_scale": anything,
    "block.norm": anything,
    "block.norm_eps": _norm_eps,
    "block.activation": activations("gelu", "gelu_tanh", "quick_gelu"),
    "block.attention_norm": anything,
    "block.mlp_norm": lambda value, config: _plain_pool(value, config, False, "norm in its MLP"),
    "block.proj_bias": lambda value, config: _plain_pool(value, config, True, "MLP without biases"),
    "block.mlp": _mlp,
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    config, dialect = checkpoint.config, checkpoint.origin.dialect_of("timm")
    rules = key_table(config, dialect)
    tensors = write_tensors(rules, checkpoint.tensors)
    if path.suffix and is_eva(config):
        timm_eva.check_bare(config, dialect)
    elif path.suffix:
        _check_bare(config, tensors)
    if layout_of(checkpoint) == "naflex":
        tensors = timm_naflex.to_naflex(tensors, config)
    if path.suffix in PICKLES:
        write_pickle(path, tensors)
    elif path.suffix == ".safetensors":
        write_safetensors(path, tensors, {"format": "pt"})
    else:
        path.mkdir()
        write_safetensors(path / "model.safetensors", tensors, {"format": "pt"})
        (path / "config.json").write_text(json.dumps(hub_config(checkpoint), indent=2), encoding="utf-8")


def _check_bare(config: ViTConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise if a file without a `config.json` would be read as another model."""
    if config.pool_prefix:
        raise WeightsError(
            "the keys of a file do not tell that [cls] and registers are pooled too; write a folder instead."
        )
    if timm_eva.is_meant(tensors, None):
        raise WeightsError("the keys of a file would be those of a Perception Encoder; write a folder instead.")


FORMAT = ForeignFormat(
    name="timm",
    suffixes=(".safetensors", ".pth", ".bin", ""),
    holds=lambda config: timm_eva.holds(config) if is_eva(config) else HOLDS,
    write=write,
    how_to_load=how_to_load,
    self_describing=("",),
    resamples=lambda config: is_eva(config) and config.relative.kind != "bias",
    recognises=recognises,
    read=read,
)

"""timm's VisionTransformer: `.safetensors` or `.pth` with a plain state dict, on the hub with a `config.json`.

Its first releases, of which write-ups keep copies, could have a representation layer and patches cut by hand.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from math import isqrt
from pathlib import Path

from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PatchStem, PositionConfig, ResNetStem, ViTConfig
from vitrail.model.parts import Stem
from vitrail.weights import infer, keys
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, activations, anything, computes, only, resnet_stem
from vitrail.weights.infer import Hints, Raw, assumed, assumed_heads
from vitrail.weights.keys import Names, Rule, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.resolve import PICKLES
from vitrail.weights.tensor_files import write_pickle, write_safetensors
from vitrail.weights.timm_config import NORM_EPS, how_to_load, hub_config, other_names, read_facts, understand
from vitrail.weights.timm_preprocess import BARE, assume_preprocess, read_classes, read_preprocess

BLOCK = BlockConfig(activation="gelu", norm_eps=NORM_EPS, layer_scale=1e-5)
RESNET = ResNetStem(norm_eps=1e-5, ws_eps=1e-8, ws_form="variance")  # what timm's hybrids compute


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    plain = {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= tensors.keys()
    return plain and not {"mask_token", "register_tokens", "storage_tokens"} & tensors.keys()


# Our modules → timm's.
BLOCK_NAMES = {
    "norm1": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.query_norm": "attn.q_norm",
    "attention.key_norm": "attn.k_norm",
    "attention.proj": "attn.proj",
    "branch1.scale": "ls1.gamma",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "mlp.gate": "mlp.fc1",  # both halves in one
    "mlp.up": "mlp.fc1",
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
    **under("embed.stem.stages.{}.{}", "patch_embed.backbone.stages.{}.blocks.{}.", UNIT_NAMES),
    **under("blocks.{}", "blocks.{}.", BLOCK_NAMES),
    **under("pool", "attn_pool.", {**POOL_NAMES, "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}),
    "norm": "norm",
    "representation": "pre_logits.fc",
    "head": "head",
}
PATCHES, BACKBONE = "patch_embed.proj.weight", "patch_embed.backbone."


def names_of(stem: Stem, pool_norm: str) -> Names:
    """The names of a model's modules, some of which depend on what else it has."""
    root = f"{BACKBONE}stem" if isinstance(stem, ResNetStem) and stem.blocks else BACKBONE.rstrip(".")
    roots = {"embed.stem.conv_root": f"{root}.conv", "embed.stem.norm_root": f"{root}.norm"}
    return {**NAMES, **roots, "norm": "norm" if pool_norm == "before" else "fc_norm"}


def key_table(config: ViTConfig) -> list[Rule]:
    return keys.key_table(config, names_of(config.stem, config.pool_norm))


def read(raw: Raw, hints: Hints) -> Checkpoint:
    facts = read_facts(raw.sidecars)
    hub = None if facts is None else understand(facts)
    raw = replace(raw, tensors=unflatten_patches(raw.tensors))
    config = infer_config(raw, hub.settle_hints(hints) if hub else hints)
    if hub is None:
        preprocess, classes, notes = assume_preprocess(config), None, (*assumptions(config, hints), BARE)
    else:
        hub.check(config)
        dynamic = bool(hub.arguments["dynamic_img_size"]) and hints.image_size is None
        preprocess, notes = read_preprocess(hub.data, config, dynamic=dynamic)
        classes, more = read_classes(hub.data, config)
        notes = (*notes, *more)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config), raw.tensors),
        preprocess=preprocess,
        classes=classes,
        origin=Origin(format="timm", dialect={"suffix": raw.path.suffix}),
        notes=notes,
    )


def unflatten_patches(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The first weights of timm multiply flat patches by a matrix, whose numbers are those of a convolution."""
    weight = tensors.get(PATCHES)
    if weight is None or weight.ndim != 2:
        return tensors
    side = isqrt(weight.shape[1] // 3)
    if 3 * side**2 != weight.shape[1]:
        return tensors
    return {**tensors, PATCHES: weight.unflatten(1, (3, side, side))}


def infer_config(raw: Raw, hints: Hints) -> ViTConfig:
    stem, pool_norm = _infer_stem(raw), "after" if "fc_norm.weight" in raw.tensors else "before"
    positions = PositionConfig(covers="all", resample="timm")
    names = names_of(stem, pool_norm)
    return infer.infer_config(raw, hints, names, block=BLOCK, positions=positions, stem=stem, pool_norm=pool_norm)


def assumptions(config: ViTConfig, hints: Hints) -> tuple[str, ...]:
    """What neither a key of a bare file nor a hint settles, one note each."""
    pooling = hints.pooling or (config.pooling if config.pooling == "map" else None)  # whose layers are among the keys
    activation = hints.activation or (None if config.block.mlp == "plain" else "silu")
    notes = [
        *assumed_heads(config, hints),
        *assumed("pooling", config.pooling, "pooling", pooling),
        *assumed("GELU", f"{BLOCK.activation} (the erf form)", "activation", activation),
        *assumed("LayerNorm epsilon", f"{BLOCK.norm_eps:g}", "norm_eps", hints.norm_eps),
        *assumed("attention scale", f"1 / √{config.head_size}", "attention_scale", hints.attention_scale),
    ]
    if others := other_names(config, hints):
        notes.append(f"these models of timm have the same keys and compute something else: {others}")
    return tuple(notes)


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
    if value == "class" and config.registers > 0 and config.class_token:
        return "it gives positions to [cls] and registers alike, or to neither (`fold_class_position=True` does that)"
    return ""


def _mlp(value: str, config: ViTConfig) -> str:
    if value == "plain" or (config.pooling != "map" and isinstance(config.stem, PatchStem)):
        return ""
    return "it has gated MLPs only without attention pooling and a ResNet"


HOLDS: Holds = {
    **COMMON,
    **resnet_stem(RESNET, "its ResNet has 32 groups, epsilon 1e-5 and divides weights by √(variance + 1e-8)"),
    "class_token": anything,
    "registers": anything,
    "pooling": only("cls", "mean", "map", reason="it pools the [cls] token, the mean of the patches or by attention"),
    "pool_norm": anything,
    "representation": only(None, reason="it has no representation layer (drop it when fine-tuning)"),
    "positions.kind": only("learned", "none", reason="its positions are learned"),
    "positions.covers": _covers,
    "block.qkv_bias": anything,
    "block.qk_norm": anything,
    "block.layer_scale": anything,
    **computes(BLOCK),
    "block.activation": activations("gelu", "gelu_tanh"),
    "block.mlp": _mlp,
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    tensors = write_tensors(key_table(checkpoint.config), checkpoint.tensors)
    if path.suffix in PICKLES:
        write_pickle(path, tensors)
    elif path.suffix == ".safetensors":
        write_safetensors(path, tensors, {"format": "pt"})
    else:
        path.mkdir()
        write_safetensors(path / "model.safetensors", tensors, {"format": "pt"})
        (path / "config.json").write_text(json.dumps(hub_config(checkpoint), indent=2), encoding="utf-8")


FORMAT = ForeignFormat(
    name="timm",
    suffixes=(".safetensors", ".pth", ".bin", ""),
    holds=lambda config: HOLDS,
    write=write,
    how_to_load=how_to_load,
    self_describing=("",),
    resamples=lambda config: False,
    recognises=recognises,
    read=read,
)

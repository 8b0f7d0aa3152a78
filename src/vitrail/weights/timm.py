"""timm's VisionTransformer: `.safetensors` or `.pth` with a plain state dict, on the hub with a `config.json`."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitrail.model import BlockConfig, PatchStem, PositionConfig, ResNetStem, ViTConfig
from vitrail.model.config import Stem
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, activations, anything, computes, only, resnet_stem
from vitrail.weights.infer import Hints, Raw, assumed, assumed_heads, infer_image_size, infer_sizes, usual_size
from vitrail.weights.keys import Rule, layer, read_tensors, rule, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.resolve import PICKLES
from vitrail.weights.tensor_files import write_pickle, write_safetensors
from vitrail.weights.timm_config import NORM_EPS, how_to_load, hub_config, other_names, read_hub_config
from vitrail.weights.timm_preprocess import BARE, assume_preprocess, read_classes, read_preprocess

BLOCK = BlockConfig(activation="gelu", norm_eps=NORM_EPS)
RESNET = ResNetStem(norm_eps=1e-5, ws_eps=1e-8, ws_form="variance")  # what timm's hybrids compute


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    plain = {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= tensors.keys()
    return plain and not {"mask_token", "register_tokens"} & tensors.keys()


def key_table(config: ViTConfig) -> list[Rule]:
    rules = [*_stem_rules(config.stem), *layer("embed.patches", "patch_embed.proj")]
    named = [
        (config.class_token, "embed.class_token", "cls_token"),
        (config.registers > 0, "embed.registers", "reg_token"),
        (config.positions.kind == "learned", "embed.positions", "pos_embed"),
    ]
    rules += [rule(ours, theirs) for there, ours, theirs in named if there]
    for index in range(config.depth):
        rules += block_rules(config, index)
    rules += layer("norm", "norm" if config.pool_norm == "before" else "fc_norm")
    if config.pooling == "map":
        rules.append(rule("pool.probe", "attn_pool.latent"))
        for ours, theirs in {"query": "q", "key_value": "kv", "proj": "proj", "norm": "norm"}.items():
            rules += layer(f"pool.{ours}", f"attn_pool.{theirs}")
        rules += [*layer("pool.mlp.fc1", "attn_pool.mlp.fc1"), *layer("pool.mlp.fc2", "attn_pool.mlp.fc2")]
    if config.num_classes:
        rules += layer("head", "head")
    return rules


def block_rules(config: ViTConfig, index: int, gated: tuple[str, ...] = ("fc1", "fc1", "fc2")) -> list[Rule]:
    """One encoder block, which has the same names in timm and in DINOv2's own repository, but for SwiGLU's layers."""
    ours, theirs = f"blocks.{index}", f"blocks.{index}"
    rules = [
        *layer(f"{ours}.norm1", f"{theirs}.norm1"),
        rule(f"{ours}.attention.qkv.weight", f"{theirs}.attn.qkv.weight"),
    ]
    if config.block.qkv_bias:
        rules.append(rule(f"{ours}.attention.qkv.bias", f"{theirs}.attn.qkv.bias"))
    if config.block.qk_norm:
        rules += layer(f"{ours}.attention.query_norm", f"{theirs}.attn.q_norm")
        rules += layer(f"{ours}.attention.key_norm", f"{theirs}.attn.k_norm")
    rules += layer(f"{ours}.attention.proj", f"{theirs}.attn.proj")
    rules += layer(f"{ours}.norm2", f"{theirs}.norm2")
    rules += mlp_rules(config, f"{ours}.mlp", f"{theirs}.mlp", ("fc1", "fc2"), gated)
    if config.block.layer_scale is not None:
        rules += [rule(f"{ours}.branch{number}.scale", f"{theirs}.ls{number}.gamma") for number in (1, 2)]
    return rules


def mlp_rules(config: ViTConfig, ours: str, theirs: str, plain: tuple[str, ...], gated: tuple[str, ...]) -> list[Rule]:
    """An MLP by their names for its layers: the two of a plain one, or SwiGLU's gate, up (often in one) and down."""
    pairs = {
        "plain": zip(("fc1", "fc2"), plain, strict=True),
        "swiglu": zip(("gate", "up", "down"), gated, strict=True),
    }
    return [each for name, their in pairs[config.block.mlp] for each in layer(f"{ours}.{name}", f"{theirs}.{their}")]


def _stem_rules(stem: Stem) -> list[Rule]:
    if not isinstance(stem, ResNetStem):
        return []
    backbone = "patch_embed.backbone"
    root = f"{backbone}.stem" if stem.blocks else backbone
    rules = [rule("embed.stem.conv_root.weight", f"{root}.conv.weight"), *layer("embed.stem.norm_root", f"{root}.norm")]
    for stage, count in enumerate(stem.blocks):
        for unit in range(count):
            ours, theirs = f"embed.stem.stages.{stage}.{unit}", f"{backbone}.stages.{stage}.blocks.{unit}"
            for number in (1, 2, 3):
                rules.append(rule(f"{ours}.conv{number}.weight", f"{theirs}.conv{number}.weight"))
                rules += layer(f"{ours}.norm{number}", f"{theirs}.norm{number}")
            if unit == 0:
                rules.append(rule(f"{ours}.conv_shortcut.weight", f"{theirs}.downsample.conv.weight"))
                rules += layer(f"{ours}.norm_shortcut", f"{theirs}.downsample.norm")
    return rules


def read(raw: Raw, hints: Hints) -> Checkpoint:
    hub = read_hub_config(raw.sidecars)
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


def infer_config(raw: Raw, hints: Hints) -> ViTConfig:
    tensors, stem = raw.tensors, _infer_stem(raw)
    class_token, registers = "cls_token" in tensors, raw.size("reg_token", axis=1) or 0
    mlp_width = raw.shape("blocks.0.mlp.fc2.weight", 2)[1]
    gated = raw.shape("blocks.0.mlp.fc1.weight", 2)[0] == 2 * mlp_width
    head_size = raw.size("blocks.0.attn.q_norm.weight") or (64 if gated else None)
    layers, mlp = r"blocks\.(\d+)\.", "blocks.0.mlp.fc2"
    sizes = infer_sizes(raw, hints, patches="patch_embed.proj", layers=layers, mlp=mlp, head_size=head_size)
    if root := _root_of(raw):
        sizes["channels"] = raw.shape(root, 4)[1]
    stride = (sizes["patch_size"][0] * stem.stride, sizes["patch_size"][1] * stem.stride)
    if learned := "pos_embed" in tensors:
        prefixes = tuple({0, int(class_token) + registers})
        image_size, covered = infer_image_size(raw.shape("pos_embed", 3)[1], prefixes, stride, hints)
    else:
        image_size, covered = hints.image_size or usual_size(stride), 0
    pool_norm = "after" if "fc_norm.weight" in tensors else "before"
    pooling = "map" if "attn_pool.latent" in tensors else "mean" if pool_norm == "after" or not class_token else "cls"
    return ViTConfig(
        **sizes,
        image_size=image_size,
        num_classes=raw.size("head.weight") or 0,
        class_token=class_token,
        registers=registers,
        pooling=hints.pooling or pooling,
        pool_norm=pool_norm,
        block=infer_block(raw, hints, gated),
        positions=PositionConfig(
            kind="learned" if learned else "none", covers="all" if covered else "patches", resample="timm"
        ),
        stem=stem,
    )


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


def infer_block(raw: Raw, hints: Hints, gated: bool) -> BlockConfig:
    """What a block's keys reveal, in timm's and in DINOv2's own naming."""
    block = replace(
        BLOCK,
        qkv_bias="blocks.0.attn.qkv.bias" in raw.tensors,
        qk_norm="blocks.0.attn.q_norm.weight" in raw.tensors,
        layer_scale=1e-5 if "blocks.0.ls1.gamma" in raw.tensors else None,
        mlp="swiglu" if gated else "plain",
    )
    return hints.override(block)


def _infer_stem(raw: Raw) -> Stem:
    root = _root_of(raw)
    if root is None:
        return PatchStem()
    blocks = raw.count_units(r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.")
    return replace(RESNET, blocks=blocks, width_factor=raw.shape(root, 4)[0] / 64)


def _root_of(raw: Raw) -> str | None:
    """The first convolution of a hybrid, whose name depends on whether stages follow."""
    names = ("patch_embed.backbone.stem.conv.weight", "patch_embed.backbone.conv.weight")
    return next((name for name in names if name in raw.tensors), None)


def _covers(value: str, config: ViTConfig) -> str:
    if value == "class" and config.registers > 0 and config.class_token:
        return "it gives positions to [cls] and registers alike, or to neither (fold_class_position= does that)"
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

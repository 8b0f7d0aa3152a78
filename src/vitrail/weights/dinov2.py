"""facebookresearch/dinov2: `.pth` files of backbones with LayerScale, and register tokens in the newer ones."""

from pathlib import Path

from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.errors import WeightsError
from vitrail.model import PositionConfig, ViTConfig
from vitrail.weights.checkpoint import Checkpoint, Origin
from vitrail.weights.files import write_pickle
from vitrail.weights.infer import (
    Hints,
    Raw,
    assumed_heads,
    common_refusals,
    count_layers,
    infer_heads,
    infer_image_size,
    optional_size,
    position_refusals,
)
from vitrail.weights.keys import Rule, layer, read_tensors, rule, write_tensors
from vitrail.weights.timm import block_rules, infer_block

ACTIVATION, NORM_EPS = "gelu", 1e-6


def recognises(tensors: dict[str, Tensor]) -> bool:
    named = {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= tensors.keys()
    return named and bool({"mask_token", "register_tokens"} & tensors.keys())


def key_table(config: ViTConfig) -> list[Rule]:
    rules = [
        rule("embed.class_token", "cls_token"),
        rule("embed.positions", "pos_embed"),
        *layer("embed.patches", "patch_embed.proj"),
        *layer("norm", "norm"),
    ]
    if config.registers:
        rules.append(rule("embed.registers", "register_tokens"))
    for index in range(config.depth):
        rules += block_rules(config, index)
    return rules


def read(raw: Raw, hints: Hints) -> Checkpoint:
    if "blocks.0.mlp.w12.weight" in raw.tensors:
        raise WeightsError(
            f"{raw.path} has SwiGLU MLPs (DINOv2's ViT-g), which the paper's ViT has not; we cannot load it."
        )
    tensors, extras = split_mask_token(raw.tensors, "mask_token")
    raw = Raw(path=raw.path, tensors=tensors, sidecars=raw.sidecars)
    config = infer_config(raw, hints)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config), tensors),
        extras=extras,
        preprocess=preset("dinov2", config.image_size, config.channels),
        origin=Origin(format="dinov2"),
        notes=assumed_heads(config, hints),
    )


def infer_config(raw: Raw, hints: Hints) -> ViTConfig:
    width, channels, rows, columns = raw.shape("patch_embed.proj.weight", 4)
    depth = count_layers(raw.tensors, r"blocks\.(\d+)\.")
    image_size, _ = infer_image_size(raw.shape("pos_embed", 3)[1], (1,), (rows, columns), hints)
    registers = optional_size(raw, "register_tokens", axis=1) or 0
    return ViTConfig(
        image_size=image_size,
        patch_size=(rows, columns),
        channels=channels,
        width=width,
        depth=depth,
        heads=infer_heads(width, depth, hints),
        mlp_width=raw.shape("blocks.0.mlp.fc1.weight", 2)[0],
        num_classes=0,
        registers=registers,
        pooling=hints.pooling or "cls",
        block=infer_block(raw, hints),
        positions=PositionConfig(resample="timm" if registers else "dinov2"),  # antialiased since the registers came
    )


def split_mask_token(tensors: dict[str, Tensor], name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The token of DINOv2's pre-training, which no forward pass of ours reads, apart; zeros are its default."""
    rest = {key: tensor for key, tensor in tensors.items() if key != name}
    token = tensors.get(name)
    return rest, {} if token is None or not token.any() else {"mask_token": token}


def mask_token(checkpoint: Checkpoint) -> Tensor:
    """The mask token that the origin had, or its first value."""
    class_token = checkpoint.tensors["embed.class_token"]
    return checkpoint.extras.get("mask_token", class_token.new_zeros(1, class_token.shape[-1]))


def backbone_refusals(config: ViTConfig) -> list[str]:
    """Why DINOv2's backbone, in either of its formats, cannot hold a model."""
    block = config.block
    reasons = [
        (block.layer_scale is None, "it always has layer scale"),
        (block.qk_norm, "it has no qk-norm"),
        (config.num_classes > 0, "it is a backbone without a head"),
        (config.representation is not None, "it has no representation layer"),
        (config.pooling != "cls", "it pools the [cls] token"),
        (config.stem.kind == "resnet", "it has no ResNet stem"),
    ]
    return [*position_refusals(config, covers="class"), *(reason for holds, reason in reasons if holds)]


def refusals(config: ViTConfig) -> list[str]:
    return [*common_refusals(config, activation=ACTIVATION, norm_eps=NORM_EPS), *backbone_refusals(config)]


def write(checkpoint: Checkpoint, path: Path) -> None:
    tensors = write_tensors(key_table(checkpoint.config), checkpoint.tensors)
    write_pickle(path, {**tensors, "mask_token": mask_token(checkpoint)})

"""google-research/vision_transformer: `.npz` files of ViTs and of ResNet hybrids."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.model import BlockConfig, PatchStem, PositionConfig, ResNetStem, ViTConfig
from vitrail.model.config import Stem
from vitrail.weights import flax
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, activations, anything, epsilon, positions, resnet_stem
from vitrail.weights.infer import Hints, Raw, count_units, infer_image_size
from vitrail.weights.keys import HWIO, SAME, Form, Rule, read_tensors, rule, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_npz

ACTIVATION, NORM_EPS = "gelu_tanh", 1e-6
GROUP_NORM_4D = Form(lambda theirs: theirs[0].flatten(), lambda ours: (ours.view(1, 1, 1, -1),))  # early releases


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    prefix = flax.find_prefix(tensors)
    return prefix is not None and flax.is_original(tensors, prefix)


def key_table(config: ViTConfig, dialect: dict[str, str]) -> list[Rule]:
    numbering = dialect.get("numbering", flax.RELEASED)
    rules = [
        *_stem_rules(config.stem, dialect),
        *flax.convolution("embed.patches", "embedding"),
        *flax.norm("norm", "Transformer/encoder_norm"),
    ]
    if config.positions.kind == "learned":
        rules.append(rule("embed.positions", flax.POSITIONS))
    for index in range(config.depth):
        rules += flax.block(config, index, numbering)
    if config.class_token:
        rules.append(rule("embed.class_token", "cls"))
    if config.representation:
        rules += flax.dense("representation", "pre_logits")
    if config.num_classes:
        rules += flax.dense("head", "head")
    return rules


def _stem_rules(stem: Stem, dialect: dict[str, str]) -> list[Rule]:
    if not isinstance(stem, ResNetStem):
        return []

    form = GROUP_NORM_4D if dialect.get("group_norm") == "4d" else SAME

    def norm(ours: str, theirs: str) -> list[Rule]:
        parts = (("weight", "scale"), ("bias", "bias"))
        return [rule(f"{ours}.{part}", f"{theirs}/{name}", form=form) for part, name in parts]

    rules = [rule("embed.stem.conv_root.weight", "conv_root/kernel", form=HWIO)]
    rules += norm("embed.stem.norm_root", "gn_root")
    for stage, count in enumerate(stem.blocks):
        for unit in range(count):
            ours, theirs = f"embed.stem.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
            for number in (1, 2, 3):
                rules.append(rule(f"{ours}.conv{number}.weight", f"{theirs}/conv{number}/kernel", form=HWIO))
                rules += norm(f"{ours}.norm{number}", f"{theirs}/gn{number}")
            if unit == 0:
                rules.append(rule(f"{ours}.conv_shortcut.weight", f"{theirs}/conv_proj/kernel", form=HWIO))
                rules += norm(f"{ours}.norm_shortcut", f"{theirs}/gn_proj")
    return rules


def read(raw: Raw, hints: Hints) -> Checkpoint:
    prefix, left_out = flax.strip_prefix(raw)
    dialect = {"prefix": prefix, "numbering": flax.numbering(raw.tensors)}
    if "gn_root/scale" in raw.tensors and raw.tensors["gn_root/scale"].ndim == 4:
        dialect["group_norm"] = "4d"
    config = infer_config(raw, hints, dialect["numbering"])
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, dialect), raw.tensors),
        preprocess=preset("google", config.image_size, config.channels),
        origin=Origin(format="google", dialect=dialect),
        notes=_assumed(config, hints),
        remarks=(*left_out, *flax.implied(hints)),
    )


def _assumed(config: ViTConfig, hints: Hints) -> tuple[str, ...]:
    """What the keys leave open."""
    notes: tuple[str, ...] = ()
    if config.positions.kind == "learned":
        notes += flax.assumed_square(config.image_size, config.stride, hints)
    elif hints.image_size is None:
        size = f"{config.image_size[0]}×{config.image_size[1]}"
        notes += (f"the file has no positions, so it fits any picture: assumed {size}; pass image_size for another",)
    if not config.class_token and hints.pooling is None:
        notes += ("the file does not state its pooling: assumed the mean, as it has no [cls] token",)
    return notes


def infer_config(raw: Raw, hints: Hints, numbering: str) -> ViTConfig:
    sizes = flax.infer_sizes(raw, numbering)
    stem = infer_stem(raw)
    class_token = "cls" in raw.tensors
    rows, columns = (side * stem.stride for side in sizes.patch_size)
    learned = flax.POSITIONS in raw.tensors
    if learned:
        positions = raw.shape(flax.POSITIONS, 3)[1]
        image_size, _ = infer_image_size(positions, (int(class_token),), (rows, columns), hints)
    else:  # trained without positions, so for any size: 224, or the next size of whole patches
        image_size = hints.image_size or (max(224 // rows, 1) * rows, max(224 // columns, 1) * columns)
    return ViTConfig(
        image_size=image_size,
        patch_size=sizes.patch_size,
        channels=raw.shape("conv_root/kernel", 4)[2] if stem.kind == "resnet" else sizes.channels,
        width=sizes.width,
        depth=sizes.depth,
        heads=sizes.heads,
        mlp_width=sizes.mlp_width,
        num_classes=sizes.num_classes,
        class_token=class_token,
        pooling=hints.pooling or ("cls" if class_token else "mean"),
        representation=sizes.representation,
        block=BlockConfig(
            activation=hints.activation or ACTIVATION,
            norm_eps=hints.norm_eps or NORM_EPS,
            attention_scale=hints.attention_scale,
        ),
        positions=PositionConfig(kind="learned" if learned else "none", resample="google"),
        stem=stem,
    )


def infer_stem(raw: Raw) -> Stem:
    """The hybrid's ResNet, from how many units each block has."""
    if "conv_root/kernel" not in raw.tensors:
        return PatchStem()
    blocks = count_units(raw.tensors, r"block(\d+)/unit(\d+)/")
    return ResNetStem(blocks=blocks, width_factor=raw.shape("conv_root/kernel", 4)[3] / 64)


def _pooling(value: str, config: ViTConfig) -> str:
    if value not in ("cls", "mean"):
        return "it has no attention pooling (big_vision has)"
    return "it has a [cls] token only to pool it" if value == "mean" and config.class_token else ""


HOLDS: Holds = {
    **COMMON,
    **positions("learned", "none", covers="class"),
    **resnet_stem(ResNetStem(), "its ResNet has 32 groups, epsilon 1e-6 and divides weights by their std + 1e-5"),
    "class_token": anything,
    "pooling": _pooling,
    "representation": anything,
    "block.activation": activations(ACTIVATION),
    "block.norm_eps": epsilon(NORM_EPS),
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    dialect = checkpoint.origin.dialect if checkpoint.origin.format == "google" else {}
    tensors = write_tensors(key_table(checkpoint.config, dialect), checkpoint.tensors)
    prefix = dialect.get("prefix", "")
    write_npz(path, {prefix + name: tensor for name, tensor in tensors.items()})


FORMAT = ForeignFormat(
    name="google",
    suffixes=(".npz",),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
    family="google",
)

"""google-research/vision_transformer: `.npz` files of ViTs and of ResNet hybrids."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.model import PatchStem, ResNetStem, ViTConfig
from vitrail.model.config import Stem
from vitrail.weights import flax
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import ForeignFormat, Holds, positions, resnet_stem
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.keys import HWIO, SAME, Form, Rule, read_tensors, rule, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_npz

GROUP_NORM_4D = Form(lambda theirs: theirs[0].flatten(), lambda ours: (ours.view(1, 1, 1, -1),))  # early releases


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    prefix = flax.find_prefix(tensors)
    return prefix is not None and flax.is_original(tensors, prefix)


def key_table(config: ViTConfig, dialect: Mapping[str, str]) -> list[Rule]:
    numbering = dialect.get("numbering", "joint")  # of the released files
    return [*_stem_rules(config.stem, dialect), *flax.key_table(config, numbering, flax.POSITIONS)]


def _stem_rules(stem: Stem, dialect: Mapping[str, str]) -> list[Rule]:
    if not isinstance(stem, ResNetStem):
        return []

    form = GROUP_NORM_4D if dialect.get("group_norm") == "4d" else SAME

    def norm(ours: str, theirs: str) -> list[Rule]:
        return [rule(each.ours, *each.theirs, form=form) for each in flax.norm(ours, theirs)]

    rules = [rule("embed.stem.conv_root.weight", flax.ROOT, form=HWIO)]
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
    numbering = flax.numbering(raw.tensors)
    dialect = {"prefix": prefix, "numbering": numbering}
    if "gn_root/scale" in raw.tensors and raw.tensors["gn_root/scale"].ndim == 4:
        dialect["group_norm"] = "4d"
    stem = infer_stem(raw)
    config = flax.infer_config(raw, hints, numbering, flax.POSITIONS, covers="class", unlearned="none", stem=stem)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, dialect), raw.tensors),
        preprocess=preset("google", config.image_size, config.channels),
        origin=Origin(format="google", dialect=dialect),
        notes=_assumed(config, hints),
        remarks=(*left_out, *flax.implied(hints)),
    )


def infer_stem(raw: Raw) -> Stem:
    """The hybrid's ResNet, from how many units each block has."""
    if flax.ROOT not in raw.tensors:
        return PatchStem()
    return ResNetStem(blocks=raw.count_units(r"block(\d+)/unit(\d+)/"), width_factor=raw.shape(flax.ROOT, 4)[3] / 64)


def _assumed(config: ViTConfig, hints: Hints) -> tuple[str, ...]:
    """What the keys leave open."""
    notes: tuple[str, ...] = ()
    if config.positions.kind == "learned":
        notes += flax.assumed_square(config, hints)
    elif hints.image_size is None:
        size = f"{config.image_size[0]}×{config.image_size[1]}"
        notes += (f"the file has no positions, so it fits any picture: assumed {size}; pass image_size for another",)
    if not config.class_token and hints.pooling is None:
        notes += ("the file does not state its pooling: assumed the mean, as it has no [cls] token",)
    return notes


HOLDS: Holds = {
    **flax.HOLDS,
    **positions("learned", "none", covers="class"),
    **resnet_stem(ResNetStem(), "its ResNet has 32 groups, epsilon 1e-6 and divides weights by their std + 1e-5"),
    "pooling": flax.pooling("cls", "mean", reason="it has no attention pooling (big_vision has)"),
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    dialect = checkpoint.origin.dialect_of("google")
    tensors = write_tensors(key_table(checkpoint.config, dialect), checkpoint.tensors)
    write_npz(path, {dialect.get("prefix", "") + name: tensor for name, tensor in tensors.items()})


FORMAT = ForeignFormat(
    name="google",
    suffixes=(".npz",),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
    family="google",
)

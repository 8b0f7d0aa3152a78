"""google-research/vision_transformer: `.npz` files of ViTs and of ResNet hybrids."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.model import PatchStem, ResNetStem, ViTConfig
from vitrail.model.parts import Stem
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import flax
from vitrail.weights.formats import ForeignFormat, Holds, positions, resnet_stem
from vitrail.weights.infer import Hints, Raw
from vitrail.weights.keys import SAME, Form, Rule, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_npz

GROUP_NORM_4D = Form(lambda theirs: theirs[0].flatten(), lambda ours: (ours.view(1, 1, 1, -1),))  # early releases
# The layers of a hybrid's bottleneck → Google's.
UNIT = {
    **{f"conv{number}": f"conv{number}" for number in (1, 2, 3)},
    **{f"norm{number}": f"gn{number}" for number in (1, 2, 3)},
    "conv_shortcut": "conv_proj",
    "norm_shortcut": "gn_proj",
}


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    prefix = flax.find_prefix(tensors)
    return prefix is not None and flax.is_original(tensors, prefix)


def key_table(config: ViTConfig, dialect: Mapping[str, str]) -> list[Rule]:
    names = dict(flax.names_of(dialect.get("numbering", "joint"), flax.POSITIONS))  # released files number jointly
    names |= {"embed.stem.conv_root": "conv_root", "embed.stem.norm_root": "gn_root"}
    for stage, count in enumerate(config.stem.blocks if isinstance(config.stem, ResNetStem) else ()):
        for unit in range(count):
            names |= under(f"embed.stem.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}/", UNIT)
    return flax.key_table(config, names, GROUP_NORM_4D if dialect.get("group_norm") == "4d" else SAME)


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

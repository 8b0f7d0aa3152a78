"""google-deepmind/tips: `.npz` files of TIPS and TIPSv2, whose picture encoder is a DINOv2 with one register."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.foreign import dinov2
from vitrail.weights.formats import ForeignFormat, Holds, only
from vitrail.weights.infer import Hints, Raw, assumed_heads
from vitrail.weights.keys import read_tensors, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_npz

HEAD_SIZES = {1152: 72}  # width → features of a head; otherwise 64


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return dinov2.is_backbone(tensors) and dinov2.count_registers(tensors) == 1


def read(raw: Raw, hints: Hints) -> Checkpoint:
    tensors, extras = dinov2.split_mask_token(raw.tensors, "mask_token")
    head_size = HEAD_SIZES.get(raw.shape("patch_embed.proj.weight", 4)[0], 64)
    config = dinov2.infer_config(replace(raw, tensors=tensors), hints, head_size)
    unlike = "it has one register, as no DINOv2 has: assumed a TIPS, whose pictures have no mean and std"
    return Checkpoint(
        config=config,
        tensors=read_tensors(dinov2.key_table(config), tensors),
        extras=extras,
        preprocess=preset("tips", config.image_size, config.channels),
        origin=Origin(format="tips"),
        notes=(*assumed_heads(config, hints, "every TIPS"), *(() if raw.path.suffix == ".npz" else (unlike,))),
    )


HOLDS: Holds = {**dinov2.HOLDS, "registers": only(1, reason="it has one register")}


def write(checkpoint: Checkpoint, path: Path) -> None:
    tensors = write_tensors(dinov2.key_table(checkpoint.config), checkpoint.tensors)
    write_npz(path, {**tensors, "mask_token": dinov2.mask_token(checkpoint)})


FORMAT = ForeignFormat(
    name="tips",
    suffixes=(".npz",),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
    family="tips",
)

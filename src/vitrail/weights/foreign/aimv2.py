"""apple/ml-aim: `.safetensors` files of AIMv2's picture encoders, with RMSNorm and without biases."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vitrail.data.preprocess import preset
from vitrail.errors import WeightsError
from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.weights import infer, keys
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, activations, computes, only, positions
from vitrail.weights.infer import Hints, Raw, assumed, assumed_heads
from vitrail.weights.keys import Names, Rule, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_safetensors

BLOCK = BlockConfig(norm="rms", norm_eps=1e-5, qkv_bias=False, proj_bias=False, mlp="swiglu")
# Our modules → AIMv2's.
NAMES: Names = {
    "embed.positions": "preprocessor.pos_embed",
    "embed.patches": "preprocessor.patchifier.proj",
    "embed.patch_norm": "preprocessor.patchifier.norm",
    **under(
        "blocks.{}",
        "trunk.blocks.{}.",
        {
            "norm1": "norm_1",
            "attention.qkv": "attn.qkv",
            "attention.proj": "attn.proj",
            "norm2": "norm_2",
            "mlp.gate": "mlp.fc1",
            "mlp.up": "mlp.fc3",
            "mlp.down": "mlp.fc2",
        },
    ),
    "norm": "trunk.post_trunk_norm",
}


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return {"preprocessor.patchifier.proj.weight", "trunk.blocks.0.mlp.fc3.weight"} <= tensors.keys()


def key_table(config: ViTConfig) -> list[Rule]:
    return keys.key_table(config, NAMES)


def read(raw: Raw, hints: Hints) -> Checkpoint:
    if "preprocessor.pos_embed" not in raw.tensors:
        raise WeightsError(
            "it has no learned positions: the native AIMv2 computes sines and cosines of its own, which our model does "
            "not have; use one for pictures of 224, 336 or 448 pixels."
        )
    config = infer_config(raw, hints)
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config), raw.tensors),
        preprocess=preset("clip", config.image_size, config.channels),
        origin=Origin(format="aimv2"),
        notes=(
            *assumed_heads(config, hints, "every AIMv2, with 128 features each"),
            *assumed("pooling", "the mean of the patches", "pooling", hints.pooling),
        ),
    )


def infer_config(raw: Raw, hints: Hints) -> ViTConfig:
    learned = PositionConfig(covers="patches", resample="timm")
    return infer.infer_config(raw, hints, NAMES, block=BLOCK, positions=learned, head_size=128)


HOLDS: Holds = {
    **COMMON,
    **positions("learned", covers="patches"),
    **computes(BLOCK),
    "num_classes": only(0, reason="it is a backbone without a head"),
    "class_token": only(False, reason="it has no [cls] token"),
    "pooling": only("mean", reason="it has no layers that pool"),
    "patch_norm": only(True, reason="a norm follows its patch projection"),
    "block.norm": only("rms", reason="its norms are RMSNorms"),
    "block.mlp": only("swiglu", reason="its MLPs are gated"),
    "block.activation": activations("gelu", "gelu_tanh", "quick_gelu"),  # of which its gated MLPs use none
    "block.qkv_bias": only(False, reason="its blocks have no biases"),
    "block.proj_bias": only(False, reason="its blocks have no biases"),
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    write_safetensors(path, write_tensors(key_table(checkpoint.config), checkpoint.tensors), {"format": "pt"})


FORMAT = ForeignFormat(
    name="aimv2",
    suffixes=(".safetensors",),
    holds=lambda config: HOLDS,
    write=write,
    recognises=recognises,
    read=read,
    family="clip",
)

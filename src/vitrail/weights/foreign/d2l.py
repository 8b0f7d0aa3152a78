"""The ViT of "Dive into Deep Learning" (chapter "Transformers for Vision"): its state dict, in a `.params` file."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vitrail.data.preprocess import Preprocess, preset
from vitrail.model import BlockConfig, PositionConfig, ViTConfig
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats import COMMON, ForeignFormat, Holds, anything, computes, positions
from vitrail.weights.infer import Hints, Raw, assumed_heads, infer_config
from vitrail.weights.keys import Names, key_table, read_tensors, under, write_tensors
from vitrail.weights.metadata import Origin
from vitrail.weights.tensor_files import write_pickle

BLOCK = BlockConfig(activation="gelu", norm_eps=1e-5)  # what the book computes
WIDTH, DEPTH, HEADS = 512, 2, 8  # of the model that the chapter trains
# Our modules → the book's.
NAMES: Names = {
    "embed.class_token": "cls_token",
    "embed.positions": "pos_embedding",
    "embed.patches": "patch_embedding.conv",
    **under(
        "blocks.{}",
        "blks.{}.",
        {
            "norm1": "ln1",
            "attention.qkv": ("attention.W_q", "attention.W_k", "attention.W_v"),
            "attention.proj": "attention.W_o",
            "norm2": "ln2",
            "mlp.fc1": "mlp.dense1",
            "mlp.fc2": "mlp.dense2",
        },
    ),
    "norm": "head.0",
    "head": "head.1",
}
PREPROCESS = "the file does not state its preprocessing: assumed the book's own (squashed, pixels from 0 to 1)"


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return {"patch_embedding.conv.weight", "blks.0.attention.W_q.weight"} <= tensors.keys()


def read(raw: Raw, hints: Hints) -> Checkpoint:
    shape = raw.shape("cls_token", 3)[2], raw.count_layers(r"blks\.(\d+)\.")
    known, like = hints, "the published model of its width and depth"
    if hints.heads is None and shape == (WIDTH, DEPTH):
        known, like = replace(hints, heads=HEADS), "the book's model"
    config = infer_config(raw, known, NAMES, block=BLOCK, positions=PositionConfig())
    return Checkpoint(
        config=config,
        tensors=read_tensors(key_table(config, NAMES), raw.tensors),
        preprocess=unscaled(config),
        origin=Origin(format="d2l"),
        notes=(*assumed_heads(config, hints, like), PREPROCESS),
    )


def unscaled(config: ViTConfig) -> Preprocess:
    """Torchvision's `Resize` and `ToTensor`, without `Normalize`."""
    spec = preset("google", config.image_size, config.channels)
    plain = {"mean": (0.0,) * config.channels, "std": (1.0,) * config.channels}
    return replace(spec, **plain, antialias=True, kernel="pillow")


def _biases(value: bool, config: ViTConfig) -> str:
    same = value == config.block.qkv_bias
    return "" if same else "all layers of its attention have biases, or none has"


HOLDS: Holds = {
    **COMMON,
    **positions("learned", covers="class"),
    "num_classes": lambda value, config: "" if value else "it always has a head",
    "block.qkv_bias": anything,
    "block.proj_bias": _biases,
    "block.mlp_bias": lambda value, config: "" if config.block.mlp_has_bias else "the layers of its MLP have biases",
    **computes(BLOCK),
}


def write(checkpoint: Checkpoint, path: Path) -> None:
    write_pickle(path, write_tensors(key_table(checkpoint.config, NAMES), checkpoint.tensors))


def how_to_load(checkpoint: Checkpoint, path: Path) -> str:
    config = checkpoint.config
    sizes = f"{config.image_size}, {config.patch_size}, {config.width}, {config.hidden_width}, {config.heads}"
    arguments = f"{sizes}, {config.depth}, 0.1, 0.1, use_bias={config.block.qkv_bias}, num_classes={config.num_classes}"
    batch = (1, config.channels, *config.image_size)  # gives its lazy layers their sizes
    load = f'model(torch.zeros{batch}); model.load_state_dict(torch.load("{path}"))'
    return f"model = ViT({arguments}); {load}"


FORMAT = ForeignFormat(
    name="d2l",
    suffixes=(".params", ".pt"),
    holds=lambda config: HOLDS,
    write=write,
    how_to_load=how_to_load,
    resamples=lambda config: False,
    recognises=recognises,
    read=read,
)

"""The decoders of masked autoencoders, as facebookresearch/mae and transformers store them beside the encoder.

They are no part of the model: they go into a checkpoint's extras, with which `vitrail pretrain` continues.
"""

import re
from collections.abc import Mapping
from math import isqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.model import ViTConfig
from vitrail.model.mae_decoder import EXTRAS, HEAD_SIZE, Decoder, DecoderConfig
from vitrail.model.positions import sincos_positions
from vitrail.weights.keys import Names, read_tensors, rule_of, under

KEPT = "the decoder of masked pictures is kept beside the model, for pre-training"
OTHERS = {"embed": "decoder_embed", "norm": "decoder_norm", "predict": "decoder_pred", "mask_token": "mask_token"}


class DecoderNames(NamedTuple):
    """What a library calls the parts of a decoder."""

    prefix: str
    names: Names  # our modules → theirs


def spell(prefix: str, blocks: str, block: Names) -> DecoderNames:
    """The names in a library with these names of blocks, which end with a dot, and of the modules in them."""
    others = {ours: prefix + theirs for ours, theirs in OTHERS.items()}
    return DecoderNames(prefix, {**others, **under("blocks.{}", prefix + blocks, block)})


def read_decoder(
    tensors: Mapping[str, Tensor], theirs: DecoderNames, settings: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """A decoder as the extras of a checkpoint; nothing if it is not the paper's.

    `settings` may say how many heads it has.
    """
    prefix = theirs.prefix
    pattern = re.escape(prefix) + r"(decoder_|mask_token$)"
    own = {name: tensor for name, tensor in tensors.items() if re.match(pattern, name)}
    positions = own.pop(f"{prefix}decoder_pos_embed", None)
    token, embed = own.get(f"{prefix}mask_token"), own.get(f"{prefix}decoder_embed.weight")
    if positions is None or token is None or embed is None or embed.ndim != 2:
        return {}
    width = token.shape[-1]
    heads = (settings or {}).get("decoder_num_attention_heads", width // HEAD_SIZE)
    if heads * HEAD_SIZE != width or not _follow_from_grid(positions, width):
        return {}
    depth = len({found[1] for name in own if (found := re.search(r"decoder_[a-z.]*?(\d+)\.", name))})
    encoder = ViTConfig(width=embed.shape[1], heads=1, num_classes=0)
    try:
        with torch.device("meta"):
            decoder = Decoder(encoder, DecoderConfig(width=width, depth=depth))
        rules = [rule for name in decoder.state_dict() if (rule := rule_of(name, theirs.names)) is not None]
        return {EXTRAS + name: tensor for name, tensor in read_tensors(rules, own).items()}
    except VitrailError:  # other keys than the paper's: what computes something else is not read
        return {}


def _follow_from_grid(positions: Tensor, width: int) -> bool:
    """Whether positions are the paper's: zeros for [cls], then sines and cosines of a square grid."""
    side = isqrt(max(positions.shape[1] - 1, 0))
    if positions.shape != (1, side * side + 1, width):
        return False
    usual = sincos_positions((side, side), width, torch.zeros(1), endpoint=False)
    return torch.allclose(positions[:, 1:].float(), usual, atol=1e-4) and not positions[:, :1].any()

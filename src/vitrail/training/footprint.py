"""A training step on paper: the bytes that one rank holds for it, and those that it sends to the others.

Weights, gradients and the optimiser's moments are float32, also with bf16, which is autocast: what is computed in bf16
are the products, from copies of the matrices that live from the forward to the backward pass. `benchmarks/scale.py`
compares all of this with what processes really hold and send.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from vitrail.errors import ConfigError
from vitrail.model import ViT, ViTConfig
from vitrail.training.config import Optim
from vitrail.training.optim import group_parameters

FULL = 4  # bytes of a float32
MOMENTS = {"adamw": 2, "sgd": 1, "muon": 1}  # numbers that an optimiser keeps for each weight
MLP_KEEPS = {"plain": 2, "swiglu": 4}  # hidden vectors of a token that the backward pass needs
BLOCKS_AT_ONCE = 4  # FSDP's backward pass: a block's weights, those fetched ahead, its gradient, and that being sent


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one rank, the fullest of all."""

    parameters: int
    gradients: int
    optimizer: int
    average: int  # the moving average of the weights
    copies: int  # of the matrices, in bf16
    gathered: int  # with FSDP: blocks that are whole for a moment, and what is outside the blocks
    activations: int  # what the backward pass needs of the forward pass
    sent: int  # to other ranks, in one step; not part of the total

    @property
    def state(self) -> int:
        """What stays from step to step, with the gradients."""
        return self.parameters + self.gradients + self.optimizer + self.average

    @property
    def total(self) -> int:
        return self.state + self.copies + self.gathered + self.activations


def estimate_footprint(
    config: ViTConfig,
    *,
    pictures: int,
    ranks: int = 1,
    strategy: str = "ddp",
    precision: str = "bf16",
    recompute: bool = False,
    optim: Optim | None = None,
) -> Footprint:
    """What a step needs on each rank, if all weights are trained and without dropout.

    Args:
        config: the model.
        pictures: of one rank's micro-batch; on a GPU, by default, its part of the batch.
        ranks: processes that train together.
        strategy: "ddp" or "fsdp".
        precision: "bf16" or "float32".
        recompute: whether activations are computed again in the backward pass.
        optim: the optimiser, and whether weights are averaged [default: AdamW, and no average].
    """
    _check(pictures=pictures, ranks=ranks, strategy=strategy, precision=precision)
    optim = optim or Optim()
    with torch.device("meta"):
        model = ViT(config)
    shards = ranks if strategy == "fsdp" else 1
    weights = _share(list(model.parameters()), shards)
    moments = sum(
        MOMENTS[group.kind] * _share(group.parameters, shards) for group in group_parameters(model, optim, config.depth)
    )
    return Footprint(
        parameters=FULL * weights,
        gradients=FULL * weights,
        optimizer=FULL * moments,
        average=FULL * weights if optim.ema is not None else 0,
        copies=_copied(model) if precision == "bf16" else 0,
        gathered=_gathered(model) if shards > 1 else 0,
        activations=pictures * _kept(config, 2 if precision == "bf16" else FULL, recompute=recompute),
        sent=_sent(model, ranks, strategy),
    )


def _check(*, pictures: int, ranks: int, strategy: str, precision: str) -> None:
    if pictures < 1 or ranks < 1:
        raise ConfigError(f"pictures and ranks must be at least 1; got {pictures} and {ranks}.")
    if strategy not in ("ddp", "fsdp"):
        raise ConfigError(f'strategy must be "ddp" or "fsdp"; got {strategy!r}.')
    if precision not in ("bf16", "float32"):
        raise ConfigError(f'precision must be "bf16" or "float32"; got {precision!r}.')


def _share(parameters: list[nn.Parameter], shards: int) -> int:
    """Weights of the fullest rank: FSDP2 divides each tensor by its rows, and the first rank never has fewer."""
    return sum(math.ceil(each.shape[0] / shards) * (each.numel() // each.shape[0]) for each in parameters)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _copied(model: ViT) -> int:
    """Bytes of the bf16 copies: autocast keeps them until the forward pass ends, and autograd beyond that.

    When blocks are computed again, autograd does not keep them; at the end of the forward pass they are all there.
    """
    return 2 * sum(each.numel() for each in model.parameters() if each.ndim in (2, 4))


def _gathered(model: ViT) -> int:
    """Bytes that are whole on every rank at the fullest moment of FSDP's backward pass."""
    blocks = _count(model.blocks)
    return FULL * (_count(model) - blocks + BLOCKS_AT_ONCE * blocks // model.config.depth)


def _kept(config: ViTConfig, half: int, *, recompute: bool) -> int:
    """Bytes of one picture between the forward and the backward pass."""
    *entering, last = config.block_tokens[: config.depth]
    read = (
        config.summary_tokens if config.pooling == "cls" else last
    )  # the other tokens of the last block are never read
    blocks = [_attending(config, tokens, half) + _answering(config, tokens, half) for tokens in entering]
    blocks.append(_attending(config, last, half) + _answering(config, read, half))
    pixels = config.channels * math.prod(config.image_size)
    picture = pixels * (FULL + (half if half != FULL else 0))  # the batch itself, and its copy in bf16
    outside = picture + _pooling(config, last, half)
    if recompute:
        return outside + FULL * config.width * sum((*entering, last)) + max(blocks)
    return outside + sum(blocks)


def _attending(config: ViTConfig, tokens: int, half: int) -> int:
    """What a block keeps of all tokens: the stream, normalised (one vector); queries, keys, values (three).

    Queries and keys that are rotated are kept beside what they were.
    """
    rotated = 2 if config.relative.kind == "rope" else 0
    return tokens * (config.width * (FULL + half) + config.heads_width * (3 + rotated) * half + 2 * FULL)


def _answering(config: ViTConfig, tokens: int, half: int) -> int:
    """What it keeps of the tokens that it gives: the heads' outputs, the stream, normalised, and inside the MLP."""
    hidden = MLP_KEEPS[config.block.mlp] * config.hidden_width
    if config.block.mlp == "swiglu" and half != FULL:  # two matrices read it, each from a bf16 copy of its own
        hidden += config.width
    scaled = 2 * config.width if config.block.layer_scale is not None else 0
    statistics = FULL * (2 + config.heads)  # of LayerNorm and of softmax
    return tokens * (config.width * (FULL + half) + (config.heads_width + hidden + scaled) * half + statistics)


def _pooling(config: ViTConfig, tokens: int, half: int) -> int:
    """What the end of the model keeps of all tokens: the stream; attention pooling also normalised, keys and values."""
    if config.pooling == "cls":
        return 0
    vectors = {"mean": FULL if config.pool_norm == "before" else 0, "map": FULL + 3 * half}
    return tokens * config.width * vectors[config.pooling]


def _sent(model: ViT, ranks: int, strategy: str) -> int:
    """Bytes that each rank sends for a step in rings, each of which sends (n - 1) / n of the weights.

    DDP adds up the gradients: two rings. FSDP collects the weights for each pass, and sends the parts of the gradient
    where they belong: three, of which two for what is outside the blocks, since it stays collected in between.
    """
    weights, blocks = _count(model), _count(model.blocks)
    rings = 2 * weights if strategy == "ddp" else 3 * blocks + 2 * (weights - blocks)
    return FULL * rings * (ranks - 1) // ranks

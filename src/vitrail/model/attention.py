"""Multi-head self-attention: softmax(Q Kᵀ / √K) V, for all heads at once."""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.model.config import ViTConfig
from vitrail.model.linear import Linear, linear
from vitrail.model.relative import Relation
from vitrail.schema import validate


@dataclass(frozen=True, kw_only=True)
class AttentionQuery:
    """Which attention probabilities to look at; `None` means all. Negative layers and heads count from the end."""

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    queries: Literal["class"] | tuple[int, ...] | None = None  # rows: which tokens attend. "class" is the [cls] token

    def __post_init__(self) -> None:
        validate(self)


class Mix(Protocol):
    """How queries, keys and values (B, H, N, K) become the heads' outputs: softmax(Q Kᵀ · scale) V.

    The signature is that of the fused kernel, which is the default and never stores the (N, N) probabilities. Whoever
    wants to see or change them passes a `mix` of their own; the model has no hooks and no switch for it, so two threads
    may explain and predict with one model at once.
    """

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, /, *, scale: float
    ) -> Tensor: ...


class LayerMix(Protocol):
    """A `Mix` for every layer, by its number. Layers count from 0; attention pooling is one more, after the last."""

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dropout: float,
        /,
        *,
        scale: float,
    ) -> Tensor: ...


SHORT = 1024  # tokens up to which all probabilities may be stored
NOTHING = Relation()


def fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0, /, *, scale: float
) -> Tensor:
    """Torch's kernel; but its gradients in bf16 take a CPU up to nine times as long as those of plain products."""
    slow = query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.requires_grad
    if not slow or mask is not None or dropout or key.shape[2] > SHORT:
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scale)
    return (query * scale @ key.transpose(-2, -1)).softmax(dim=-1) @ value


class RmsNorm(nn.RMSNorm):
    """Torch's, which does not accept what autocast has made smaller."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def build_norm(config: ViTConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """A norm of the kind that the model has everywhere, over its width or another one."""
    kind = RmsNorm if config.block.norm == "rms" else nn.LayerNorm
    return kind(width or config.width, eps=config.block.norm_eps)


class KeylessLinear(Linear):
    """Queries, keys and values, of which the keys have no bias: theirs is zero, and training leaves it so."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name is torch's)
        if not self.training:
            return super().forward(input)
        query, key, value = self.bias.chunk(3)
        return linear(input, self.weight, torch.cat([query, torch.zeros_like(key), value]))


class Attention(nn.Module):
    """Every token attends to every other one."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.scale = config.block.attention_scale or config.head_size**-0.5
        self.dropout_rate = config.rates.attention
        projection = Linear if config.block.key_bias else KeylessLinear
        self.qkv = projection(config.width, 3 * config.heads_width, bias=config.block.qkv_bias)
        self.query_norm = build_norm(config, config.head_size) if config.block.qk_norm else None
        self.key_norm = build_norm(config, config.head_size) if config.block.qk_norm else None
        self.norm = build_norm(config, config.heads_width) if config.block.attention_norm else None
        self.proj = Linear(config.heads_width, config.width, bias=config.block.proj_bias)

    def forward(
        self,
        tokens: Tensor,  # (B, N, D)
        mask: Tensor | None = None,
        keep: int | None = None,
        mix: Mix = fused,
        relation: Relation = NOTHING,
    ) -> Tensor:
        """Attend; with `keep`, only the first few tokens are computed.

        `mask` broadcasts to (B, H, N, N): True where a query may look at a key, or numbers to add to the scores.
        """
        query, key, value = self.split(tokens)  # each (B, H, N, K)
        dropout = self.dropout_rate if self.training else 0.0
        query, key, mask = relate(query[:, :, :keep], key, mask, relation)
        mixed = mix(query, key, value, mask, dropout, scale=self.scale)
        return self.join(mixed)

    def join(self, mixed: Tensor) -> Tensor:  # (B, H, N, K) → (B, N, D)
        """The heads' outputs side by side, projected."""
        joined = mixed.transpose(1, 2).flatten(2)
        return self.proj(joined if self.norm is None else self.norm(joined))

    def split(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of each head."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, N, D) → (B, H, N, K)
            for part in self.qkv(tokens).chunk(3, dim=-1)
        )
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        return query, key, value


def relate(query: Tensor, key: Tensor, mask: Tensor | None, relation: Relation) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries (perhaps only the first few), keys and mask, after what relative positions do with them."""
    rotation, bias = relation
    if rotation is not None:
        query, key = rotation.turn(query), rotation.turn(key)
    if bias is not None:
        bias = bias[:, :, : query.shape[2]].to(query.dtype)
        if mask is None:
            mask = bias
        else:
            mask = torch.where(mask, bias, -torch.inf) if mask.dtype == torch.bool else mask + bias
    return query, key, mask


def probabilities(
    query: Tensor,
    key: Tensor,
    scale: float,
    mask: Tensor | None = None,
    *,
    heads: tuple[int, ...] | None = None,
    queries: tuple[int, ...] | None = None,
) -> Tensor:
    """Softmax(Q Kᵀ · scale) of the chosen heads and query rows: (B, heads, queries, N), each row sums to 1."""
    if heads is not None:
        chosen = [checked_index("head", head, query.shape[1]) for head in heads]
        query, key = query[:, chosen], key[:, chosen]
        mask = mask[:, chosen] if mask is not None and mask.shape[1] > 1 else mask
    if queries is not None:
        rows = [checked_index("query row", row, query.shape[2]) for row in queries]
        query = query[:, :, rows]
        mask = mask[:, :, rows] if mask is not None and mask.shape[2] > 1 else mask
    scores = query @ key.transpose(-2, -1)
    scores = scores if scale == 1.0 else scores * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))  # exact under autocast


def attention_mask(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """What attention takes for a mask over the tokens: (B, N) → (B, 1, 1, N), for all heads and queries.

    Padding (False) is never attended to. Where the mask is the tokens' sizes, a token of size s counts s times, because
    s · exp(score) = exp(score + log s).
    """
    if mask is None:
        return None
    return (mask if mask.dtype == torch.bool else mask.log().to(like.dtype))[:, None, None, :]


def checked_index(what: str, index: int, count: int) -> int:
    """An index that counts from the front, of one that may count from the end; an error if there is no such thing."""
    if not -count <= index < count:
        raise InputError(f"{what} must be between {-count} and {count - 1}; got {index}.")
    return index % count

"""One encoder block, the paper's equations 2 and 3: attention and MLP, each behind a LayerNorm and added back.

After the last block, pooling makes one vector of all tokens."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.attention import NOTHING, Attention, Mix, attention_mask, build_norm, fused
from vitrail.model.config import ViTConfig
from vitrail.model.linear import Linear
from vitrail.model.relative import Relation


class Block(nn.Module):
    """z′ = attention(norm(z)) + z, then z″ = mlp(norm(z′)) + z′."""

    def __init__(self, config: ViTConfig, path_rate: float = 0.0) -> None:
        super().__init__()
        scale = config.block.layer_scale
        self.norm1 = build_norm(config)
        self.attention = Attention(config)
        self.branch1 = Branch(config.width, config.rates.dropout, path_rate, scale)
        self.norm2 = build_norm(config)
        self.mlp = build_mlp(config)
        self.branch2 = Branch(config.width, config.rates.dropout, path_rate, scale)

    def forward(
        self,
        tokens: Tensor,  # (B, N, D)
        mask: Tensor | None = None,
        keep: int | None = None,
        mix: Mix = fused,
        merge: Callable[[Tensor], Tensor] | None = None,
        relation: Relation = NOTHING,
    ) -> Tensor:
        """All tokens, or only the first `keep`, which is all that the last block needs where [cls] is pooled.

        `merge` makes fewer tokens of those that attention gives, before the MLP. `relation` is what relative positions
        do in this block.
        """
        tokens = self.branch1(self.attention(self.norm1(tokens), mask, keep, mix, relation), tokens[:, :keep])
        if merge is not None:
            tokens = merge(tokens)
        return self.branch2(self.mlp(self.norm2(tokens)), tokens)


class FeedForward(nn.Module):
    """Every kind of MLP: each token by itself, through a wider space and back."""

    description: str  # for people


class Mlp(FeedForward):
    """Linear, GELU, Linear: the paper's."""

    description = "GELU"

    def __init__(self, config: ViTConfig, hidden_width: int | None = None) -> None:
        super().__init__()
        hidden_width = hidden_width or config.hidden_width
        self.fc1 = Linear(config.width, hidden_width, bias=config.block.mlp_has_bias)
        self.norm = build_norm(config, hidden_width) if config.block.mlp_norm else None
        self.fc2 = Linear(hidden_width, config.width, bias=config.block.mlp_has_bias)
        self.activation = ACTIVATIONS[config.block.activation]
        self.dropout_rate = config.rates.dropout

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = F.dropout(self.activation(self.fc1(tokens)), self.dropout_rate, self.training)
        return self.fc2(hidden if self.norm is None else self.norm(hidden))


def quick_gelu(hidden: Tensor) -> Tensor:
    """x · σ(1.702 x): OpenAI's approximation of GELU."""
    return hidden * torch.sigmoid(1.702 * hidden)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}


class SwiGlu(FeedForward):
    """W₃(silu(W₁ x) ⊙ W₂ x): the first projection decides how much of the second passes ("GLU Variants")."""

    description = "SwiGLU"

    def __init__(self, config: ViTConfig, hidden_width: int | None = None) -> None:
        super().__init__()
        hidden_width, bias = hidden_width or config.hidden_width, config.block.mlp_has_bias
        self.gate = Linear(config.width, hidden_width, bias=bias)
        self.up = Linear(config.width, hidden_width, bias=bias)
        self.norm = build_norm(config, hidden_width) if config.block.mlp_norm else None
        self.down = Linear(hidden_width, config.width, bias=bias)
        self.dropout_rate = config.rates.dropout

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = F.dropout(F.silu(self.gate(tokens)) * self.up(tokens), self.dropout_rate, self.training)
        return self.down(hidden if self.norm is None else self.norm(hidden))


# Kind, as in `BlockConfig.mlp` → its class.
MLPS: dict[str, type[Mlp] | type[SwiGlu]] = {"plain": Mlp, "swiglu": SwiGlu}


def build_mlp(config: ViTConfig, hidden_width: int | None = None) -> Mlp | SwiGlu:
    """The MLP of a block; attention pooling may have one of another width."""
    return MLPS[config.block.mlp](config, hidden_width)


class Branch(nn.Module):
    """The way back into the residual stream: layer scale, dropout and DropPath if configured, then the sum."""

    def __init__(self, width: int, dropout_rate: float, path_rate: float, layer_scale: float | None) -> None:
        super().__init__()
        self.dropout_rate = dropout_rate
        self.path_rate = path_rate
        self.scale_init = layer_scale or 0.0
        self.scale = None if layer_scale is None else nn.Parameter(torch.empty(width))

    def forward(self, branch: Tensor, stream: Tensor) -> Tensor:
        if self.scale is not None:
            branch = branch * self.scale
        if self.training:
            branch = F.dropout(branch, self.dropout_rate)
            branch = drop_path(branch, self.path_rate)
        return stream + branch


def drop_path(branch: Tensor, rate: float) -> Tensor:
    """Zero the whole branch of a random share of the samples, and scale the others so that the mean stays the same."""
    if rate == 0.0:
        return branch
    shape = (branch.shape[0],) + (1,) * (branch.ndim - 1)
    kept = torch.rand(shape, device=branch.device) >= rate
    return branch * (kept / (1.0 - rate)).to(branch.dtype)


class Pool(nn.Module):
    """The [cls] token (or several side by side), or the mean of the patches.

    With sizes for a mask, a token counts for all patches in it.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.kind, self.count, self.skipped = config.pooling, config.summary_tokens, config.pool_skips

    def forward(self, tokens: Tensor, mask: Tensor | None = None, mix: Mix = fused) -> Tensor:  # (B, N, D) → (B, D)
        if self.kind == "cls":
            return tokens[:, : self.count].flatten(1)
        patches = tokens[:, self.skipped :]
        if mask is None:
            return patches.mean(dim=1)
        real = mask[:, self.skipped :, None].to(tokens.dtype)  # (B, h·w, 1)
        return (patches * real).sum(dim=1) / real.sum(dim=1)


class AttentionPool(nn.Module):
    """A learned probe attends to the patches, then applies an MLP ("Scaling Vision Transformers": the MAP head)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.skipped = config.pool_heads or config.heads, config.pool_skips
        self.scale = (config.width // self.heads) ** -0.5
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.query = Linear(config.width, config.width)
        self.key_value = Linear(config.width, 2 * config.width)
        self.proj = Linear(config.width, config.width)
        self.norm = build_norm(config)
        self.mlp = build_mlp(config, config.pool_mlp_width)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, mix: Mix = fused) -> Tensor:  # (B, N, D) → (B, D)
        query, key, value = self.split(tokens)
        patches = None if mask is None else mask[:, self.skipped :]
        mixed = mix(query, key, value, attention_mask(patches, query), 0.0, scale=self.scale)  # (B, H, 1, K)
        pooled = self.proj(mixed.transpose(1, 2).flatten(2))  # (B, 1, D)
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]

    def split(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The probe's query (B, H, 1, K), and the keys and values of the patches (B, H, h·w, K)."""
        patches = tokens[:, self.skipped :]
        query = self.query(self.probe).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self.key_value(patches).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return query.expand(tokens.shape[0], -1, -1, -1), key, value

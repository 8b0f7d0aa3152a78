"""One encoder block, the paper's equations 2 and 3: attention and MLP, each behind a LayerNorm and added back."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.attention import Attention, Mix, fused
from vitrail.model.config import ViTConfig


class Block(nn.Module):
    """z′ = attention(norm(z)) + z, then z″ = mlp(norm(z′)) + z′."""

    def __init__(self, config: ViTConfig, path_rate: float = 0.0) -> None:
        super().__init__()
        eps, scale = config.block.norm_eps, config.block.layer_scale
        self.norm1 = nn.LayerNorm(config.width, eps=eps)
        self.attention = Attention(config)
        self.branch1 = Branch(config.width, config.rates.dropout, path_rate, scale)
        self.norm2 = nn.LayerNorm(config.width, eps=eps)
        self.mlp = build_mlp(config)
        self.branch2 = Branch(config.width, config.rates.dropout, path_rate, scale)

    def forward(
        self,
        tokens: Tensor,  # (B, N, D)
        mask: Tensor | None = None,
        keep: int | None = None,
        mix: Mix = fused,
        merge: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """All tokens, or only the first `keep`, which is all that the last block needs where [cls] is pooled.

        `merge` makes fewer tokens of those that attention gives, before the MLP.
        """
        tokens = self.branch1(self.attention(self.norm1(tokens), mask, keep, mix), tokens[:, :keep])
        if merge is not None:
            tokens = merge(tokens)
        return self.branch2(self.mlp(self.norm2(tokens)), tokens)


class FeedForward(nn.Module):
    """What every kind of MLP is: each token by itself, through a wider space and back."""

    description: str  # for people


class Mlp(FeedForward):
    """Linear, GELU, Linear: the paper's."""

    description = "GELU"

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.hidden_width)
        self.fc2 = nn.Linear(config.hidden_width, config.width)
        self.approximate = "tanh" if config.block.activation == "gelu_tanh" else "none"
        self.dropout_rate = config.rates.dropout

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = F.gelu(self.fc1(tokens), approximate=self.approximate)
        return self.fc2(F.dropout(hidden, self.dropout_rate, self.training))


class SwiGlu(FeedForward):
    """W₃(silu(W₁ x) ⊙ W₂ x): the first projection decides how much of the second passes ("GLU Variants")."""

    description = "SwiGLU"

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden_width)
        self.up = nn.Linear(config.width, config.hidden_width)
        self.down = nn.Linear(config.hidden_width, config.width)
        self.dropout_rate = config.rates.dropout

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = F.silu(self.gate(tokens)) * self.up(tokens)
        return self.down(F.dropout(hidden, self.dropout_rate, self.training))


# Kind, as in `BlockConfig.mlp` → its class.
MLPS: dict[str, type[Mlp] | type[SwiGlu]] = {"plain": Mlp, "swiglu": SwiGlu}


def build_mlp(config: ViTConfig) -> Mlp | SwiGlu:
    return MLPS[config.block.mlp](config)


class Branch(nn.Module):
    """The way back into the residual stream: layer scale, dropout and DropPath where asked for, then the sum."""

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
    """Zero the whole branch of a random share of the samples, and scale the others so that the mean stays."""
    if rate == 0.0:
        return branch
    shape = (branch.shape[0],) + (1,) * (branch.ndim - 1)
    kept = torch.rand(shape, device=branch.device) >= rate
    return branch * (kept / (1.0 - rate)).to(branch.dtype)

"""From all tokens to one vector per picture."""

import torch
from torch import Tensor, nn

from vitrail.model.attention import Mix, attention_mask, fused
from vitrail.model.block import build_mlp
from vitrail.model.config import ViTConfig


class Pool(nn.Module):
    """The [cls] token, or the mean of the patches; with sizes for a mask, a token counts for all patches in it."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.kind, self.prefix = config.pooling, config.prefix

    def forward(self, tokens: Tensor, mask: Tensor | None = None, mix: Mix = fused) -> Tensor:  # (B, N, D) → (B, D)
        if self.kind == "cls":
            return tokens[:, 0]
        patches = tokens[:, self.prefix :]
        if mask is None:
            return patches.mean(dim=1)
        real = mask[:, self.prefix :, None].to(tokens.dtype)  # (B, h·w, 1)
        return (patches * real).sum(dim=1) / real.sum(dim=1)


class AttentionPool(nn.Module):
    """A learned probe looks at the patches, then passes an MLP ("Scaling Vision Transformers": the MAP head)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.prefix, self.scale = config.heads, config.prefix, config.head_size**-0.5
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.query = nn.Linear(config.width, config.width)
        self.key_value = nn.Linear(config.width, 2 * config.width)
        self.proj = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.block.norm_eps)
        self.mlp = build_mlp(config)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, mix: Mix = fused) -> Tensor:  # (B, N, D) → (B, D)
        query, key, value = self.split(tokens)
        patches = None if mask is None else mask[:, self.prefix :]
        mixed = mix(query, key, value, attention_mask(patches, query), 0.0, scale=self.scale)  # (B, H, 1, K)
        pooled = self.proj(mixed.transpose(1, 2).flatten(2))  # (B, 1, D)
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]

    def split(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The probe's query (B, H, 1, K), and the keys and values of the patches (B, H, h·w, K)."""
        patches = tokens[:, self.prefix :]
        query = self.query(self.probe).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self.key_value(patches).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return query.expand(tokens.shape[0], -1, -1, -1), key, value

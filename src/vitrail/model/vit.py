"""The Vision Transformer: "An Image is Worth 16x16 Words" (Dosovitskiy et al., 2021)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import InputError
from vitrail.model.attention import AttentionQuery, LayerMix, Mix, attention_mask, fused, probabilities
from vitrail.model.block import AttentionPool, Block, Pool
from vitrail.model.config import ViTConfig
from vitrail.model.init import initialize
from vitrail.model.merging import Merging, own_groups
from vitrail.model.patch_embed import Embed


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a forward pass computed along the way."""

    logits: Tensor  # (B, classes)
    features: Tensor  # (B, D), what the head sees
    tokens: Tensor  # (B, N, D), after the last block (and the last LayerNorm where it precedes the pooling)
    hidden: dict[int, Tensor] = field(default_factory=dict[int, Tensor])  # layer → (B, N, D), its output
    attention: dict[int, Tensor] = field(default_factory=dict[int, Tensor])  # layer → (B, heads, queries, N)
    # Where tokens are merged: layer → (B, patches), the token of its output that each patch is part of
    groups: dict[int, Tensor] = field(default_factory=dict[int, Tensor])


class Watch(Protocol):
    """Sees each block's number and output, and the token of it that each patch is part of: None if none are merged."""

    def __call__(self, layer: int, tokens: Tensor, groups: Tensor | None, /) -> None: ...


class ViT(nn.Module):
    """Picture → logits. Everything that differs between ViTs is in its `config`.

    Pictures are (B, C, height, width), or a list of (C, height, width) of different sizes. A size other than the
    config's is fine as long as whole patches fit: positions are resampled. `mask` (B, h, w) is True for real patches.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False  # trade time for memory in training
        rates, last = config.rates, max(config.depth - 1, 1)
        self.embed = Embed(config)
        self.dropout = nn.Dropout(rates.dropout)
        self.blocks = nn.ModuleList(Block(config, rates.path * index / last) for index in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.block.norm_eps)
        self.pool = AttentionPool(config) if config.pooling == "map" else Pool(config)
        width = config.representation or config.width
        self.representation = nn.Linear(config.width, width) if config.representation else None
        self.head = nn.Linear(width, config.num_classes) if config.num_classes else None
        self.init_weights()

    def init_weights(self) -> None:
        """(Re)start from the paper's random weights, for instance after `to_empty` on a model made on `meta`."""
        initialize(self, self.representation, self.head)

    def forward(self, images: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Logits (B, classes); the features where the config has no classes."""
        return self.classify(self.features(images, mask))

    def features(
        self, images: Tensor | Sequence[Tensor], mask: Tensor | None = None, mix: LayerMix | None = None
    ) -> Tensor:
        """What the head sees (B, D): pooled tokens, through the representation layer where there is one.

        `mix` attends instead of the fused kernel.
        """
        tokens, mask = self.embed_images(images, mask)
        keep = 1 if self.config.pooling == "cls" else None  # the other tokens of the last block are never read
        return self.summarize(*self.encode(tokens, mask, keep, mix), mix)

    def tokens(self, images: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """All tokens (B, N, D) after the encoder: [cls] and registers first, then the patches row by row.

        Where the config merges tokens there are fewer, in another order: `trace` says which patches are in which.
        """
        tokens, mask = self.embed_images(images, mask)
        return self.finish(self.encode(tokens, mask)[0])

    def trace(
        self,
        images: Tensor | Sequence[Tensor],
        mask: Tensor | None = None,
        *,
        hidden: Iterable[int] = (),
        attention: AttentionQuery | None = None,
    ) -> Trace:
        """A forward pass that also keeps the outputs of chosen layers and the attention that `attention` asks for.

        The pass itself takes the fused kernel as always; only the requested probabilities are computed, from the
        queries and keys of their layer, so memory grows with the request and not with depth × heads × N².
        """
        wanted = {self.layer_index(layer) for layer in hidden}
        tokens, mask = self.embed_images(images, mask)
        seen: dict[int, Tensor] = {}
        maps: dict[int, Tensor] = {}
        merged: dict[int, Tensor] = {}

        def watch(layer: int, tokens: Tensor, groups: Tensor | None) -> None:
            if layer in wanted:
                seen[layer] = tokens
            if groups is not None:
                merged[layer] = groups

        mix = None if attention is None else self._look(attention, maps)
        tokens, mask = self.encode(tokens, mask, mix=mix, watch=watch)
        features = self.summarize(tokens, mask)
        return Trace(
            logits=self.classify(features),
            features=features,
            tokens=self.finish(tokens),
            hidden=seen,
            attention=maps,
            groups=merged,
        )

    def embed_images(self, images: Tensor | Sequence[Tensor], mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Tokens (B, N, D) and the mask over them; pictures of a list are embedded one by one and padded."""
        if isinstance(images, Tensor):
            tokens, mask = self.embed(images, mask)
            return self.dropout(tokens), mask
        if not isinstance(images, list | tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"pictures must be a tensor or a list of tensors; got {type(images).__name__}.")
        if mask is not None or not images:
            raise InputError(
                "a list of pictures must not be empty, and makes its own mask; pass mask only with a tensor."
            )
        rows = [self.embed(image[None])[0][0] for image in images]  # each (N, D)
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=tokens.device)
        return self.dropout(tokens), torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]

    def encode(
        self,
        tokens: Tensor,  # (B, N, D)
        mask: Tensor | None = None,
        keep: int | None = None,
        mix: LayerMix | None = None,
        watch: Watch | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """All encoder blocks: tokens, and the mask over them, which is their sizes where tokens were merged.

        Args:
            keep: the last block computes only its first `keep` tokens.
            mix: what attends instead of the fused kernel.
            watch: called after each block.
        """
        config = self.config
        if config.merge and mask is not None:
            raise InputError(
                "a model that merges tokens needs pictures of one size, as one tensor and without a mask; run them "
                "size by size, or with merging off."
            )
        again = self.gradient_checkpointing and torch.is_grad_enabled()  # compute it again in the backward pass
        groups = own_groups(tokens, config.prefix) if config.merge and watch is not None else None
        keys = attention_mask(mask, tokens)
        for index, block in enumerate(self.blocks):
            attend, merging = at_layer(mix, index), None
            # A picture smaller than the config's may have too few patches.
            if config.merge and (count := min(config.merge[index], (tokens.shape[1] - config.prefix) // 2)):
                attend = merging = Merging(attend, count, config.prefix, mask)
            run = partial(checkpoint, block, use_reentrant=False) if again else block
            kept = keep if index == config.depth - 1 else None
            tokens = cast("Tensor", run(tokens, keys, kept, attend, merging and merging.merge))
            if merging is not None:
                mask = merging.sizes
                keys = attention_mask(mask, tokens)
                groups = None if groups is None else merging.regroup(groups)
            if watch is not None:
                watch(index, tokens, groups)
        return tokens, mask

    def finish(self, tokens: Tensor) -> Tensor:
        """The last LayerNorm, unless it stands after the pooling."""
        return self.norm(tokens) if self.config.pool_norm == "before" else tokens

    def summarize(
        self, tokens: Tensor, mask: Tensor | None = None, mix: LayerMix | None = None
    ) -> Tensor:  # (B, N, D) → (B, D)
        """One vector per picture: last LayerNorm and pooling, then the representation layer where there is one."""
        attend = at_layer(mix, self.config.depth)
        if self.config.pooling == "cls":  # the norm works token by token: the other tokens' need not be computed
            pooled = self.norm(self.pool(tokens, mask, attend))
        elif self.config.pool_norm == "before":
            pooled = self.pool(self.norm(tokens), mask, attend)
        else:
            pooled = self.norm(self.pool(tokens, mask, attend))
        return pooled if self.representation is None else self.representation(pooled).tanh()

    def classify(self, features: Tensor) -> Tensor:  # (B, D) → (B, classes)
        return features if self.head is None else self.head(features)

    def layer_index(self, layer: int) -> int:
        """A layer's number, counted from the front; negative numbers count from the end."""
        if not -self.config.depth <= layer < self.config.depth:
            raise InputError(f"layer must be between {-self.config.depth} and {self.config.depth - 1}; got {layer}.")
        return layer % self.config.depth

    def _look(self, request: AttentionQuery, maps: dict[int, Tensor]) -> LayerMix:
        """The fused kernel, which also stores the requested probabilities in `maps`."""
        if request.queries == "class" and not self.config.class_token:
            raise InputError("this model has no [cls] token to attend from; ask for query rows by number, or for all.")
        rows = (0,) if request.queries == "class" else request.queries
        asked = range(self.config.depth) if request.layers is None else request.layers
        layers = {self.layer_index(layer) for layer in asked}

        def mix(
            layer: int,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            mask: Tensor | None,
            dropout: float,
            /,
            *,
            scale: float,
        ) -> Tensor:
            if layer in layers:
                maps[layer] = probabilities(query, key, scale, mask, heads=request.heads, queries=rows)
            return fused(query, key, value, mask, dropout, scale=scale)

        return mix


def at_layer(mix: LayerMix | None, layer: int) -> Mix:
    """The mix of one layer; by default the fused kernel."""
    return fused if mix is None else cast("Mix", partial(mix, layer))

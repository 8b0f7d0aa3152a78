"""The Vision Transformer: "An Image is Worth 16x16 Words" (Dosovitskiy et al., 2021)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import InputError
from vitrail.model.attention import AttentionQuery, LayerMix, Mix, attention_mask, build_norm, fused, probabilities
from vitrail.model.block import AttentionPool, Block, Pool
from vitrail.model.config import ViTConfig
from vitrail.model.init import initialize
from vitrail.model.linear import Linear
from vitrail.model.merging import Merging, own_groups
from vitrail.model.patch_embed import Embed, Embedded
from vitrail.model.relative import build_relative, relations_at


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
        self.relative = build_relative(config)
        self.dropout = nn.Dropout(rates.dropout)
        self.pre_norm = build_norm(config) if config.pre_norm else None
        self.blocks = nn.ModuleList(Block(config, rates.path * index / last) for index in range(config.depth))
        self.norm = None if config.pool_norm == "none" else build_norm(config)
        self.pool = AttentionPool(config) if config.pooling == "map" else Pool(config)
        pooled, width = config.pooled_width, config.head_width
        self.representation = Linear(pooled, config.representation) if config.representation else None
        self.projection = Linear(pooled, config.projection, bias=False) if config.projection else None
        self.head = Linear(width, config.num_classes) if config.num_classes else None
        self.distilled_head = Linear(width, config.num_classes) if config.distilled else None
        self.init_weights()

    def init_weights(self) -> None:
        """(Re)start from the paper's random weights, for instance after `to_empty` on a model made on `meta`."""
        initialize(self, self.representation or self.projection, (self.head, self.distilled_head))

    def forward(self, images: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Logits (B, classes); the features where the config has no classes."""
        return self.classify(self.features(images, mask))

    def features(
        self, images: Tensor | Sequence[Tensor], mask: Tensor | None = None, mix: LayerMix | None = None
    ) -> Tensor:
        """What the head sees (B, D): pooled tokens, through the representation layer or the projection if there is one.

        `mix` attends instead of the fused kernel.
        """
        return self.summarize(*self.encode(self.embed_images(images, mask), self.read_tokens, mix), mix)

    def tokens(self, images: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """All tokens (B, N, D) after the encoder: [cls] and registers first, then the patches row by row.

        Where the config merges tokens there are fewer, in another order: `trace` says which patches are in which.
        """
        return self.finish(self.encode(self.embed_images(images, mask))[0])

    def visible_tokens(self, images: Tensor, visible: Tensor) -> Tensor:
        """Tokens (B, prefix + n, D) of a forward pass that sees only some patches, `visible` (B, n) by their numbers.

        They went through the last norm, even where the pooling comes before it.
        """
        tokens, mask, layouts = self.embed(images, visible=visible)
        tokens, _ = self.encode(Embedded(self._enter(tokens), mask, layouts))
        return tokens if self.norm is None else self.norm(tokens)

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
        embedded = self.embed_images(images, mask)
        seen: dict[int, Tensor] = {}
        maps: dict[int, Tensor] = {}
        merged: dict[int, Tensor] = {}

        def watch(layer: int, tokens: Tensor, groups: Tensor | None) -> None:
            if layer in wanted:
                seen[layer] = tokens
            if groups is not None:
                merged[layer] = groups

        mix = None if attention is None else self._look(attention, maps)
        tokens, mask = self.encode(embedded, mix=mix, watch=watch)
        features = self.summarize(tokens, mask)
        return Trace(
            logits=self.classify(features),
            features=features,
            tokens=self.finish(tokens),
            hidden=seen,
            attention=maps,
            groups=merged,
        )

    @property
    def weight(self) -> Tensor:
        """A weight that every model has: it tells the device and the type of all."""
        return self.embed.patches.weight

    @property
    def read_tokens(self) -> int | None:
        """How many tokens are read after the last block, where the pooling does not read all of them."""
        return self.config.summary_tokens if self.config.pooling == "cls" else None

    def embed_images(self, images: Tensor | Sequence[Tensor], mask: Tensor | None = None) -> Embedded:
        """Tokens (B, N, D) and the mask over them; pictures of a list are embedded one by one and padded."""
        if isinstance(images, Tensor):
            tokens, mask, layouts = self.embed(images, mask)
            return Embedded(self._enter(tokens), mask, layouts)
        if not isinstance(images, list | tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"pictures must be a tensor or a list of tensors; got {type(images).__name__}.")
        if mask is not None or not images:
            raise InputError(
                "a list of pictures must not be empty, and makes its own mask; pass mask only with a tensor."
            )
        each = [self.embed(image[None]) for image in images]
        rows = [embedded.tokens[0] for embedded in each]  # each (N, D)
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(row) for row in rows], device=tokens.device)
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        return Embedded(self._enter(tokens), real, tuple(embedded.layouts[0] for embedded in each))

    def _enter(self, tokens: Tensor) -> Tensor:
        """Dropout, and the norm before the first block where there is one."""
        tokens = self.dropout(tokens)
        return tokens if self.pre_norm is None else self.pre_norm(tokens)

    def encode(
        self,
        embedded: Embedded,
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
        config, (tokens, mask, layouts) = self.config, embedded
        if config.merge and mask is not None:
            raise InputError(
                "a model that merges tokens needs pictures of one size, as one tensor and without a mask; run them "
                "size by size, or with merging off."
            )
        again = self.gradient_checkpointing and torch.is_grad_enabled()  # compute it again in the backward pass
        groups = own_groups(tokens, config.prefix) if config.merge and watch is not None else None
        keys, relations = attention_mask(mask, tokens), relations_at(self.relative, layouts, tokens)
        for index, block in enumerate(self.blocks):
            attend, merging = at_layer(mix, index), None
            # A picture smaller than the config's may have too few patches.
            if config.merge and (count := min(config.merge[index], (tokens.shape[1] - config.prefix) // 2)):
                attend = merging = Merging(attend, count, config.prefix, mask)
            run = partial(checkpoint, block, use_reentrant=False) if again else block
            kept = keep if index == config.depth - 1 else None
            tokens = cast("Tensor", run(tokens, keys, kept, attend, merging and merging.merge, relations(index)))
            if merging is not None:
                if self.relative is not None:
                    layouts = (merging.move(layouts[0]),)
                    relations = relations_at(self.relative, layouts, tokens)
                mask = merging.sizes
                keys = attention_mask(mask, tokens)
                groups = None if groups is None else merging.regroup(groups)
            if watch is not None:
                watch(index, tokens, groups)
        return tokens, mask

    def finish(self, tokens: Tensor) -> Tensor:
        """The last norm, unless there is none, or it stands after the pooling."""
        return tokens if self.norm is None or self.config.pool_norm == "after" else self.norm(tokens)

    def summarize(
        self, tokens: Tensor, mask: Tensor | None = None, mix: LayerMix | None = None
    ) -> Tensor:  # (B, N, D) → (B, D)
        """One vector per picture: last norm and pooling, then the representation layer or the projection."""
        # The norm works token by token: those that are not read need not be computed.
        pooled = self.pool(self.finish(tokens[:, : self.read_tokens]), mask, at_layer(mix, self.config.depth))
        if self.norm is not None and self.config.pool_norm == "after":
            pooled = self.norm(pooled)
        if self.representation is not None:
            pooled = self.representation(pooled).tanh()
        elif self.projection is not None:
            pooled = self.projection(pooled)
        return F.normalize(pooled, dim=-1) if self.config.normalize_features else pooled

    def classify(self, features: Tensor) -> Tensor:  # (B, D) → (B, classes)
        first, *second = self.classify_apart(features)
        return (first + second[0]) / 2 if second else first

    def classify_apart(self, features: Tensor) -> tuple[Tensor, ...]:  # (B, D) → (B, classes), each
        """The logits of each head: of a distilled model (DeiT), one for [cls] and one for the distillation token."""
        if self.head is None:
            return (features,)
        if self.distilled_head is None:
            return (self.head(features),)
        cls, distilled = features.chunk(2, dim=-1)
        return self.head(cls), self.distilled_head(distilled)

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

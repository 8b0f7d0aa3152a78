"""The model's own forward pass, with what each layer's attention gets shown to the caller.

`run` hands the queries, keys and values of each layer to a function, which may return softmax(Q Kᵀ · scale) V with
probabilities that gradients can flow to. Otherwise, the pass stays fused.

`Groups` follows a pass and knows which token each patch is part of in the layer that is at work. What a merged token
gets is shared equally among its patches, because its value is their mean. As long as nothing is merged, everything
passes through unchanged.
"""

from collections.abc import Callable, Generator
from itertools import cycle
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model import ViT, ViTConfig
from vitrail.model.attention import probabilities
from vitrail.model.parts import Pair
from vitrail.model.vit import Watch

CHUNK = 1 << 22  # probabilities held at once where heads are taken one after the other


class LayerInputs(NamedTuple):
    """What the attention of one layer gets. Layers count from 0; attention pooling is one more, after the last.

    Attention pooling has one query, its probe, and only the patches as keys, not [cls] and registers. Where [cls] is
    pooled, the last layer's only query is [cls], because the others are not read.
    """

    layer: int
    query: Tensor  # (B, H, queries, K)
    key: Tensor  # (B, H, keys, K)
    value: Tensor
    mask: Tensor | None  # what the sizes of merged tokens and relative positions add to the scores
    scale: float

    def select(self, *, queries: slice = slice(None), heads: slice = slice(None)) -> "LayerInputs":
        """Only some of the queries, and of the heads."""
        mask = self.mask
        if mask is not None:
            mask = mask[:, heads if mask.shape[1] > 1 else slice(None), queries if mask.shape[2] > 1 else slice(None)]
        query, key, value = self.query[:, heads, queries], self.key[:, heads], self.value[:, heads]
        return self._replace(query=query, key=key, value=value, mask=mask)

    def output(self) -> Tensor:
        """softmax(Q Kᵀ · scale) V by the kernel that the model itself uses."""
        return F.scaled_dot_product_attention(self.query, self.key, self.value, self.mask, scale=self.scale)

    def chunks(self) -> Generator[Tensor]:
        """The probabilities of all heads, a few heads at a time, so that many tokens need little memory."""
        step = max(1, CHUNK // (self.query.shape[0] * self.query.shape[2] * self.key.shape[2]))
        masks = [self.mask] if self.mask is None or self.mask.shape[1] == 1 else self.mask.split(step, dim=1)
        parts = zip(self.query.split(step, dim=1), self.key.split(step, dim=1), cycle(masks))
        yield from (probabilities(query, key, self.scale, mask) for query, key, mask in parts)

    def mean(self) -> Tensor:
        """The probabilities averaged over the heads: (B, queries, keys)."""
        sums = [chunk.sum(dim=1) for chunk in self.chunks()]
        return (torch.stack(sums).sum(dim=0) if len(sums) > 1 else sums[0]).div_(self.query.shape[1])


def run(
    model: ViT,
    images: Tensor,
    look: Callable[[LayerInputs], Tensor | None],
    *,
    watch: Watch | None = None,
    all_queries: bool = False,
) -> Tensor:
    """Logits (B, classes) of prepared pictures, as `model(images)` computes them.

    `look` is called in each layer, and its result, unless it is None, is the output of the layer's attention. `watch`
    is called after each block; `all_queries` computes every token of the last layer too.
    """
    if model.training:
        raise ConfigError("a model is explained as it predicts, without dropout; call model.eval() first.")

    def mix(
        layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, /, *, scale: float
    ) -> Tensor:
        inputs = LayerInputs(layer, query, key, value, mask, scale)
        output = look(inputs)
        return inputs.output() if output is None else output

    keep = None if all_queries else model.read_tokens
    tokens, sizes = model.encode(model.embed_images(images), keep=keep, mix=mix, watch=watch)
    return model.classify(model.summarize(tokens, sizes, mix=mix))


def grid_of(model: ViT, images: Tensor) -> Pair:
    """Rows and columns of patches of prepared pictures."""
    return model.config.grid_of((images.shape[-2], images.shape[-1]))


def on_model(model: ViT, images: Tensor) -> Tensor:
    """Prepared pictures on the model's device and in its type."""
    return images.to(model.weight)


class Groups:
    """The tokens of the layer at work, as groups of patches. `watch` is for `passes.run`."""

    def __init__(self, prefix: int) -> None:
        self.prefix = prefix  # [cls] and registers, which are left out of everything here but `merged`
        self.patches: Tensor | None = None  # (B, h·w): the token of each patch, counted without the prefix
        self.merged: Tensor | None = None  # (B, N′, N): what the last layer made of its tokens

    def watch(self, layer: int, tokens: Tensor, groups: Tensor | None) -> None:
        """Follow a block's merging."""
        if groups is None:
            return
        before, self.patches = self.patches, groups - self.prefix
        before = torch.arange(groups.shape[1], device=groups.device).expand_as(groups) if before is None else before
        self.merged = (
            None
            if torch.equal(before, self.patches)
            else self._matrix(before, self.patches, torch.promote_types(tokens.dtype, torch.float32))
        )

    def _matrix(self, before: Tensor, after: Tensor, dtype: torch.dtype) -> Tensor:
        """Every token after the merging as the mean of the tokens before, weighted by their sizes."""
        shared = F.one_hot(after).mT @ F.one_hot(before)  # (B, n′, n): how many patches two tokens share
        weights = (shared / shared.sum(dim=2, keepdim=True)).to(dtype)
        padded = F.pad(weights, (self.prefix, 0, self.prefix, 0))
        padded[:, range(self.prefix), range(self.prefix)] = 1
        return padded

    @property
    def sizes(self) -> Tensor | None:
        """Patches in each token: (B, n)."""
        return None if self.patches is None else F.one_hot(self.patches).sum(dim=1)

    def reads(self, config: ViTConfig, tokens: int, like: Tensor) -> Tensor:
        """The weight of each of these tokens in what the pooling reads, [cls] or a mean: (1 or B, N), sums to 1."""
        weights = like.new_zeros(1, tokens)
        if config.pooling == "cls":
            weights[:, : config.summary_tokens] = 1
        elif self.sizes is None:
            weights[:, config.pool_skips :] = 1
        else:
            weights = F.pad(self.sizes.to(like.dtype), (config.prefix, 0), value=0.0 if config.pool_skips else 1.0)
        return weights / weights.sum(dim=1, keepdim=True)

    def spread(self, shares: Tensor) -> Tensor:
        """Shares of the tokens (B, …, n) → of their patches (B, …, h·w), with the same sum."""
        if self.patches is None or self.sizes is None:
            return shares
        middle = (1,) * (shares.ndim - 2)
        each = shares / self.sizes.unflatten(1, (*middle, -1))
        index = self.patches.unflatten(1, (*middle, -1)).expand(*shares.shape[:-1], -1)
        return each.gather(-1, index)

    def collect(self, shares: Tensor) -> Tensor:
        """Shares of the patches (B, h·w) → of their tokens (B, n), with the same sum."""
        if self.patches is None or self.sizes is None:
            return shares
        return shares.new_zeros(self.sizes.shape).scatter_add(1, self.patches, shares)

    def repeat(self, rows: Tensor) -> Tensor:
        """What the tokens do (B, H, n, …) → what their patches do, each the same (B, H, h·w, …)."""
        if self.patches is None:
            return rows
        index = self.patches[:, None, :, None].expand(-1, rows.shape[1], -1, rows.shape[3])
        return rows.gather(2, index)

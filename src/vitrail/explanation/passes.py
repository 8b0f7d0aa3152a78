"""The model's own forward pass, with what each layer's attention gets shown to the caller.

`run` hands the queries, keys and values of each layer to a function, which may return softmax(Q Kᵀ · scale) V with
probabilities that gradients can flow to. Otherwise, the pass stays fused.

`Groups` follows a pass and knows which token each patch is part of in the layer that is at work. What a merged token
gets is shared equally among its patches, because its value is their mean. As long as nothing is merged, everything
passes through unchanged.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model import ViT
from vitrail.model.attention import probabilities
from vitrail.model.config import Pair
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
    mask: Tensor | None  # what the sizes of merged tokens add to the scores
    scale: float

    def output(self) -> Tensor:
        """softmax(Q Kᵀ · scale) V by the kernel that the model itself uses."""
        return F.scaled_dot_product_attention(self.query, self.key, self.value, self.mask, scale=self.scale)

    def chunks(self) -> Generator[Tensor]:
        """The probabilities of all heads, a few heads at a time, so that many tokens need little memory."""
        step = max(1, CHUNK // (self.query.shape[0] * self.query.shape[2] * self.key.shape[2]))
        for query, key in zip(self.query.split(step, dim=1), self.key.split(step, dim=1), strict=True):
            yield probabilities(query, key, self.scale, self.mask)

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

    tokens, _ = model.embed_images(images, None)
    keep = 1 if model.config.pooling == "cls" and not all_queries else None
    tokens, sizes = model.encode(tokens, keep=keep, mix=mix, watch=watch)
    return model.classify(model.summarize(tokens, sizes, mix=mix))


def grid_of(model: ViT, images: Tensor) -> Pair:
    """Rows and columns of patches of prepared pictures."""
    return model.config.grid_of((images.shape[-2], images.shape[-1]))


def on_model(model: ViT, images: Tensor) -> Tensor:
    """Prepared pictures on the model's device and in its type."""
    return images.to(model.embed.patches.weight)


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

"""The model's own forward pass, with the mixing left to the caller.

`run` hands the queries, keys and values of each layer to a `Mix`, which returns softmax(Q Kᵀ · scale) V in whatever way
it likes: fused while it looks at the queries and keys, or with probabilities that gradients can flow to.
"""

from collections.abc import Generator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model import ViT
from vitrail.model.attention import probabilities
from vitrail.model.config import Pair
from vitrail.model.vit import Watch

CHUNK = 1 << 22  # probabilities held at once where heads are taken one after the other


class Mix(Protocol):
    """Layers are counted from 0; attention pooling counts as one more, whose only query is the probe.

    Attention pooling looks only at the patches: its keys leave out [cls] and registers. Where [cls] is pooled, the
    last layer's only query is [cls], because nobody reads the others. `mask` is None, or where tokens were merged, what
    their sizes add to the scores.
    """

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor: ...


def run(model: ViT, images: Tensor, mix: Mix, *, watch: Watch | None = None, all_queries: bool = False) -> Tensor:
    """Logits (B, classes) of prepared pictures, as `model(images)` computes them, attention done by `mix`.

    `watch` is called after each block; `all_queries` computes every token of the last layer too, for those who want to
    see them look.
    """
    if model.training:
        raise ConfigError("a model is explained as it predicts, without dropout; call model.eval() first.")

    def mix_layer(
        layer: int, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, /, *, scale: float
    ) -> Tensor:
        return mix(layer, query, key, value, mask, scale)

    tokens, _ = model.embed_images(images, None)
    keep = 1 if model.config.pooling == "cls" and not all_queries else None
    tokens, sizes = model.encode(tokens, keep=keep, mix=mix_layer, watch=watch)
    return model.classify(model.summarize(tokens, sizes, mix=mix_layer))


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The kernel that the model itself takes."""
    return F.scaled_dot_product_attention(query, key, value, mask, scale=scale)


def head_chunks(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Generator[Tensor]:
    """The probabilities of all heads, a few heads at a time, so that many tokens need no more memory than they must."""
    step = max(1, CHUNK // (query.shape[0] * query.shape[2] * key.shape[2]))
    for start in range(0, query.shape[1], step):
        yield probabilities(query[:, start : start + step], key[:, start : start + step], scale, mask)


def head_mean(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The probabilities averaged over the heads: (B, queries, keys)."""
    sums = [chunk.sum(dim=1) for chunk in head_chunks(query, key, mask, scale)]
    return torch.stack(sums).sum(dim=0).div_(query.shape[1]) if len(sums) > 1 else sums[0].div_(query.shape[1])


def grid_of(model: ViT, images: Tensor) -> Pair:
    """Rows and columns of patches of prepared pictures."""
    return model.config.grid_of((images.shape[-2], images.shape[-1]))


def on_model(model: ViT, images: Tensor) -> Tensor:
    """Prepared pictures on the model's device and in its type."""
    return images.to(model.embed.patches.weight)

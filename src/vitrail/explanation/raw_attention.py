"""Raw attention: where the tokens that the pooling reads look, layer by layer and head by head.

The pooling decides whose attention counts. With [cls] it is the [cls] row. With the mean of the patches it is the mean
of all patches' rows. With attention pooling the patches' rows are weighted by the probe's own attention, and the probe
itself is the last layer, named "pool". Where tokens are merged, the patches in one attend and are attended to as one,
each with an equal share.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.explanation.passes import Groups, LayerInputs, grid_of, on_model, run
from vitrail.model import ViT
from vitrail.model.attention import checked_index


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """The attention of every layer and head on the patches."""

    names: tuple[str, ...]  # of the layers: "0", "1", …, and "pool" where there is attention pooling
    maps: Tensor  # (B, layers, H, h, w); a row sums to at most 1: the rest goes to [cls] and registers
    logits: Tensor  # (B, classes)
    heads: tuple[int, ...]  # of each layer: attention pooling may have its own number; NaN where there are fewer

    def select(self, layers: tuple[int, ...] | None, heads: tuple[int, ...] | None) -> "AttentionMaps":
        """Chosen encoder layers (None: the last, or the attention pooling if there is one) and heads (None: all).

        Numbers count from 0, negative ones from the end of the encoder.
        """
        depth = len(self.names) - (self.names[-1] == "pool")
        rows = [len(self.names) - 1] if layers is None else [checked_index("layer", layer, depth) for layer in layers]
        chosen = tuple(self.heads[row] for row in rows)
        count = max(chosen)
        columns = range(count) if heads is None else [checked_index("head", head, count) for head in heads]
        maps = self.maps[:, rows][:, :, list(columns)]
        return replace(self, names=tuple(self.names[row] for row in rows), maps=maps, heads=chosen)

    def cpu(self) -> "AttentionMaps":
        """The same in main memory and in float32, to be drawn or written."""
        return replace(self, maps=self.maps.float().cpu(), logits=self.logits.float().cpu())


def attention_maps(model: ViT, images: Tensor) -> AttentionMaps:
    """Attention from what the pooling reads, of all layers and heads, computed layer by layer."""
    images = on_model(model, images)
    config, grid = model.config, grid_of(model, images)
    with torch.inference_mode():
        reads = _reading_weights(model, images)
        maps: list[Tensor] = []
        groups = Groups(config.prefix)

        def look(inputs: LayerInputs) -> None:
            if inputs.layer == config.depth:  # the probe's only row
                row = torch.cat([part[:, :, 0] for part in inputs.chunks()], dim=1)
                maps.append(groups.spread(row[:, :, config.prefix - config.pool_skips :]))
                return
            weights = reads
            if config.pooling != "cls":
                weights = torch.cat([reads[:, : config.prefix], groups.collect(reads[:, config.prefix :])], dim=1)
            readers = inputs.select(queries=slice(weights.shape[1]))
            rows = [torch.einsum("bq,bhqk->bhk", weights, part) for part in readers.chunks()]
            maps.append(groups.spread(torch.cat(rows, dim=1)[:, :, config.prefix :]))

        logits = run(model, images, look, watch=groups.watch)
    names = [str(layer) for layer in range(config.depth)] + (["pool"] if config.pooling == "map" else [])
    heads = tuple(layer.shape[1] for layer in maps)
    padded = [F.pad(layer, (0, 0, 0, max(heads) - layer.shape[1]), value=torch.nan) for layer in maps]
    stacked = torch.stack(padded, dim=1).unflatten(-1, grid)
    return AttentionMaps(names=tuple(names), maps=stacked, logits=logits, heads=heads)


@dataclass(frozen=True, kw_only=True)
class PatchAttention:
    """What each patch attends to in one layer; a row sums to at most 1: the rest goes to [cls] and registers."""

    patches: Tensor  # (B, h·w, h·w): row i is what patch i attends to
    cls: Tensor | None  # (B, h·w): what [cls] attends to, where there is one
    layer: int  # counted from 0
    head: int | None  # counted from 0; None: the mean of all


def patch_attention(model: ViT, images: Tensor, layer: int = -1, head: int | None = None) -> PatchAttention:
    """What each patch, and [cls], attends to in an encoder layer, by one head or the mean of all.

    Memory grows with the square of the patches. Negative numbers count from the end.
    """
    images, config = on_model(model, images), model.config
    number = checked_index("layer", layer, config.depth)
    chosen = None if head is None else checked_index("head", head, config.heads)
    groups, looks = Groups(config.prefix), list[Tensor]()

    def look(inputs: LayerInputs) -> None:
        if inputs.layer == number:
            one = slice(None) if chosen is None else slice(chosen, chosen + 1)
            mean = inputs.select(heads=one).mean()
            looks.append(groups.spread(mean[:, :, config.prefix :]))

    def watch(layer: int, tokens: Tensor, patches: Tensor | None) -> None:
        if layer < number:  # the tokens that the chosen layer gets
            groups.watch(layer, tokens, patches)

    with torch.inference_mode():
        run(model, images, look, watch=watch, all_queries=True)
        rows = groups.repeat(looks[0][:, None, config.prefix :])[:, 0]
    return PatchAttention(patches=rows, cls=looks[0][:, 0] if config.class_token else None, layer=number, head=chosen)


def _reading_weights(model: ViT, images: Tensor) -> Tensor:
    """The weight of each token that the pooling reads: (B, N), sums to 1; only those of [cls] where that is pooled."""
    config, (rows, columns) = model.config, grid_of(model, images)
    weights: list[Tensor] = []
    groups = Groups(config.prefix)
    if config.pooling != "map":
        tokens = model.read_tokens or config.prefix + rows * columns
        return groups.reads(config, tokens, images.float()).expand(len(images), -1)

    def look(inputs: LayerInputs) -> None:
        if inputs.layer == config.depth:
            row, prefix = inputs.mean()[:, 0], config.prefix - config.pool_skips
            weights.append(torch.cat([row[:, :prefix], groups.spread(row[:, prefix:])], dim=1))

    run(model, images, look, watch=groups.watch)
    return F.pad(weights[0], (config.pool_skips, 0))


def check_choice(model: ViT, layers: tuple[int, ...] | None, heads: tuple[int, ...] | None) -> None:
    """Raise unless the model has these layers and heads."""
    for layer in layers or ():
        checked_index("layer", layer, model.config.depth)
    for head in heads or ():
        checked_index("head", head, model.config.heads)

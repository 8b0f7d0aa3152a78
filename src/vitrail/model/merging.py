"""Token merging: fewer tokens from block to block ("Token Merging: Your ViT But Faster", Bolya et al., 2023).

Between the attention of a block and its MLP, the r most similar pairs of patches become one token each:

    1. deal the patches in turn into two sets, A (the 1st, 3rd, …) and B (the 2nd, 4th, …)
    2. each patch of A chooses the most similar one of B, by the cosine of their keys (the mean over the heads)
    3. the r patches of A with the best match are merged away, each into its choice
    4. the others of A, then B, go on

A merged token is the mean of all patches in it, so its size, the number of these patches, goes with it. Attention is
proportional: a token of size s counts as s equal ones, softmax(Q Kᵀ · scale + log s). [cls] and registers never merge.

Every shape follows from the config and the picture's size, and every step is a plain operation of ONNX (TopK, Gather,
Equal, MatMul), so exports contain it. Which pairs are best depends only on the picture, not on the rest of the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.model.attention import Mix
from vitrail.model.config import ViTConfig
from vitrail.model.relative import Layout

Schedule = Literal["constant", "decreasing", "alternating"]


def with_merging(config: ViTConfig, merge: int | Sequence[int], schedule: Schedule = "constant") -> ViTConfig:
    """The same model, merging tokens: about `merge` patches fewer after each block, or just these numbers.

    0 turns merging off. Numbers of your own must be one for each block, where a single one holds for all of them; see
    `merge_schedule` for the others.
    """
    numbers = (merge,) if isinstance(merge, int) else tuple(merge)
    if len(numbers) == 1:
        numbers = merge_schedule(config.depth, numbers[0], prod(config.grid), schedule)
    return replace(config, merge=numbers)


def merge_schedule(depth: int, merge: int, patches: int, schedule: Schedule = "constant") -> tuple[int, ...]:
    """How many patches each block merges away.

    "constant" is the same number in all, "decreasing" from 2 × `merge` in the first down to 0, "alternating" twice the
    number in every second block, which sorts half as often and chooses from more pairs.

    No block can merge more than half of the patches that reach it; where that is fewer, it merges half.
    """
    if merge < 0:
        raise ConfigError(f"merge must be 0 or more patches per block; got {merge}.")
    if schedule == "constant":
        wanted = [merge] * depth
    elif schedule == "decreasing":
        wanted = [round(2 * merge * (1 - block / (depth - 1))) if depth > 1 else merge for block in range(depth)]
    elif schedule == "alternating":
        wanted = [2 * merge * (block % 2) if depth > 1 else merge for block in range(depth)]
    else:
        raise ConfigError(f"the schedule of merging must be {', '.join(get_args(Schedule))}; got {schedule!r}.")
    counts: list[int] = []
    for count in wanted:
        counts.append(min(count, patches // 2))
        patches -= counts[-1]
    return tuple(counts)


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Which patches merge. A patch is named by its number in its set."""

    first: Tensor  # (B, |A|): the patches of A, those that are merged away before the others
    count: int  # r: how many are merged away
    choices: Tensor  # (B, r): the patch of B that each of those goes into


def match(key: Tensor, count: int, prefix: int) -> Matching:  # (B, H, N, K)
    """The `count` best pairs of the patches, which stand after the first `prefix` tokens."""
    keys = F.normalize(key.detach()[:, :, prefix:].mean(dim=1), dim=-1)  # (B, patches, K)
    best, choices = (keys[:, 0::2] @ keys[:, 1::2].transpose(1, 2)).max(dim=-1)  # (B, |A|, |B|) → (B, |A|)
    order = best.topk(best.shape[1], dim=1).indices
    # The others stand in their old order. In that of their scores, the rounding of another runtime would let two nearly
    # equal ones change places, and with that their sets in the next block.
    merged, others = order[:, :count], order[:, count:].sort(dim=1).values
    return Matching(first=torch.cat([merged, others], dim=1), count=count, choices=choices.gather(1, merged))


def merge_tokens(tokens: Tensor, sizes: Tensor, matching: Matching, prefix: int) -> tuple[Tensor, Tensor]:
    """The tokens (B, N, D) and their sizes (B, N), r fewer of both."""
    count = matching.count
    first, first_sizes = _rows(tokens, prefix + 2 * matching.first), sizes[:, prefix::2].gather(1, matching.first)
    second, second_sizes = tokens[:, prefix + 1 :: 2], sizes[:, prefix + 1 :: 2]
    into = matching.choices[:, None] == torch.arange(second.shape[1], device=tokens.device)[:, None]  # (B, |B|, r)
    weights = into * first_sizes[:, None, :count]
    total = second_sizes + weights.sum(dim=2)
    stays, comes = (second_sizes / total)[..., None].to(tokens.dtype), (weights / total[..., None]).to(tokens.dtype)
    merged = second * stays + comes @ first[:, :count]
    tokens = torch.cat([tokens[:, :prefix], first[:, count:], merged], dim=1)
    return tokens, torch.cat([sizes[:, :prefix], first_sizes[:, count:], total], dim=1)


def _rows(tokens: Tensor, index: Tensor) -> Tensor:
    """Chosen tokens of each picture, (B, N, D) at (B, n) → (B, n, D): whole rows, which is faster than `gather`."""
    batch, count, _ = tokens.shape
    starts = torch.arange(batch, device=tokens.device)[:, None] * count
    return F.embedding(index + starts, tokens.flatten(0, 1))


class Merging:
    """Token merging of one block in one pass: attends with `mix`, keeping the keys, and then merges by them.

    It reads what it was made with and writes only its results, so that a block may be run again in the backward pass.
    """

    def __init__(self, mix: Mix, count: int, prefix: int, sizes: Tensor | None) -> None:
        self.mix, self.count, self.prefix, self.before = mix, count, prefix, sizes
        self.matching: Matching | None = None
        self.sizes: Tensor | None = sizes  # (B, N), after `merge`

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, /, *, scale: float
    ) -> Tensor:
        self.matching = match(key, self.count, self.prefix)
        return self.mix(query, key, value, mask, dropout, scale=scale)

    def merge(self, tokens: Tensor) -> Tensor:
        """What goes on to the MLP."""
        assert self.matching is not None
        before = torch.ones(tokens.shape[:2], device=tokens.device) if self.before is None else self.before
        tokens, self.sizes = merge_tokens(tokens, before, self.matching, self.prefix)
        return tokens

    def move(self, layout: Layout) -> Layout:
        """Where the merged patches are: in the mean of their places."""
        assert self.matching is not None
        batch, prefix = self.matching.first.shape[0], self.prefix
        places = layout.where(self.matching.first.device).expand(batch, -1, -1)
        sizes = torch.ones(places.shape[:2], device=places.device) if self.before is None else self.before[:, prefix:]
        return layout._replace(places=merge_tokens(places, sizes, self.matching, 0)[0])

    def regroup(self, groups: Tensor) -> Tensor:
        """`groups` (B, patches), the token that each patch is part of, after the merging."""
        assert self.matching is not None
        first, choices = self.matching.first, self.matching.choices
        second = self.prefix + first.shape[1] - self.matching.count  # where B begins
        others = torch.arange(self.prefix, second, device=first.device).expand(len(first), -1)
        places = torch.empty_like(first).scatter_(1, first, torch.cat([choices + second, others], dim=1))
        number = groups - self.prefix  # among the patches
        return torch.where(number % 2 == 0, places.gather(1, number // 2), number // 2 + second)


def own_groups(tokens: Tensor, prefix: int) -> Tensor:
    """Every patch is a token of its own: (B, patches)."""
    return torch.arange(prefix, tokens.shape[1], device=tokens.device).expand(len(tokens), -1)

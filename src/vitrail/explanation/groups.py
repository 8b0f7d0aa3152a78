"""Where a model merges tokens: from merged tokens back to patches.

`Groups` follows a pass and knows which token each patch is part of in the layer that is at work. What a merged token
gets is shared equally among its patches, because its value is their mean. As long as nothing is merged, everything
passes through unchanged.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


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

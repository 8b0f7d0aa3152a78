"""What attention itself knows of where tokens are: one class per kind of relative positions, in the table at the end.

A kind may rotate queries and keys, or add a bias to their scores. It is asked once per forward pass, for the places of
the patches, their rows and columns. Places go where the patches go: they are dropped with them, and averaged where
patches are merged.
"""

from collections.abc import Callable, Sequence
from math import pi
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.config import ViTConfig
from vitrail.model.parts import Pair, RelativeBias, Rope


class Layout(NamedTuple):
    """Where the patches of a batch are."""

    grid: Pair  # rows and columns
    places: Tensor | None = None  # (B, patches, 2), each patch's row and column; None: all patches, row by row

    def where(self, device: torch.device) -> Tensor:
        """The places, made if they are the usual ones: (1 or B, patches, 2), in float32."""
        if self.places is not None:
            return self.places
        axes = (torch.arange(side, device=device, dtype=torch.float32) for side in self.grid)
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)[None]


class Rotation(NamedTuple):
    """The angle by which each token's pairs of features are turned: cosines and sines, each (1 or B, 1 or H, N, K)."""

    cos: Tensor
    sin: Tensor  # negative for the first feature of a pair
    pairing: Literal["half", "interleaved"]

    def turn(self, tokens: Tensor) -> Tensor:  # (B, H, N, K)
        """Queries or keys, rotated; of the queries, only the first few may be there."""
        cos, sin = (part[:, :, : tokens.shape[2]].to(tokens.dtype) for part in (self.cos, self.sin))
        if self.pairing == "half":
            partners = torch.cat(tokens.chunk(2, dim=-1)[::-1], dim=-1)
        elif tokens.dtype == torch.float32 and not torch.compiler.is_compiling():
            # A pair is a complex number, and a rotation a product: one pass instead of three. No graph has those.
            turns = torch.complex(cos[..., 0::2], sin[..., 1::2])
            return torch.view_as_real(torch.view_as_complex(tokens.unflatten(-1, (-1, 2))) * turns).flatten(-2)
        else:
            partners = tokens.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return torch.addcmul(tokens * cos, partners, sin)


class Relation(NamedTuple):
    """What relative positions do in one block."""

    rotation: Rotation | None = None
    bias: Tensor | None = None  # (1 or B, H, N, N), added to the scores


Relations = Callable[[int], Relation]  # the number of a block → what is done in it


class RelativePositions(nn.Module):
    """Every kind; what it learns or stores are parameters and buffers of its own."""

    description: str  # for people

    def at(self, layout: Layout, like: Tensor) -> Relations:
        """What is done in each block for tokens at these places; `like` gives the device."""
        raise AssertionError("every kind says what it does")

    @staticmethod
    def resize(tensor: Tensor, old: ViTConfig, new: ViTConfig) -> Tensor:
        """A tensor of this kind, for pictures of another size."""
        return tensor

    def fill(self) -> None:
        """Give the tensors their first values."""


class Rotary(RelativePositions):
    """Queries and keys are rotated, so that the score of two patches depends on how far apart they are."""

    description = "rotary positions"

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        assert isinstance(config.relative, Rope)
        self.rope, self.prefix, self.bands = config.relative, config.prefix, config.head_size // 4
        self.periods: Tensor | None
        self.register_buffer("periods", torch.empty(self.bands) if self.rope.frequencies == "stored" else None)
        mixed = (2, config.depth, config.heads, 2 * self.bands)
        self.frequencies = nn.Parameter(torch.empty(mixed)) if self.rope.frequencies == "mixed" else None

    def fill(self) -> None:
        if self.periods is not None:
            self.periods.copy_(1 / self._computed(self.periods.device))
        if self.frequencies is not None:  # as its authors do: two directions at right angles, turned at random
            turned = torch.rand_like(self.frequencies[0, :, :, :1]) * (2 * pi)  # (depth, H, 1)
            directions = torch.cat([turned, turned + pi / 2], dim=-1)[..., None]  # (depth, H, 2, 1)
            sizes = self._computed(turned.device)
            parts = ((axis * sizes).flatten(-2) for axis in (directions.cos(), directions.sin()))
            self.frequencies.copy_(torch.stack([*parts]))

    def at(self, layout: Layout, like: Tensor) -> Relations:
        coordinates = self._coordinates(layout, like.device)  # (1 or B, patches, 2)
        if self.frequencies is not None:
            first, second = coordinates[:, None, ..., None].unbind(dim=-2)  # each (1 or B, 1, patches, 1)
            both = self.frequencies.float().unsqueeze(-2)  # (2, depth, H, 1, K/2)
            return lambda block: Relation(rotation=self._rotation(first * both[0, block] + second * both[1, block]))
        frequencies = self._computed(like.device) if self.periods is None else 1 / self.periods.float()
        rotation = self._rotation((coordinates[..., None] * frequencies).flatten(-2)[:, None])
        return lambda block: Relation(rotation=rotation)

    def _coordinates(self, layout: Layout, device: torch.device) -> Tensor:
        """The two numbers of each patch that its angles grow with, in the order of `rope.order`."""
        places, rope = layout.where(device), self.rope
        if rope.coordinates == "unit":
            axes = [2 * pi * (2 * (places[..., axis] + 0.5) / side - 1) for axis, side in enumerate(layout.grid)]
        else:
            spans = layout.grid if rope.reference is None else rope.reference
            sides = zip(spans, layout.grid, strict=True)
            axes = [(places[..., axis] + rope.offset) * (span / side) for axis, (span, side) in enumerate(sides)]
        return torch.stack(axes if rope.order == "yx" else axes[::-1], dim=-1)

    def _computed(self, device: torch.device) -> Tensor:
        return self.rope.base ** -(torch.arange(self.bands, device=device, dtype=torch.float32) / self.bands)

    def _rotation(self, angles: Tensor) -> Rotation:  # (1 or B, 1 or H, patches, K/2)
        angles = F.pad(angles, (0, 0, self.prefix, 0))  # [cls] and registers stay as they are
        cos, sin = angles.cos(), angles.sin()
        if self.rope.pairing == "half":
            return Rotation(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1), "half")
        both, signed = (torch.stack(pair, dim=-1).flatten(-2) for pair in ((cos, cos), (-sin, sin)))
        return Rotation(both, signed, "interleaved")


class Biased(RelativePositions):
    """Each offset of two patches has a learned bias for each head; so do three kinds of pairs with [cls].

    The rows of a table are the offsets from (1 − h, 1 − w) to (h − 1, w − 1), then [cls] → patch, patch → [cls] and
    [cls] → [cls]. Merged patches have the offset that is nearest to that of their means.
    """

    description = "relative position bias"

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        assert isinstance(config.relative, RelativeBias)
        self.grid, self.shared, self.with_class = config.grid, config.relative.shared, config.class_token
        rows = _offsets(config.grid) + (3 if config.class_token else 0)
        self.table = nn.Parameter(torch.empty(1 if self.shared else config.depth, rows, config.heads))

    def fill(self) -> None:
        nn.init.zeros_(self.table)

    def at(self, layout: Layout, like: Tensor) -> Relations:
        index = self._index(layout, like.device)  # (1 or B, N, N)
        table = resample_table(self.table, self.grid, layout.grid)

        def bias(block: int) -> Relation:
            return Relation(bias=table[0 if self.shared else block][index].permute(0, 3, 1, 2))  # (1 or B, H, N, N)

        if not self.shared:
            return bias
        same = bias(0)
        return lambda block: same

    @staticmethod
    def resize(tensor: Tensor, old: ViTConfig, new: ViTConfig) -> Tensor:
        return resample_table(tensor, old.grid, new.grid)

    def _index(self, layout: Layout, device: torch.device) -> Tensor:
        """The row of the table for each query and key."""
        (rows, columns), places = layout.grid, layout.where(device)
        apart = (places[:, :, None] - places[:, None]).round().long()  # (1 or B, patches, patches, 2)
        index = (apart[..., 0] + rows - 1) * (2 * columns - 1) + apart[..., 1] + columns - 1
        if not self.with_class:
            return index
        count, patches = _offsets(layout.grid), index.shape[1]
        index = F.pad(index, (1, 0, 1, 0))
        first = torch.arange(patches + 1, device=device) == 0
        index = torch.where(first[:, None], count, torch.where(first, count + 1, index))
        return torch.where(first[:, None] & first, count + 2, index)


def resample_table(table: Tensor, old: Pair, new: Pair) -> Tensor:  # (tables, offsets, H)
    """Biases for another grid, as transformers resamples them; pairs with [cls] keep theirs."""
    if all(type(side) is int for side in new) and old == new:  # an export with free sizes does not know yet
        return table
    count = _offsets(old)
    before, after = ((2 * rows - 1, 2 * columns - 1) for rows, columns in (old, new))
    picture = table[:, :count].float().unflatten(1, before).permute(0, 3, 1, 2)
    picture = F.interpolate(picture, size=after, mode="bilinear")
    return torch.cat([picture.flatten(2).mT.to(table.dtype), table[:, count:]], dim=1)


def _offsets(grid: Pair) -> int:
    """How many offsets two patches of a grid can have."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1)


def relations_at(kind: RelativePositions | None, layouts: Sequence[Layout], tokens: Tensor) -> Relations:
    """What is done in each block for tokens (B, N, D) of one layout, or of one for each picture, padded."""
    if kind is None:
        nothing = Relation()
        return lambda block: nothing
    each = [kind.at(layout, tokens) for layout in layouts]
    if len(each) == 1:
        return each[0]

    def padded(block: int) -> Relation:
        rotations, biases = zip(*(relations(block) for relations in each), strict=True)
        rotation = bias = None
        if rotations[0] is not None:
            cos, sin = (_stack([part[which] for part in rotations], tokens.shape[1], 0) for which in (0, 1))
            rotation = Rotation(cos, sin, rotations[0].pairing)
        if biases[0] is not None:
            bias = _stack(biases, tokens.shape[1], tokens.shape[1])
        return Relation(rotation, bias)

    return padded


def _stack(parts: Sequence[Tensor], rows: int, columns: int) -> Tensor:
    """Each (1, H, n, …) padded with zeros to this many rows (and columns, unless 0), as one batch."""
    sizes = ((0, columns - part.shape[3] if columns else 0, 0, rows - part.shape[2]) for part in parts)
    return torch.cat([F.pad(part, size) for part, size in zip(parts, sizes, strict=True)])


# Kind, as in `ViTConfig.relative` → its class.
RELATIVE: dict[str, type[Rotary] | type[Biased]] = {"rope": Rotary, "bias": Biased}


def build_relative(config: ViTConfig) -> RelativePositions | None:
    """The relative positions of a model; None if it has none."""
    return None if config.relative.kind == "none" else RELATIVE[config.relative.kind](config)

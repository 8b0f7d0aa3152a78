"""How tokens know where they are: one class per kind of positions that are added to them, in the table at the end."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.model.config import ViTConfig
from vitrail.model.parts import Pair

Added = tuple[Tensor | None, Tensor | None]  # to the prefix tokens (1, covered, D) and to the patches (1, h·w, D)

# Kernel → the arguments of F.interpolate that its origin uses to bring positions to another grid.
RESAMPLE = {
    "google": {"mode": "bilinear", "align_corners": True},  # scipy.ndimage.zoom of order 1
    "timm": {"mode": "bicubic", "align_corners": False, "antialias": True},
    "hf": {"mode": "bicubic", "align_corners": False},
    "torchvision": {"mode": "bicubic", "align_corners": True},
    "dinov2": {"mode": "bicubic", "align_corners": False},  # without registers; with them it is timm's
    "pe": {"mode": "bilinear", "align_corners": False},
    "siglip2": {"mode": "bilinear", "align_corners": False, "antialias": True},
    "radio": {"mode": "bilinear", "align_corners": False},
    "timm_crop": {"mode": "bicubic", "align_corners": False, "antialias": True},  # its NaFlex models that keep shapes
}
# Kernels that get a scale, (new + offset) / old, instead of a size: each cell is then sampled slightly off.
OFFSETS = {"dinov2": 0.1}
# Kernels that resample to the square of the longer side, and then take its top left corner.
CROPPED = ("radio", "timm_crop")


class Positions:
    """No positions at all; the other kinds override what differs.

    What a kind learns is one tensor, `embed.positions` of the model.
    """

    description = "no positions"

    def shape(self, config: ViTConfig) -> tuple[int, ...] | None:
        """The shape of what is learned; None if nothing is."""
        return None

    def at(self, config: ViTConfig, learned: Tensor | None, grid: Pair, like: Tensor) -> Added:
        """The positions on any grid; `like` gives the device and type of what is computed."""
        return None, None

    def resize(self, learned: Tensor, old: ViTConfig, new: ViTConfig) -> Tensor:
        """What is learned, for pictures of another size."""
        raise AssertionError("nothing is learned, so nothing can be resized")


class Learned(Positions):
    """The paper's: a vector for each patch, counted row by row; `covers` says which prefix tokens have one too."""

    description = "learned positions"

    def shape(self, config: ViTConfig) -> tuple[int, ...]:
        return 1, config.positioned_prefix + config.grid[0] * config.grid[1], config.width

    def at(self, config: ViTConfig, learned: Tensor | None, grid: Pair, like: Tensor) -> Added:
        assert learned is not None
        covered = config.positioned_prefix
        patches = resample_positions(learned[:, covered:], config.grid, grid, config.positions.resample)
        return learned[:, :covered], patches

    def resize(self, learned: Tensor, old: ViTConfig, new: ViTConfig) -> Tensor:
        covered = old.positioned_prefix
        patches = resample_positions(learned[:, covered:], old.grid, new.grid, new.positions.resample)
        return torch.cat([learned[:, :covered], patches], dim=1)


class Axes(Positions):
    """The paper's 2-D positions (appendix D.4): half of the width for the row, half for the column, both learned."""

    description = "learned positions of rows and columns"

    def shape(self, config: ViTConfig) -> tuple[int, ...]:
        return 1, sum(config.grid), config.width // 2

    def at(self, config: ViTConfig, learned: Tensor | None, grid: Pair, like: Tensor) -> Added:
        assert learned is not None
        rows, columns = self._resize(learned, config.grid, grid)
        whole = [rows[:, :, None].expand(-1, -1, grid[1], -1), columns[:, None].expand(-1, grid[0], -1, -1)]
        return None, torch.cat(whole, dim=-1).flatten(1, 2)  # (1, h, w, D) → (1, h·w, D)

    def resize(self, learned: Tensor, old: ViTConfig, new: ViTConfig) -> Tensor:
        return torch.cat(self._resize(learned, old.grid, new.grid), dim=1)

    def _resize(self, learned: Tensor, old: Pair, new: Pair) -> tuple[Tensor, Tensor]:
        """Rows (1, h, D / 2) and columns (1, w, D / 2), each along its own axis."""
        parts = learned[:, : old[0]], learned[:, old[0] :]
        rows, columns = (
            part
            if type(count) is int and part.shape[1] == count  # an export with free sizes does not know yet
            else F.interpolate(part.float().mT, size=count, mode="linear").mT.to(part.dtype)
            for part, count in zip(parts, new, strict=True)
        )
        return rows, columns


class SinCos(Positions):
    """Fixed sines and cosines of both coordinates, on any grid."""

    description = "fixed sin-cos positions"

    def at(self, config: ViTConfig, learned: Tensor | None, grid: Pair, like: Tensor) -> Added:
        return None, sincos_positions(grid, config.width, like)


def resample_positions(positions: Tensor, old: Pair, new: Pair, kernel: str) -> Tensor:  # (1, h·w, D)
    """Positions of the patches brought from the old grid to the new one. Grids are compared, never token counts."""
    if all(type(side) is int for side in new) and old == new:  # an export with free sizes does not know yet
        return positions
    picture = positions.float().unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, h, w)
    if kernel in OFFSETS:
        scale = tuple((after + OFFSETS[kernel]) / before for before, after in zip(old, new, strict=True))
        picture = F.interpolate(picture, scale_factor=scale, **RESAMPLE[kernel])  # pyright: ignore
    else:
        size = (max(new), max(new)) if kernel in CROPPED else new
        picture = F.interpolate(picture, size=size, **RESAMPLE[kernel])  # pyright: ignore[reportArgumentType]
        picture = picture[:, :, : new[0], : new[1]] if kernel in CROPPED else picture
    return picture.flatten(2).transpose(1, 2).to(positions.dtype)


def sincos_positions(grid: Pair, width: int, like: Tensor, *, endpoint: bool = True) -> Tensor:
    """Fixed 2-D positions: sin and cos of x and of y, each at width / 4 frequencies.

    The slowest of them is 1 / 10000 (big_vision's form), or without `endpoint` the next would be (MAE's).
    """
    count = width // 4
    last = 1.0 if endpoint else (count - 1) / count
    frequencies = 10_000.0 ** -torch.linspace(0, last, count, device=like.device)
    y, x = torch.meshgrid(*(torch.arange(side, device=like.device) for side in grid), indexing="ij")
    angles_x, angles_y = (axis.flatten()[:, None] * frequencies for axis in (x, y))  # each (h·w, D/4)
    return torch.cat([angles_x.sin(), angles_x.cos(), angles_y.sin(), angles_y.cos()], dim=1)[None].to(like.dtype)


# Kind, as in `PositionConfig.kind` → what it does.
POSITIONS: dict[str, Positions] = {"learned": Learned(), "axes": Axes(), "sincos": SinCos(), "none": Positions()}

"""Oracle: how facebookresearch/dinov2 resizes its positions, written out from its `interpolate_pos_encoding`."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.model import BlockConfig
from vitrail.weights.adapt import adapt
from vitrail.weights.infer import Hints
from vitrail.weights.read import read_checkpoint
from vitrail.weights.write import convert, write_checkpoint
from weights_fixtures import FITTING


def original(positions: Tensor, rows: int, columns: int, offset: float, antialias: bool) -> Tensor:
    """Positions of the patches (1, side², D) → (1, rows · columns, D)."""
    side = int(math.sqrt(positions.shape[1]))
    target: dict[str, Any] = {"size": (rows, columns)}
    if offset:
        target = {"scale_factor": (float(rows + offset) / side, float(columns + offset) / side)}
    picture = positions.float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    picture = F.interpolate(picture, mode="bicubic", antialias=antialias, **target)
    assert picture.shape[-2:] == (rows, columns)
    return picture.permute(0, 2, 3, 1).flatten(1, 2)


@pytest.mark.parametrize("grid", [(6, 6), (3, 3), (2, 7), (8, 2), (37, 16)])
@pytest.mark.parametrize(("registers", "offset", "antialias"), [(0, 0.1, False), (2, 0.0, True)])
def test_positions_are_resized_as_in_the_original(
    tmp_path: Path, make_checkpoint: Any, grid: tuple[int, int], registers: int, offset: float, antialias: bool
) -> None:
    write_checkpoint(make_checkpoint(**{**FITTING["dinov2"], "registers": registers}), tmp_path / "a.pth", "dinov2")
    read = read_checkpoint(tmp_path / "a.pth", hints=Hints(heads=4), allow_pickle=True)
    expected = original(read.tensors["embed.positions"][:, 1:], *grid, offset, antialias)
    _, at_run_time = read.build().embed.positions_at(grid)
    torch.testing.assert_close(at_run_time, expected, rtol=0, atol=0)
    adapted = adapt(read, image_size=(grid[0] * 8, grid[1] * 8))
    torch.testing.assert_close(adapted.tensors["embed.positions"][:, 1:], expected, rtol=0, atol=0)
    torch.testing.assert_close(adapted.tensors["embed.positions"][:, :1], read.tensors["embed.positions"][:, :1])


def test_its_kernel_is_not_the_one_of_transformers(tmp_path: Path, make_checkpoint: Any) -> None:
    fields = {**FITTING["dinov2"], "registers": 0, "block": BlockConfig(layer_scale=1e-5)}
    checkpoint = make_checkpoint(**fields)
    checkpoint = replace(checkpoint, preprocess=replace(checkpoint.preprocess, resize="shortest"))
    write_checkpoint(checkpoint, tmp_path / "a.pth", "dinov2")
    conversion = convert(tmp_path / "a.pth", tmp_path / "hf", "hf", hints=Hints(heads=4))
    assert any("kernel for other picture sizes: resample dinov2 → hf" in note for note in conversion.notes)

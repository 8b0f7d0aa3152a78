"""Objects that are pasted onto a ground."""

import numpy as np
import pytest
import torch

from vitrail.data.augment import objects
from vitrail.data.augment.objects import NUM_OBJECTS, SIDE, paste_objects, sheet
from vitrail.rng import Draws

DRAWS = Draws(0, 0, np.arange(200))


def square(monkeypatch: pytest.MonkeyPatch, *, reach: float) -> None:
    """Only one object, a white square, which is neither tilted nor moved."""
    monkeypatch.setattr(objects, "sheet", lambda: torch.ones(NUM_OBJECTS, 4, SIDE, SIDE))
    monkeypatch.setattr(objects, "REACH", (reach, reach))
    monkeypatch.setattr(objects, "TILT", 0.0)
    monkeypatch.setattr(objects, "MOST_OFFSET", 0.0)


def test_the_sheet_holds_objects_with_transparent_grounds() -> None:
    tiles = sheet()
    assert tiles.shape == (NUM_OBJECTS, 4, SIDE, SIDE)
    opacity = tiles[:, 3].flatten(1)
    assert (opacity.max(dim=1).values > 0.9).all()
    assert 0.3 < float(opacity.mean()) < 0.8
    assert (tiles[:, :3] <= tiles[:, 3:]).all()  # what is transparent has no colour of its own
    assert len(torch.unique(tiles.flatten(1), dim=0)) == NUM_OBJECTS


@pytest.mark.parametrize("shape", [(16, 16), (16, 24), (30, 20), (96, 96)])
def test_an_object_keeps_its_shape_and_leaves_the_ground_around_it(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    square(monkeypatch, reach=0.5)
    made = paste_objects(torch.zeros(4, 3, *shape), DRAWS[:4])
    changed = made > made.amax(dim=(1, 2, 3), keepdim=True) / 2  # edges are soft
    middle, half = (shape[0] // 2, shape[1] // 2), min(shape) // 4
    expected = torch.zeros(shape, dtype=torch.bool)
    expected[middle[0] - half : middle[0] + half, middle[1] - half : middle[1] + half] = True
    assert torch.equal(changed, expected.expand(4, 3, *shape))


def test_objects_are_tilted_moved_mirrored_and_recoloured() -> None:
    grounds = torch.full((200, 3, 32, 32), 90.0)
    made = paste_objects(grounds, DRAWS)
    changed = (made != grounds).any(dim=1)
    share = changed.float().mean(dim=(1, 2))
    assert share.min() > 0.01
    assert 0.3 < float(share.mean()) < 0.8
    weights = changed.float() / changed.sum(dim=(1, 2), keepdim=True)
    column = (weights.sum(dim=1) * torch.arange(32)).sum(dim=1)
    assert column.min() < 12 < 20 < column.max()
    grey = (made.amax(dim=1) - made.amin(dim=1)).flatten(1).amax(dim=1)
    assert grey.min() < 20 < 150 < grey.max()


def test_an_object_mirrors_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    square(monkeypatch, reach=1.0)
    half = torch.ones(NUM_OBJECTS, 4, SIDE, SIDE)
    half[..., : SIDE // 2] = 0
    monkeypatch.setattr(objects, "sheet", lambda: half)
    left = paste_objects(torch.zeros(200, 1, 16, 16), DRAWS)[:, 0, 8, 4] > 0
    assert 0.35 < float(left.float().mean()) < 0.65

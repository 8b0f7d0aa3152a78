"""Positions along both axes: the paper's 2-D form, by its description."""

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.model import PositionConfig, ViTConfig
from vitrail.model.positions import POSITIONS

AXES = PositionConfig(kind="axes")


def test_each_patch_has_the_half_of_its_row_and_the_half_of_its_column(make_model) -> None:
    model = make_model(image_size=(16, 24), positions=AXES)
    learned, (rows, columns) = model.embed.positions, model.config.grid
    assert learned.shape == (1, rows + columns, model.config.width // 2)
    prefix, patches = model.embed.positions_at((rows, columns))
    assert prefix is None  # [cls] has no place
    for row in range(rows):
        for column in range(columns):
            expected = torch.cat([learned[0, row], learned[0, rows + column]])
            assert torch.equal(patches[0, row * columns + column], expected)


def test_another_resolution_stretches_each_axis_by_itself(make_model) -> None:
    model = make_model(positions=AXES)
    rows, columns = model.config.grid
    _, patches = model.embed.positions_at((2 * rows, columns))
    grid = patches[0].unflatten(0, (2 * rows, columns))
    half = model.config.width // 2
    assert torch.equal(grid[0, :, half:], model.embed.positions[0, rows:])  # the columns are as they were
    middle = 0.75 * model.embed.positions[0, 0] + 0.25 * model.embed.positions[0, 1]  # a quarter of the way
    torch.testing.assert_close(grid[1, 0, :half], middle)
    images = torch.randn(1, 3, 2 * model.config.image_size[0], model.config.image_size[1])
    assert model(images).shape == (1, model.config.num_classes)


def test_resizing_for_good_equals_resizing_at_run_time(make_model) -> None:
    model = make_model(positions=AXES)
    size = (2 * model.config.image_size[0], 3 * model.config.image_size[1])
    new = ViTConfig(**{**vars(model.config), "image_size": size})
    resized = POSITIONS["axes"].resize(model.embed.positions, model.config, new)
    _, there = POSITIONS["axes"].at(new, resized, new.grid, resized)
    torch.testing.assert_close(there, model.embed.positions_at(new.grid)[1])


def test_an_odd_width_has_no_halves() -> None:
    with pytest.raises(ConfigError, match="even width; got 15"):
        ViTConfig(width=15, heads=1, positions=AXES)

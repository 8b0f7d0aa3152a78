"""A square at a known place of the picture comes back at this place, through any preprocessing."""

from itertools import product

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.preprocess import Preprocess
from vitrail.data.transform import fit_tensor
from vitrail.explanation.heatmap import enlarge, overlay
from vitrail.explanation.saliency import Subject, open_subject, spread, view_of

SPECS = st.builds(
    lambda size, cut, crop, kernel: Preprocess(
        size=size, resize=cut[0], crop=crop, kernel=kernel, anchor=cut[1], channels=1, mean=(0.5,), std=(0.5,)
    ),
    size=st.sampled_from([(32, 32), (48, 32), (32, 64)]),
    cut=st.sampled_from([*product(("squash", "shortest"), ("round", "floor")), ("squash", "corner")]),
    crop=st.sampled_from([1.0, 0.875, 0.6]),
    kernel=st.sampled_from(["pillow", "bytes", "float"]),
)
SIDES = st.integers(40, 300)


@given(spec=SPECS, height=SIDES, width=SIDES, data=st.data())
def test_a_bright_spot_comes_back_where_it_was(spec: Preprocess, height: int, width: int, data: st.DataObject) -> None:
    view = view_of(spec, (height, width))
    top, left, bottom, right = view.seen
    grid = (spec.size[0] // 8, spec.size[1] // 8)
    row, column = data.draw(st.integers(0, grid[0] - 1)), data.draw(st.integers(0, grid[1] - 1))
    # Paint, in the picture, the pixels that the geometry says belong to one patch ...
    cells = torch.zeros(grid)
    cells[row, column] = 1.0
    block = spread(cells, view, "blocks")
    picture = torch.zeros(1, height, width, dtype=torch.uint8)
    picture[0, top:bottom, left:right] = (block * 255).byte()
    # ... and let the real preprocessing say where the model sees them.
    seen = fit_tensor(picture, spec)[0].float() / 255
    shares = seen.unflatten(0, (grid[0], 8)).unflatten(2, (grid[1], 8)).mean(dim=(1, 3))
    assert int(shares.argmax()) == row * grid[1] + column
    assert shares.max() > 0.65  # enlarging a small picture blurs the edges of the spot
    assert shares.sum() < 1.6


@given(spec=SPECS, height=SIDES, width=SIDES)
def test_what_is_unseen_is_what_the_crop_cuts_off(spec: Preprocess, height: int, width: int) -> None:
    top, left, bottom, right = view_of(spec, (height, width)).seen
    assert 0 <= top < bottom <= height
    assert 0 <= left < right <= width
    outside = torch.full((1, height, width), 255, dtype=torch.uint8)
    outside[:, top:bottom, left:right] = 0
    margin = fit_tensor(outside, spec)[0].float() / 255
    assert margin[2:-2, 2:-2].max() < 0.35  # the kernel reaches over the edge by a pixel or two, no further
    if spec.resize == "squash" and spec.crop == 1.0:
        assert (top, left, bottom, right) == (0, 0, height, width)
    inside = 255 - outside
    assert (fit_tensor(inside, spec)[0].float() / 255)[2:-2, 2:-2].min() > 0.65


@given(spec=SPECS, height=SIDES, width=SIDES, seed=st.integers(0, 9))
def test_smooth_maps_keep_to_the_range_and_the_centres(spec: Preprocess, height: int, width: int, seed: int) -> None:
    view = view_of(spec, (height, width))
    cells = torch.rand(4, 6, generator=torch.Generator().manual_seed(seed))
    shown = spread(cells, view)
    assert shown.shape == (view.seen[2] - view.seen[0], view.seen[3] - view.seen[1])
    assert shown.min() >= cells.min() - 1e-6
    assert shown.max() <= cells.max() + 1e-6
    assert torch.allclose(spread(torch.ones(4, 6), view), torch.ones_like(shown))


def test_smooth_is_pillows_bilinear_enlargement() -> None:
    cells = torch.rand(5, 7)
    view = view_of(Preprocess(size=(40, 56)), (120, 84))
    expected = np.array(Image.fromarray(cells.numpy()).resize((84, 120), Image.Resampling.BILINEAR))
    assert np.allclose(spread(cells, view).numpy(), expected, atol=1e-5)


def test_blocks_are_the_patches() -> None:
    cells = torch.arange(6.0).view(2, 3)
    view = view_of(Preprocess(size=(16, 24)), (20, 30))
    assert torch.equal(spread(cells, view, "blocks"), cells.repeat_interleave(10, 0).repeat_interleave(10, 1))


def test_a_single_row_of_patches() -> None:
    view = view_of(Preprocess(size=(8, 24)), (10, 30))
    assert spread(torch.tensor([[1.0, 2.0, 3.0]]), view).shape == (10, 30)
    assert torch.allclose(spread(torch.tensor([[4.0]]), view), torch.full((10, 30), 4.0))


def test_the_overlay_has_the_pictures_size_and_hides_the_unseen() -> None:
    spec = Preprocess(size=(32, 32), resize="shortest", crop=0.5)
    green = torch.tensor([20, 200, 60], dtype=torch.uint8)[:, None, None].expand(3, 300, 500)
    subject = open_subject(green, spec)
    cells = torch.zeros(4, 4)
    cells[0, 3] = 1.0
    drawn = np.array(overlay(subject, cells)).astype(int)
    assert drawn.shape == (300, 500, 3)
    top, left, bottom, right = subject.view.seen
    colour = drawn.max(axis=2) - drawn.min(axis=2)
    hidden = np.ones((300, 500), dtype=bool)
    hidden[top:bottom, left:right] = False
    assert colour[hidden].max() <= 2  # grey: no colour of the map outside
    assert colour[top:bottom, left:right].max() > 100
    brightest = np.unravel_index(colour.argmax(), colour.shape)
    assert top <= brightest[0] < top + (bottom - top) / 4
    assert right - (right - left) / 4 <= brightest[1] < right


def test_small_pictures_are_enlarged_by_whole_numbers() -> None:
    spec = Preprocess(size=(8, 8), resize="shortest", crop=0.8)
    subject = open_subject(torch.randint(0, 256, (3, 10, 17), dtype=torch.uint8), spec)
    large = enlarge(subject)
    assert large.pixels.shape == (3, 230, 391)
    assert torch.equal(large.pixels[:, ::23, ::23], subject.pixels)
    assert [23 * number for number in (subject.view.top, subject.view.left)] == [large.view.top, large.view.left]
    assert isinstance(large, Subject)
    assert overlay(subject, torch.rand(4, 4)).size == (391, 230)

"""Occlusion and the deletion and insertion curves against plain loops."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from tests.explanation.conftest import images_for

from vitrail.errors import ConfigError
from vitrail.explanation import occlusion as module
from vitrail.explanation.faithfulness import blurred, measure, random_map, removals
from vitrail.explanation.occlusion import occlude
from vitrail.tasks.one import log_odds


def test_occlusion_is_one_forward_per_patch(make_model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(image_size=(16, 24), pooling="mean")
    images, targets = images_for(model), torch.tensor([4, 1])
    monkeypatch.setattr(module, "PIXELS", 4 * 16 * 24)  # several batches
    maps, logits = occlude(model, 7, (2, 3), images, targets)
    assert torch.allclose(logits, model(images), atol=1e-5)
    for image, target, found in zip(images, targets, maps, strict=True):
        whole = torch.log_softmax(model(image[None])[0].double(), dim=0)[target].exp()
        for row in range(2):
            for column in range(3):
                covered = image.clone()
                covered[:, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] = image.mean(dim=(1, 2))[:, None, None]
                share = torch.softmax(model(covered[None])[0].double(), dim=0)[target]
                drop = torch.logit(whole) - torch.logit(share)
                assert found[row, column].item() == pytest.approx(drop.item(), rel=1e-3, abs=1e-4)


def test_log_odds_do_not_saturate() -> None:
    logits = torch.tensor([[60.0, 0.0, 0.0], [80.0, 0.0, 0.0]])
    first, second = log_odds(logits, 0).tolist()
    assert second - first == pytest.approx(20.0)
    assert log_odds(torch.tensor([[3.0]]), 0).item() == 3.0


def test_deletion_and_insertion_are_areas_under_loops(make_model) -> None:
    model = make_model(image_size=(16, 24))
    image, target = images_for(model, 1)[0], 3
    cells = torch.rand(2, 3)
    order = np.argsort(-cells.numpy().ravel())
    grey, soft = image.mean(dim=(1, 2))[:, None, None].expand_as(image), blurred(image)
    areas = []
    for start, end in ((image, grey), (soft, image)):
        picture = start.clone()
        curve = [torch.softmax(model(picture[None])[0], dim=0)[target].item()]
        for place in order:
            row, column = divmod(int(place), 3)
            rows, columns = slice(row * 8, row * 8 + 8), slice(column * 8, column * 8 + 8)
            picture[:, rows, columns] = end[:, rows, columns]
            curve.append(torch.softmax(model(picture[None])[0], dim=0)[target].item())
        areas.append(np.trapezoid(curve, dx=1 / 6))
    found = measure(model, image, target, cells, steps=6)
    assert found.deletion == pytest.approx(areas[0], abs=1e-5)
    assert found.insertion == pytest.approx(areas[1], abs=1e-5)
    assert found.score == pytest.approx(areas[1] - areas[0], abs=1e-5)


def test_steps_are_even_and_whole() -> None:
    taken = removals(torch.rand(7, 7), 12).flatten(1).sum(dim=1).tolist()
    assert taken[0] == 0
    assert taken[-1] == 49
    assert set(np.diff(taken)) == {4, 5}
    assert len(removals(torch.rand(2, 2), 12)) == 5  # no more steps than patches
    assert removals(torch.tensor([[1.0, 5.0], [3.0, 2.0]]), 4)[2].tolist() == [[False, True], [True, False]]


def test_the_blur_is_scipys() -> None:
    image = torch.rand(3, 40, 60)
    expected = np.stack([gaussian_filter(plane, 4.0, mode="nearest", radius=12) for plane in image.numpy()])
    assert np.allclose(blurred(image).numpy(), expected, atol=1e-4)


def test_random_maps_are_the_same_again() -> None:
    assert torch.equal(random_map((3, 4), 1), random_map((3, 4), 1))
    assert not torch.equal(random_map((3, 4), 1), random_map((3, 4), 2))


def test_occlusion_needs_a_class(make_model) -> None:
    model = make_model(num_classes=0)
    with pytest.raises(ConfigError, match="no head"):
        occlude(model, 0, (4, 4), images_for(model))

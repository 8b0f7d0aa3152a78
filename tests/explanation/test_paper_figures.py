"""The numbers of the paper's figures against NumPy and scikit-learn, written out."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from tests.explanation.conftest import SHAPES, eager, images_for

from vitrail.explanation.paper_figures import (
    attention_distance,
    patch_distances,
    patch_filters,
    plot_distance,
    plot_filters,
    plot_positions,
    position_similarity,
    save_paper_figure,
)
from vitrail.model import PositionConfig


@pytest.mark.parametrize("shape", ["cls, registers", "mean, no [cls]", "map, registers", "not square", "one layer"])
def test_attention_distance_is_the_weighted_mean_of_distances(shape: str, make_model) -> None:
    model = make_model(**SHAPES[shape])
    images = images_for(model)
    _, kept, _ = eager(model, images)
    (rows, columns), (high, wide), prefix = model.config.grid, model.config.stride, model.config.prefix
    places = [(row, column) for row in range(rows) for column in range(columns)]
    found = attention_distance(model, images)
    assert found.shape == (model.config.depth, model.config.heads)
    for layer, probabilities in enumerate(kept):
        for head, matrix in enumerate(probabilities):
            among = matrix.detach().double().numpy()[:, prefix:, prefix:]
            total = 0.0
            for picture in among:
                for looking, row in enumerate(picture):
                    for seen, share in enumerate(row / row.sum()):
                        dy, dx = (np.array(places[looking]) - np.array(places[seen])) * (high, wide)
                        total += share * math.hypot(dy, dx)
            assert found[layer, head].item() == pytest.approx(total / len(images) / len(places), rel=1e-4)


def test_distances_are_in_pixels() -> None:
    far = patch_distances((2, 3), (16, 8))
    assert far[0].tolist() == pytest.approx([0, 8, 16, 16, math.hypot(16, 8), math.hypot(16, 16)])
    assert torch.equal(far, far.T)


@pytest.mark.parametrize("covers", ["patches", "class", "all"])
def test_position_similarity_is_the_cosine_of_the_patches(covers: str, make_model) -> None:
    model = make_model(image_size=(32, 48), registers=2, positions=PositionConfig(covers=covers))
    found: Any = position_similarity(model)
    vectors = model.embed.positions.detach().numpy()[0][{"patches": 0, "class": 1, "all": 3}[covers] :]
    assert found.shape == (4, 6, 4, 6)
    for first in range(24):
        for second in range(24):
            a, b = vectors[first], vectors[second]
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            assert found[first // 6, first % 6, second // 6, second % 6].item() == pytest.approx(cosine, abs=1e-5)


def test_no_positions_are_no_figure(make_model) -> None:
    assert position_similarity(make_model(positions=PositionConfig(kind="none"))) is None
    fixed = position_similarity(make_model(positions=PositionConfig(kind="sincos")))
    assert torch.allclose(torch.einsum("ijij->ij", fixed), torch.ones(4, 4))


def test_filters_are_scikit_learns_principal_components(make_model) -> None:
    model = make_model(patch_size=(4, 8))
    found = patch_filters(model, 10)
    assert found.explained is not None
    weight = model.embed.patches.weight.detach().numpy().reshape(32, -1)
    pca = PCA(n_components=10, svd_solver="full").fit(weight)
    assert found.pictures.shape == (10, 3, 4, 8)
    assert np.allclose(found.explained.numpy(), pca.explained_variance_ratio_, atol=1e-5)
    for ours, theirs in zip(found.pictures.flatten(1).numpy(), pca.components_, strict=True):
        assert abs(ours @ theirs) == pytest.approx(1, abs=1e-3)
        assert ours[np.abs(ours).argmax()] > 0


@pytest.mark.parametrize(("shape", "name", "size"), [("conv stem", "conv", 3), ("resnet stem, mean", "ResNet", 7)])
def test_a_stem_shows_its_first_convolution(shape: str, name: str, size: int, make_model) -> None:
    model = make_model(**SHAPES[shape])
    found = patch_filters(model)
    assert found.explained is None
    assert f"{size}×{size} convolution of the {name} stem" in found.what
    stem = model.embed.stem
    raw = (stem[0] if name == "conv" else stem.conv_root).weight.detach()
    assert found.pictures.shape == raw.shape
    if name == "conv":
        assert torch.equal(found.pictures, raw)
    else:
        assert torch.allclose(found.pictures.mean(dim=(1, 2, 3)), torch.zeros(len(raw)), atol=1e-5)
        assert torch.allclose(found.pictures.flatten(1).std(dim=1, correction=0), torch.ones(len(raw)), atol=1e-4)


def test_a_figure_is_a_pdf_and_a_png(make_model, tmp_path) -> None:
    model = make_model(image_size=(32, 48), channels=5)
    similarity: Any = position_similarity(model)
    figures = {
        "filters": plot_filters(patch_filters(model)),
        "positions": plot_positions(similarity, "learned"),
        "distance": plot_distance(torch.rand(3, 4), 2, (32, 32)),
    }
    for name, figure in figures.items():
        pdf, png = save_paper_figure(figure, tmp_path, name)
        assert pdf.read_bytes().startswith(b"%PDF")
        assert png.read_bytes().startswith(b"\x89PNG")
    axes = figures["positions"].axes[0]
    mosaic = np.asarray(axes.images[0].get_array())
    assert mosaic.shape == (4 * 5 - 1, 6 * 7 - 1)
    assert mosaic[5, 14 + 3] == pytest.approx(similarity[1, 2, 0, 3].item())
    dots = figures["distance"].axes[0].collections
    assert len(dots) == 4


def test_of_many_positions_some_are_shown_on_the_scale_of_the_others(make_model) -> None:
    """A tile per patch of 14×14 would be too small to see; and 1, of a patch with itself, would leave one colour."""
    generator = torch.Generator().manual_seed(0)
    similarity = 0.2 * torch.rand(14, 14, 14, 14, generator=generator)
    own = torch.arange(14)
    similarity[own[:, None], own, own[:, None], own] = 1.0
    axes = plot_positions(similarity, "learned").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "3", "5", "7", "10", "12", "14"]
    image = axes.images[0]
    assert image.get_clim()[1] <= 0.2
    mosaic = np.ma.asarray(image.get_array())
    assert np.allclose(mosaic[:14, :14], similarity[0, 0].numpy())
    assert np.allclose(mosaic[-14:, -14:], similarity[13, 13].numpy())
    assert np.ma.getmaskarray(np.ma.masked_invalid(mosaic))[14, :14].all()  # a gap between the tiles

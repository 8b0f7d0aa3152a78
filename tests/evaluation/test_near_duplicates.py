"""Neighbours against scikit-learn's; what is a near duplicate is decided by pixels."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images
from sklearn.neighbors import NearestNeighbors

from vitrail.data.check import duplicates as thumbnails
from vitrail.data.check.scan import PictureFacts
from vitrail.evaluation import near_duplicates
from vitrail.evaluation.near_duplicates import Neighbours, Pair, center, find_duplicates, find_neighbours, group_pairs

PHOTOGRAPHS = [Image.fromarray(image) for image in load_sample_images().images]
MIRROR = Image.Transpose.FLIP_LEFT_RIGHT


def facts_of(images: list[Image.Image]) -> list[PictureFacts]:
    return [
        PictureFacts(
            split="train",
            index=index,
            key=f"{index}",
            label=0,
            width=image.width,
            height=image.height,
            digest=image.tobytes(),
            thumbnail=image.convert("L").resize((16, 16), Image.Resampling.BOX).tobytes(),
        )
        for index, image in enumerate(images)
    ]


def neighbours_of(similarities: np.ndarray) -> Neighbours:
    """All others of each picture, as if their features had these similarities."""
    order = np.argsort(-similarities - 9 * -np.eye(len(similarities)), axis=1)[:, :-1]
    return Neighbours(positions=order, similarities=np.take_along_axis(similarities, order, 1).astype(np.float32))


@pytest.mark.parametrize("cells", [1, 1000, 1 << 24])
def test_neighbours_are_scikit_learns(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_duplicates, "CELLS", cells)
    vectors = center(np.random.default_rng(0).normal(1.0, 1.0, (60, 12)).astype(np.float32))
    done: list[int] = []
    found = find_neighbours(vectors, 5, done.append)
    distances, positions = NearestNeighbors(n_neighbors=6, metric="cosine", algorithm="brute").fit(vectors).kneighbors()
    assert found.positions.tolist() == positions[:, :5].tolist()
    assert found.similarities == pytest.approx(1 - distances[:, :5], abs=1e-5)
    assert sum(done) == 60
    assert find_neighbours(vectors[:3], 10).positions.shape == (3, 2)


def test_of_very_many_the_close_ones_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thumbnails, "ALL_PAIRS", 100)
    random = np.random.default_rng(0)
    some = random.normal(size=(150, 16))
    vectors = center(np.concatenate([some, some + 0.05 * random.normal(size=(150, 16))]).astype(np.float32))
    found = find_neighbours(vectors, 3)
    copies = (np.arange(300) + 150) % 300
    assert (found.positions[:, 0] == copies).mean() > 0.97
    rows = zip(found.positions, found.similarities, strict=True)
    known = [positions[similarities > -1].tolist() for positions, similarities in rows]
    assert all(len(set(row)) == len(row) and own not in row for own, row in enumerate(known))


def test_pixels_decide_what_features_propose() -> None:
    one, two = (image.resize((320, 214)) for image in PHOTOGRAPHS)
    cropped = one.crop((13, 9, 307, 205))  # 4 % at each side
    images = [one, two, cropped, cropped.transpose(MIRROR), two.resize((100, 67)), two.transpose(MIRROR), one.copy()]
    facts = facts_of(images)
    unlike, alike = (find_duplicates(facts, np.arange(7), neighbours_of(np.full((7, 7), s))) for s in (0.5, 0.9))
    kinds = {(pair.first, pair.other): pair.likeness for pair in unlike}
    assert kinds == {(0, 6): "same", (1, 4): "near", (1, 5): "mirrored", (4, 5): "mirrored", (2, 3): "mirrored"}
    kinds = {(pair.first, pair.other): pair.likeness for pair in alike}
    assert kinds[0, 2] == "near"
    assert kinds[0, 3] == "mirrored"
    assert not {(0, 1), (1, 2), (1, 3), (0, 4)} & set(kinds), "two photographs, whatever their features"
    few = find_duplicates(facts, np.array([0, 1, 2]), neighbours_of(np.full((3, 3), 0.9)))
    assert [(pair.first, pair.other) for pair in few] == [(0, 2)], "what has no features is left out"


def test_groups_are_whatever_pairs_connect() -> None:
    pairs = [Pair(first=a, other=b, likeness="near") for a, b in ((0, 3), (3, 4), (1, 6))]
    groups = group_pairs(pairs, 7)
    assert len(set(groups)) == 4
    assert groups[0] == groups[3] == groups[4]
    assert groups[1] == groups[6]
    assert len(set(group_pairs([], 3))) == 3

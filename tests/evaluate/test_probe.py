"""Probes against scikit-learn's own classifiers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitrail.data import Dataset, prepare
from vitrail.errors import ConfigError, DataError, InputError
from vitrail.evaluate import probe
from vitrail.evaluate.probe import Features
from vitrail.evaluate.projection import project
from vitrail.predict import Predictor


@pytest.fixture
def parts() -> tuple[Features, Features, Features]:
    """Iris with noise on top, so that nobody is right every time."""
    iris = load_iris()
    generator = np.random.default_rng(0)
    vectors = (iris.data + generator.normal(scale=0.8, size=iris.data.shape)).astype(np.float32)
    order = generator.permutation(150)
    cuts = (order[:70], order[70:100], order[100:])
    train, val, test = (Features(vectors=vectors[cut], labels=iris.target[cut].astype(np.int64)) for cut in cuts)
    return train, val, test


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.07), (20, 5.0), (500, 0.07)])
def test_knn_equals_scikit_learns_with_dinos_weights(
    parts: tuple[Features, ...], k: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "BLOCK", 16)
    train, _, test = parts
    oracle = KNeighborsClassifier(
        min(k, 70), metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / temperature)
    ).fit(train.vectors, train.labels)
    expected = (oracle.predict(test.vectors) == test.labels).mean()
    found = probe.knn(train, test, k=k, temperature=temperature)
    assert found.value == pytest.approx(expected)
    assert 0.5 < found.value < 1


def test_linear_chooses_c_on_validation(parts: tuple[Features, ...]) -> None:
    train, val, test = parts
    found = probe.linear(train, val, test)
    expected = {}
    for c in probe.SWEEP:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=1000)).fit(train.vectors, train.labels)
        expected[c] = (model.score(val.vectors, val.labels), model.score(test.vectors, test.labels))
    assert found.validation == pytest.approx({c: scores[0] for c, scores in expected.items()})
    assert found.validation[found.best_c] == max(found.validation.values())
    assert found.top1.value == pytest.approx(expected[found.best_c][1])
    assert len(set(found.validation.values())) > 1


def test_few_shots_are_that_many_of_each_class(parts: tuple[Features, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Features] = []
    real = probe.linear
    monkeypatch.setattr(probe, "linear", lambda train, *rest, **more: seen.append(train) or real(train, *rest, **more))
    found = probe.few_shot(*parts, shots=4, trials=3)
    assert [np.bincount(few.labels).tolist() for few in seen] == [[4, 4, 4]] * 3
    assert not np.array_equal(seen[0].vectors, seen[1].vectors)
    assert found.mean == pytest.approx(np.mean(found.trials))
    with pytest.raises(ConfigError, match="shots must be from 1 to"):
        probe.few_shot(*parts, shots=60)


def test_features_are_what_the_head_sees(predictor: Predictor, arrays: Dataset) -> None:
    found = probe.extract(predictor, arrays, "test")
    image = prepare(arrays.split("test").picture(7), predictor.preprocess)
    with torch.inference_mode():
        np.testing.assert_allclose(found.vectors[7], predictor.model.features(image[None])[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.labels, arrays.split("test").labels)


def test_splits_of_a_probe_differ(arrays: Dataset) -> None:
    with pytest.raises(DataError, match="has none beside test"):
        probe.require_splits(arrays, "test")
    three = replace(arrays, splits={**arrays.splits, "val": arrays.split("train")})
    assert probe.require_splits(three, "test") == ("train", "val", "test")
    assert probe.require_splits(three, "val") == ("train", "test", "val")
    with pytest.raises(DataError, match="other than train"):
        probe.require_splits(three, "train")


def test_maps(parts: tuple[Features, ...]) -> None:
    vectors = parts[0].vectors
    expected = PCA(2, svd_solver="full").fit_transform(vectors.astype(np.float64))
    np.testing.assert_allclose(project(vectors), expected)
    points = project(vectors, "tsne")
    assert points.shape == (70, 2)
    np.testing.assert_array_equal(points, project(vectors, "tsne"))
    with pytest.raises(InputError, match="at least 3 pictures; got 2"):
        project(vectors[:2])

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
from vitrail.evaluation import probe
from vitrail.evaluation.probe import FeatureSet, project
from vitrail.prediction import Predictor


@pytest.fixture
def parts() -> tuple[FeatureSet, FeatureSet, FeatureSet]:
    """Iris with noise on top, so that nobody is right every time."""
    iris = load_iris()
    generator = np.random.default_rng(0)
    vectors = (iris.data + generator.normal(scale=0.8, size=iris.data.shape)).astype(np.float32)
    order = generator.permutation(150)
    cuts = (order[:70], order[70:100], order[100:])
    train, val, test = (FeatureSet(vectors=vectors[cut], labels=iris.target[cut].astype(np.int64)) for cut in cuts)
    return train, val, test


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.07), (20, 5.0), (500, 0.07)])
def test_knn_equals_scikit_learns_with_dinos_weights(
    parts: tuple[FeatureSet, ...], k: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "BLOCK", 16)
    train, _, test = parts
    oracle = KNeighborsClassifier(
        min(k, 70), metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / temperature)
    ).fit(train.vectors, train.labels)
    expected = (oracle.predict(test.vectors) == test.labels).mean()
    found = probe.knn(train, test, k=k, temperature=temperature)
    assert found.top1.value == pytest.approx(expected)
    assert 0.5 < found.top1.value < 1
    assert found.k == min(k, 70)


def test_linear_chooses_c_on_validation(parts: tuple[FeatureSet, ...]) -> None:
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


def test_few_shots_are_that_many_of_each_class(parts: tuple[FeatureSet, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[FeatureSet] = []
    real = probe.linear
    monkeypatch.setattr(probe, "linear", lambda train, *rest, **more: seen.append(train) or real(train, *rest, **more))
    found = probe.few_shot(*parts, shots=4, trials=3)
    assert [np.bincount(few.labels).tolist() for few in seen] == [[4, 4, 4]] * 3
    assert not np.array_equal(seen[0].vectors, seen[1].vectors)
    assert found.mean == pytest.approx(np.mean(found.trials))
    with pytest.raises(ConfigError, match="shots must be from 1 to"):
        probe.few_shot(*parts, shots=60)


def test_features_are_what_the_head_sees(predictor: Predictor, arrays: Dataset) -> None:
    found = probe.extract(predictor, arrays.split("test"))
    image = prepare(arrays.split("test").picture(7), predictor.preprocess)
    with torch.inference_mode():
        np.testing.assert_allclose(found.vectors[7], predictor.model.features(image[None])[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.labels, arrays.split("test").labels)


def test_splits_of_a_probe_differ(arrays: Dataset) -> None:
    train, test, val = arrays.split("train"), arrays.split("test"), arrays.split("train").select(range(30))
    three = replace(arrays, splits={**arrays.splits, "val": val})
    assert probe.choose_parts(three, "test", selects=True).sources == (train, val, test)
    assert probe.choose_parts(three, "val", selects=True).sources == (train, test, val)
    for name in ("train", "all"):
        with pytest.raises(DataError, match="other than train"):
            probe.choose_parts(three, name, selects=True)
    with pytest.raises(DataError, match="has no split 'tset'"):
        probe.choose_parts(three, "tset", selects=False)


@pytest.mark.parametrize("measured", ["test", "val"])
def test_without_another_split_a_tenth_of_train_is_chosen_on(arrays: Dataset, measured: str) -> None:
    train, held_out = arrays.split("train"), arrays.split("test")
    data = replace(arrays, splits={"train": train, measured: held_out})
    parts = probe.choose_parts(data, measured, selects=True)
    assert parts.carved
    assert parts.val is not None
    assert parts.test is held_out
    names = [{part.key(index) for index in range(len(part))} for part in (parts.train, parts.val)]
    assert not names[0] & names[1]
    assert len(names[0]) + len(names[1]) == len(train)
    assert np.bincount(parts.val.labels).tolist() == [2] * 7
    with pytest.raises(ConfigError, match="shots must be from 1 to 19"):
        probe.check_shots(parts.train.labels, 20)
    assert probe.choose_parts(data, measured, selects=False).sources == (train, held_out)
    few = replace(data, splits={"train": train.select(range(7)), measured: held_out})
    with pytest.raises(DataError, match="one training picture of each class"):
        probe.choose_parts(few, measured, selects=True)


def test_maps(parts: tuple[FeatureSet, ...]) -> None:
    vectors = parts[0].vectors
    expected = PCA(2, svd_solver="full").fit_transform(vectors.astype(np.float64))
    np.testing.assert_allclose(project(vectors), expected)
    points = project(vectors, "tsne")
    assert points.shape == (70, 2)
    np.testing.assert_array_equal(points, project(vectors, "tsne"))
    with pytest.raises(InputError, match="at least 3 pictures; got 2"):
        project(vectors[:2])


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_features_that_make_no_map_are_refused(method: str) -> None:
    with pytest.raises(InputError, match="of all 20 are the same"):
        project(np.full((20, 8), 0.3, dtype=np.float32), method)
    with pytest.raises(InputError, match="NaN or infinite"):
        project(np.array([[0.0, 1], [1, 0], [1, np.nan]]), method)

"""Gaussian classes against SciPy's densities and scikit-learn's shrinkage."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal
from sklearn.covariance import ledoit_wolf

from vitrail.evaluation import gaussians
from vitrail.evaluation.gaussians import fit_gaussians, shrunk_covariance


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussians, "ROWS", 7)


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat([0, 1, 3], (12, 20, 8)))  # class 2 is empty
    mixing = random.normal(size=(6, 6))
    return ((random.normal(size=(40, 6)) + 2 * labels[:, None]) @ mixing).astype(np.float32), labels


def centers(vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.stack([vectors[labels == k].mean(0) if (labels == k).any() else np.zeros(6) for k in range(4)])


def test_the_covariance_is_ledoit_and_wolfs(data: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, labels = data
    means = centers(vectors.astype(np.float64), labels)
    expected, shrinkage = ledoit_wolf(vectors.astype(np.float64) - means[labels], assume_centered=True)
    assert 0.001 < shrinkage < 0.9
    assert shrunk_covariance(vectors, labels, means) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_posteriors_are_those_of_bayes(data: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, labels = data
    means = centers(vectors.astype(np.float64), labels)
    covariance = shrunk_covariance(vectors, labels, means)
    joint = np.stack(
        [
            multivariate_normal(means[k], covariance).pdf(vectors) * (labels == k).mean() if k != 2 else np.zeros(40)
            for k in range(4)
        ],
        axis=1,
    )
    logs = fit_gaussians(vectors, labels, 4).log_posteriors(vectors)
    assert np.exp(logs) == pytest.approx(joint / joint.sum(1, keepdims=True), abs=1e-5)
    assert np.isneginf(logs[:, 2]).all()


def test_distances_are_mahalanobis_to_the_nearest_class(data: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, labels = data
    means = centers(vectors.astype(np.float64), labels)
    inverse = np.linalg.inv(shrunk_covariance(vectors, labels, means))
    expected = cdist(vectors, means[[0, 1, 3]], "mahalanobis", VI=inverse).min(1) ** 2
    assert fit_gaussians(vectors, labels, 4).distances(vectors) == pytest.approx(expected, rel=1e-6)


def test_fewer_pictures_than_features_and_equal_ones() -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 30)).astype(np.float32)
    labels = np.array([0, 0, 1, 1, 1])
    assert np.isfinite(fit_gaussians(vectors, labels, 2).log_posteriors(vectors)).all()
    same = np.ones((5, 4), dtype=np.float32)
    assert fit_gaussians(same, labels, 2).log_posteriors(same)[0] == pytest.approx(np.log([0.4, 0.6]), abs=1e-3)

"""Classes as Gaussians in feature space that share one covariance: a linear probe in closed form, and distances.

The covariance is shrunk towards a multiple of the identity as Ledoit and Wolf (2004) do, so that it can be inverted
even where there are fewer pictures than features. Everything is computed in blocks of rows, in double precision.
"""

from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.measurement import Singles
from vitrail.tasks.one_metrics import Floats, Integers

ROWS = 4096  # that are computed together


@dataclass(frozen=True, kw_only=True, eq=False)
class Gaussians:
    """A mean for each class, and what all classes share."""

    means: Floats  # (K, D); zeros for a class without pictures
    counts: Integers  # (K,)
    precision: Floats  # (D, D), the inverse of the shrunk covariance

    def log_posteriors(self, vectors: Singles) -> Singles:  # (N, D) → (N, K)
        """The logarithm of each class's probability, by linear discriminant analysis; -inf for an empty class."""
        projected = self.means @ self.precision  # (K, D)
        with np.errstate(divide="ignore"):
            offsets = np.log(self.counts / self.counts.sum()) - (projected * self.means).sum(axis=1) / 2
        scores = np.empty((len(vectors), len(self.means)), dtype=np.float32)
        for start in range(0, len(vectors), ROWS):
            block = vectors[start : start + ROWS].astype(np.float64) @ projected.T + offsets
            scores[start : start + ROWS] = block - np.logaddexp.reduce(block, axis=1, keepdims=True)
        return scores

    def distances(self, vectors: Singles) -> Floats:  # (N, D) → (N,)
        """The squared Mahalanobis distance to the mean of the nearest class."""
        projected = self.means @ self.precision
        offsets = np.where(self.counts > 0, (projected * self.means).sum(axis=1), np.inf)
        nearest = np.empty(len(vectors))
        for start in range(0, len(vectors), ROWS):
            rows = vectors[start : start + ROWS].astype(np.float64)
            own = ((rows @ self.precision) * rows).sum(axis=1)
            nearest[start : start + ROWS] = own + (offsets - 2 * rows @ projected.T).min(axis=1)
        return nearest


def fit_gaussians(vectors: Singles, labels: Integers, num_classes: int) -> Gaussians:
    """The Gaussians of features (N, D) and their labels."""
    counts = np.bincount(labels, minlength=num_classes)
    means = np.zeros((num_classes, vectors.shape[1]))
    for label in np.flatnonzero(counts):
        means[label] = vectors[labels == label].mean(axis=0, dtype=np.float64)
    precision = np.linalg.inv(shrunk_covariance(vectors, labels, means)).astype(np.float64)
    return Gaussians(means=means, counts=counts, precision=precision)


def shrunk_covariance(vectors: Singles, labels: Integers, means: Floats) -> Floats:
    """The shrunk covariance of the features about the means of their classes."""
    count, width = vectors.shape
    products, fourth = np.zeros((width, width)), 0.0
    for start in range(0, count, ROWS):
        offsets = vectors[start : start + ROWS] - means[labels[start : start + ROWS]]
        products += offsets.T @ offsets
        fourth += float(((offsets**2).sum(axis=1) ** 2).sum())
    covariance = products / count
    size = float((covariance**2).sum())
    mean = max(float(np.trace(covariance)) / width, 1e-12)  # where all features are equal
    noise = (fourth / count - size) / count  # of the entries of the covariance
    spread = size - width * mean**2  # of the covariance about a multiple of the identity
    shrinkage = min(max(noise / spread, 0.0), 1.0) if spread > 0 else 1.0
    return (1 - shrinkage) * covariance + shrinkage * mean * np.eye(width)

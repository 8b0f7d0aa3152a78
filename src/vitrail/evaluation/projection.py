"""Features as points on a plane: PCA or t-SNE."""

from importlib import import_module
from typing import Any, Literal, cast

import numpy as np

from vitrail.errors import InputError

Method = Literal["pca", "tsne"]
MOST_COMPONENTS = 50  # t-SNE starts from the principal components, as its authors advise


def project(features: np.ndarray[Any, Any], method: Method = "pca", seed: int = 0) -> np.ndarray[Any, Any]:
    """(N, D) → (N, 2), the same every time."""
    if len(features) < 3:
        raise InputError(f"a map needs at least 3 pictures; got {len(features)}.")
    if not np.isfinite(features).all():
        raise InputError("a map needs numbers, and some features are NaN or infinite.")
    if (features == features[0]).all():  # t-SNE would divide by their variance
        raise InputError(f"a map needs pictures that differ, and the features of all {len(features):,} are the same.")
    decomposition = cast("Any", import_module("sklearn.decomposition"))
    width = 2 if method == "pca" else min(MOST_COMPONENTS, *features.shape)
    components = decomposition.PCA(width, svd_solver="full").fit_transform(np.asarray(features, dtype=np.float64))
    if method == "pca":
        return components
    manifold = cast("Any", import_module("sklearn.manifold"))
    perplexity = min(30.0, (len(features) - 1) / 3)
    return manifold.TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(components)

"""The handwritten digits that scikit-learn ships: 1,797 grey pictures of 8×8, no download."""

from importlib import import_module
from typing import Any, cast

import numpy as np
import torch

from vitrail.data.source import ArraySource, Dataset
from vitrail.data.split import SplitPlan

LEVELS = 16  # the pixels are 0 … 16


def open_digits() -> Dataset:
    """The digits with a fixed stratified split."""
    bunch = cast("Any", import_module("sklearn.datasets")).load_digits()
    levels = np.asarray(bunch.images, dtype=np.float64)  # (N, 8, 8)
    grey = np.round(levels * (255 / LEVELS)).astype(np.uint8)
    labels = np.asarray(bunch.target, dtype=np.int64)
    source = ArraySource(torch.as_tensor(grey[:, None]), labels, "digits")
    parts = SplitPlan().apply([source.key(index) for index in range(len(source))], labels)
    splits = {name: source.select(indices) for name, indices in parts.items()}
    return Dataset(name="digits", classes=tuple("0123456789"), splits=splits)

"""The handwritten digits that scikit-learn ships: 1,797 grey pictures of 8×8, no download."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from vitrail.data.source import ArraySource, Dataset
from vitrail.data.split import SplitPlan

LEVELS = 16  # the pixels are 0 … 16


def open_digits() -> Dataset:
    """The digits with a fixed stratified split."""
    levels, labels = _read_levels()
    grey = np.round(levels * (255 / LEVELS)).astype(np.uint8)
    source = ArraySource(torch.as_tensor(grey[:, None]), labels, "digits")
    parts = SplitPlan().apply([source.key(index) for index in range(len(source))], labels)
    splits = {name: source.select(indices) for name, indices in parts.items()}
    return Dataset(name="digits", classes=tuple("0123456789"), splits=splits)


def _read_levels() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Levels (N, 8, 8) and labels, from scikit-learn's file: to import it takes a second, to read that, a moment."""
    spec = find_spec("sklearn")
    folders = (spec and spec.submodule_search_locations) or ()
    files = [file for folder in folders if (file := Path(folder, "datasets", "data", "digits.csv.gz")).is_file()]
    if not files:  # in a version that keeps it elsewhere
        bunch = cast("Any", import_module("sklearn.datasets")).load_digits()
        return np.asarray(bunch.images, dtype=np.float64), np.asarray(bunch.target, dtype=np.int64)
    table = np.loadtxt(files[0], delimiter=",", dtype=np.int64)  # (N, 65)
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1]

"""How well a model tells the pictures of a split from pictures of something else."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitrail.data.pixels import EXTENSIONS
from vitrail.data.source import FileSource, Source, refuse_broken
from vitrail.data.sources.folder import subfolders
from vitrail.evaluation.measurement import Floats, Measurement, choose, run
from vitrail.evaluation.ood import Strangers, compare_strangers
from vitrail.prediction import Predictor
from vitrail.prediction.results import familiarity_of

MOST = 10_000  # pictures of something else that are looked at


def is_unlabelled(path: Path) -> bool:
    """Whether a path is a folder with pictures and no folders in it, which could be classes."""
    if not path.is_dir() or subfolders(path):
        return False
    return any(file.suffix.lower() in EXTENSIONS for file in path.iterdir())


def open_unlabelled(folder: Path) -> FileSource:
    """The pictures of such a folder, by name; their labels mean nothing."""
    names = sorted(file.name for file in folder.iterdir() if file.suffix.lower() in EXTENSIONS)
    return FileSource(names, np.zeros(len(names), dtype=np.int64), folder)


def measure_strangers(
    predictor: Predictor,
    name: str,
    others: Source,
    measurement: Measurement,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Strangers:
    """The familiarity of other pictures beside that of the measured ones; the model must be able to tell."""
    known = familiarity_of(predictor, predictor.runtime)
    assert known is not None
    assert measurement.familiarity is not None

    def compute(images: Floats) -> Floats:
        return known.scores(predictor.runtime.features(images))[:, None].astype(np.float32)

    samples = choose(len(others), MOST)
    _, scores, broken = run(predictor, others, samples, compute, progress=progress)
    refuse_broken(broken, len(samples))
    return compare_strangers(name, measurement.familiarity, scores[:, 0].astype(np.float64), known)

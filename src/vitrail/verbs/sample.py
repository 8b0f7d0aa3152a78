"""The pictures on which the contestants of a benchmark are compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.pixels import Picture, prepare_array
from vitrail.data.preprocess import Preprocess
from vitrail.data.source import Dataset
from vitrail.evaluation.measurement import align_classes, choose, pick_split, run
from vitrail.prediction import Predictor
from vitrail.progress import Progress
from vitrail.runtimes.runtime import Floats
from vitrail.verbs.data import open_data
from vitrail.verbs.evaluate import default_split
from vitrail.weights.proof import sample_photos

PICTURES = 200  # of a data set, at most


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The pictures on which answers are compared, and what they show where that is known."""

    images: Floats
    has_head: bool  # answers are logits, not features
    targets: np.ndarray[Any, Any] | None = None
    order: list[int] | None = None  # of the data's classes in the head
    data: str | None = None
    split: str | None = None


def read_sample(
    predictor: Predictor,
    data: Dataset | str | Path | None,
    split: str | None,
    limit: int,
    by_position: bool,
    show: Progress,
) -> Sample:
    """Some pictures of a data set, whose classes must be the model's; without one, parts of two photographs."""
    spec = predictor.preprocess
    if data is None:
        return Sample(images=photographs(predictor.preprocess), has_head=predictor.num_classes > 0)
    dataset = data if isinstance(data, Dataset) else open_data(data)
    name = split or default_split(dataset)
    order = align_classes(predictor, dataset.classes, by_position=by_position)
    source = pick_split(dataset, name)
    samples = choose(len(source), limit)
    with show("reading pictures", len(samples)) as advance:
        kept, rows, _ = run(
            predictor, source, samples, lambda images: images.reshape(len(images), -1), progress=advance
        )
    images = rows.reshape(-1, spec.channels, *spec.size)
    targets = source.labels[kept]
    return Sample(images=images, has_head=True, targets=targets, order=order, data=dataset.name, split=name)


def photographs(spec: Preprocess) -> Floats:
    """Two photographs and their quarters, each mirrored too; noise for models that take no pictures of files."""
    shape = (spec.channels, *spec.size)
    if spec.channels not in (1, 3):
        return np.random.default_rng(0).standard_normal((20, *shape)).astype(np.float32)
    views = [view for photo in sample_photos() for view in _views(photo)]
    images = np.empty((len(views), *shape), dtype=np.float32)
    for view, image in zip(views, images, strict=True):
        prepare_array(view, spec, image)
    return images


def _views(photo: Path) -> list[Picture]:
    with Image.open(photo) as image:
        whole = image.convert("RGB")
    width, height = whole.width // 2, whole.height // 2
    corners = [(x, y) for x in (0, width) for y in (0, height)]
    parts = [whole, *(whole.crop((x, y, x + width, y + height)) for x, y in corners)]
    return [*parts, *(part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for part in parts)]

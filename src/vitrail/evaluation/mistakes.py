"""The mistakes with the highest loss, with their pictures, on one sheet."""

import numpy as np
from PIL import Image

from vitrail.data.preprocess import Preprocess
from vitrail.data.sheet import Row, Tile, draw_sheet
from vitrail.data.source import Dataset, Source
from vitrail.data.transform import pixels, to_pil
from vitrail.errors import InputError
from vitrail.evaluation.measurement import Measurement, pick_split
from vitrail.evaluation.metrics import Integers

COLUMNS, ROWS = 8, 4
_COLOR = Preprocess()


def top_losses(measurement: Measurement, count: int) -> Integers:
    """The indices of the mistakes with the highest loss, the worst first."""
    answers = measurement.answers
    wrong = np.flatnonzero(answers.predicted != measurement.targets)
    return wrong[np.argsort(-answers.losses[wrong], kind="stable")[:count]]


def mistakes_sheet(measurement: Measurement, dataset: Dataset) -> Image.Image:
    """The worst mistakes: the prediction, its confidence, and the true class."""
    source = pick_split(dataset, measurement.split)
    worst = top_losses(measurement, COLUMNS * ROWS)
    answers = measurement.answers
    tiles = [
        Tile(
            image=_load(source, int(measurement.samples[index])),
            caption=f"{answers.confidence[index]:.0%} {measurement.classes[answers.predicted[index]]}\n"
            f"true: {measurement.classes[measurement.targets[index]]}",
        )
        for index in worst
    ]
    rows = [Row(title="", tiles=tiles[start : start + COLUMNS]) for start in range(0, len(tiles), COLUMNS)]
    wrong = int((answers.predicted != measurement.targets).sum())
    shown = f", the {len(tiles)} with the highest loss" if wrong > len(tiles) else ""
    heading = f"{measurement.data}, {measurement.split}: {wrong:,} of {len(measurement.targets):,} misclassified{shown}"
    return draw_sheet(heading, rows, smooth=False)


def _load(source: Source, index: int) -> Image.Image | None:
    try:
        return to_pil(pixels(source.picture(index), _COLOR))
    except (InputError, OSError):
        return None

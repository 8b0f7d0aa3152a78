"""The mistakes that cost most, with their pictures, on one sheet."""

import numpy as np
from PIL import Image

from vitrail.data.preprocess import Preprocess
from vitrail.data.sheet import Row, Tile, draw_sheet
from vitrail.data.source import Dataset, Source
from vitrail.data.transform import pixels, to_pil
from vitrail.errors import InputError
from vitrail.evaluation.evaluation import Evaluation, pick_split
from vitrail.evaluation.metrics import Integers

COLUMNS, ROWS = 8, 4
_COLOR = Preprocess()


def top_losses(evaluation: Evaluation, count: int) -> Integers:
    """The places of the mistakes with the highest loss, the worst first."""
    answers = evaluation.answers
    wrong = np.flatnonzero(answers.predicted != evaluation.targets)
    return wrong[np.argsort(-answers.losses[wrong], kind="stable")[:count]]


def mistakes_sheet(evaluation: Evaluation, dataset: Dataset) -> Image.Image:
    """The worst mistakes: what was said, how surely, and what is true."""
    source = pick_split(dataset, evaluation.split)
    worst = top_losses(evaluation, COLUMNS * ROWS)
    answers = evaluation.answers
    tiles = [
        Tile(
            image=_load(source, int(evaluation.samples[place])),
            caption=f"{answers.confidence[place]:.0%} {evaluation.classes[answers.predicted[place]]}\n"
            f"is: {evaluation.classes[evaluation.targets[place]]}",
        )
        for place in worst
    ]
    rows = [Row(title="", tiles=tiles[start : start + COLUMNS]) for start in range(0, len(tiles), COLUMNS)]
    wrong = int((answers.predicted != evaluation.targets).sum())
    shown = f", the {len(tiles)} with the highest loss" if wrong > len(tiles) else ""
    heading = f"{evaluation.data}, {evaluation.split}: {wrong:,} of {len(evaluation.targets):,} wrong{shown}"
    return draw_sheet(heading, rows, smooth=False)


def _load(source: Source, index: int) -> Image.Image | None:
    try:
        return to_pil(pixels(source.picture(index), _COLOR))
    except (InputError, OSError):
        return None

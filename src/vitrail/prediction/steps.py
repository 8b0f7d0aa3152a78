"""From pictures to answers in three steps, each a function of its arguments alone: prepare → compute → answer.

Whoever calls them, in whatever thread, process or machine, gets the same: a `Predictor` and the features of a training
run (threads), jobs (threads, torchrun, Ray), and the worker of a service. What pictures are computed together decides
the last bits of the numbers, so callers that must agree form the same batches.
"""

from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from vitrail.data.pixels import Picture, prepare_named
from vitrail.data.preprocess import Preprocess
from vitrail.prediction.listing import Item, read_items
from vitrail.prediction.results import Floats, Named, Prediction, Request, familiarity_of
from vitrail.runtimes.runtime import Runtime
from vitrail.storage import is_address
from vitrail.weights.metadata import Metadata
from vitrail.wording import reason

Wanted = Literal["answers", "logits", "features"]
NOT_FINITE = "the model's answer is not finite (NaN or infinite)."


def prepare(spec: Preprocess, pictures: Sequence[Named]) -> tuple[Floats, dict[int, str]]:
    """What the model sees of the pictures that can be read (B, C, H, W); and why the others cannot be, by their index.

    Those in an object store are read together.
    """
    items = enumerate(picture for _, picture in pictures)
    afar = {index: Item(place, place) for index, place in items if isinstance(place, str) and is_address(place)}
    found = dict(zip(afar, read_items(list(afar.values())), strict=True))
    errors = {index: f"{pictures[index][0]}: {reason(why)}" for index, why in found.items() if isinstance(why, OSError)}
    rows = [index for index in range(len(pictures)) if index not in errors]
    named = [(pictures[index][0], cast("Picture", found.get(index, pictures[index][1]))) for index in rows]
    images, broken = prepare_named(named, spec)
    return images, errors | {rows[place]: reason(error) for place, error in broken.items()}


def compute(facts: Metadata, runtime: Runtime, images: Floats, wanted: Wanted) -> list[Floats | str]:
    """The numbers of each prepared picture; or why they are useless.

    Answers are made from logits, and from how familiar a picture is where the model can tell: (classes [+ 1],).
    """
    if not len(images):
        return []
    rows = runtime.features(images) if wanted == "features" else numbers_of(facts, runtime, images, wanted)
    finite = [bool(np.isfinite(row).all()) for row in rows]
    return [row if fine else NOT_FINITE for row, fine in zip(rows, finite, strict=True)]


def numbers_of(facts: Metadata, runtime: Runtime, images: Floats, wanted: Wanted = "answers") -> Floats:
    """Logits, and for answers how familiar each picture is where the model can tell: (B, classes [+ 1])."""
    known = familiarity_of(facts, runtime) if wanted == "answers" else None
    if known is None:
        return runtime.logits(images)
    logits, features = runtime.logits_and_features(images)
    shares = known.shares(known.scores(features, logits))
    return np.concatenate([logits, shares[:, None].astype(np.float32)], axis=1)


def answer(facts: Metadata, name: str, numbers: Floats | str, num_classes: int, request: Request) -> Prediction:
    """The prediction for one picture, from its row of numbers; or from why it has none."""
    if isinstance(numbers, str):
        return Prediction(picture=name, error=numbers)
    logits = numbers[:num_classes]
    familiarity = float(numbers[num_classes]) if len(numbers) > num_classes else None
    known = None if facts.trust is None else facts.trust.familiarity
    familiar = None if known is None or familiarity is None else bool(known.accepts(familiarity))
    if request.abstain and not familiar:
        return Prediction(picture=name, familiarity=familiarity, familiar=familiar)
    answered = facts.answer(logits, top_k=request.limit(facts, num_classes), coverage=request.coverage)
    return Prediction(picture=name, familiarity=familiarity, familiar=familiar, **answered._asdict())


def run_steps(
    facts: Metadata, runtime: Runtime, pictures: Sequence[Named], wanted: Wanted
) -> list[tuple[str, Floats | str]]:
    """The first two steps for one batch: the name of each picture, and its numbers or why it has none."""
    images, errors = prepare(facts.preprocess, pictures)
    rows = iter(compute(facts, runtime, images, wanted))
    return [(name, errors[index] if index in errors else next(rows)) for index, (name, _) in enumerate(pictures)]

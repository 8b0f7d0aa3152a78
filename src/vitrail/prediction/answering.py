"""From the numbers of one picture to its `Prediction`: probabilities, a set of labels, and how familiar it is."""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from vitrail.errors import ConfigError
from vitrail.prediction.results import Floats, Prediction
from vitrail.runtimes.runtime import Runtime
from vitrail.weights.facts import Facts
from vitrail.weights.trust import Familiarity, is_familiar, probabilities

TOP_K = 5
CALIBRATE = "vitrail calibrate MODEL DATA measures that on pictures that it was not trained on"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to answer for each picture.

    Attributes:
        top_k: how many classes to name.
        coverage: also give the set of labels that holds the truth this often.
        abstain: give no label for what is unlike anything seen in training.
    """

    top_k: int = TOP_K
    coverage: float | None = None
    abstain: bool = False

    def check(self, facts: Facts, runtime: Runtime) -> None:
        """Refuse what this model cannot answer, before there are pictures."""
        if self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1; got {self.top_k}.")
        if self.coverage is not None:
            if facts.trust is None or facts.trust.sets is None:
                raise ConfigError(f"coverage= needs a calibrated model, and this one is not: {CALIBRATE}.")
            facts.trust.sets.threshold(self.coverage)
        if self.abstain:
            require_familiarity(facts, runtime, "abstain=")


class Options(TypedDict, total=False):
    """What `Predictor.predict` takes beside pictures, for editors."""

    top_k: int
    coverage: float | None
    abstain: bool
    batch_size: int | None


def familiarity_of(facts: Facts, runtime: Runtime) -> Familiarity | None:
    """What tells how familiar a picture is; None where the model or its runtime cannot."""
    return facts.trust.familiarity if facts.trust is not None and runtime.has_features else None


def require_familiarity(facts: Facts, runtime: Runtime, argument: str) -> None:
    """Refuse an argument that needs a model that can tell how familiar a picture is."""
    if familiarity_of(facts, runtime) is None:
        why = f"it was not calibrated: {CALIBRATE}"
        if facts.trust is not None and facts.trust.familiarity is not None:
            why = f"this export, on {runtime.name}, gives no features; export the checkpoint again"
        raise ConfigError(f"{argument} needs a model that can tell what is unfamiliar; {why}.")


def numbers_of(facts: Facts, runtime: Runtime, images: Floats) -> Floats:  # (B, C, H, W) → (B, classes [+ 1])
    """What `answer` needs of prepared pictures: logits, and how familiar each is where the model can tell."""
    known = familiarity_of(facts, runtime)
    if known is None:
        return runtime.logits(images)
    logits, features = runtime.logits_and_features(images)
    return np.concatenate([logits, known.shares(known.scores(features))[:, None].astype(np.float32)], axis=1)


def answer(facts: Facts, name: str, numbers: Floats, num_classes: int, request: Request) -> Prediction:
    """The prediction for one picture, from its row of `numbers_of`."""
    logits = numbers[:num_classes]
    familiarity = float(numbers[num_classes]) if len(numbers) > num_classes else None
    familiar = None if familiarity is None else bool(is_familiar(familiarity))
    if request.abstain and not familiar:
        return Prediction(picture=name, familiarity=familiarity, familiar=familiar)
    scores = probabilities(logits, facts.trust)
    order = np.argsort(-scores, kind="stable")
    best = order[: request.top_k]
    label_set = None
    if request.coverage is not None and facts.trust is not None and facts.trust.sets is not None:
        size = int(facts.trust.sets.sizes(scores[None], request.coverage)[0])
        label_set = tuple(facts.label(int(index)) for index in order[:size])
    return Prediction(
        picture=name,
        labels=tuple(facts.label(int(index)) for index in best),
        scores=tuple(scores[best].tolist()),
        indices=tuple(best.tolist()),
        label_set=label_set,
        familiarity=familiarity,
        familiar=familiar,
    )

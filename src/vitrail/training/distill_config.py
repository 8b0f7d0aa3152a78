"""The settings of knowledge distillation; they need no torch."""

import math
import re
from dataclasses import dataclass, fields

from vitrail.errors import ConfigError, shorten
from vitrail.schema import validate


@dataclass(frozen=True, kw_only=True)
class Distill:
    """Knowledge distillation (Hinton et al., 2015): a teacher to learn from, as well as from the labels.

    With the weight w and the temperature T, the loss is (1 − w) × that of the labels + w × T² × the divergence of the
    model's answers from the teacher's, both at the temperature T.
    """

    teacher: str | None = None
    """A model to learn from, as well as from the labels: a checkpoint, an export or a run folder that has the classes
    of the data."""
    distill_weight: float = 0.5
    """With a teacher: the weight of its answers in the loss, from 0 to 1; the loss of the labels gets the rest."""
    distill_temperature: float = 4.0
    """With a teacher: what the logits of both are divided by before they are compared. A higher temperature
    gives more weight to the classes that the teacher does not choose."""
    distill_hard: bool = False
    """With a teacher: learn which class it chooses, rather than its probabilities (DeiT's hard distillation)."""
    distill_features: float = 0.0
    """With a teacher: the weight of an additional loss, the cosine distance between its features and a linear
    projection of the model's, which is learned too; 0 turns it off."""
    teacher_sha256: str | None = None
    """The SHA-256 of the teacher's weights; recorded by the run, which is never continued with another teacher."""

    def __post_init__(self) -> None:
        validate(self)
        if not 0 <= self.distill_weight <= 1:
            raise ConfigError(f"must be between 0 and 1; got {self.distill_weight}.", field="distill_weight")
        if not 0 < self.distill_temperature < math.inf:
            raise ConfigError(f"must be above 0; got {self.distill_temperature}.", field="distill_temperature")
        if not 0 <= self.distill_features < math.inf:
            raise ConfigError(f"must be at least 0; got {self.distill_features}.", field="distill_features")
        if self.distill_hard and self.distill_temperature != Distill.distill_temperature:
            raise ConfigError(
                "softens a teacher's probabilities, and `distill_hard=True` uses only the highest; omit one of them.",
                field="distill_temperature",
            )
        if self.teacher_sha256 is not None and not re.fullmatch("[0-9a-f]{64}", self.teacher_sha256):
            raise ConfigError(
                f"must be 64 hexadecimal digits; got {shorten(self.teacher_sha256)}.", field="teacher_sha256"
            )
        if self.teacher is None:
            for each in fields(self):
                if getattr(self, each.name) != each.default:
                    raise ConfigError("needs a teacher; pass `teacher=` too, or omit it.", field=each.name)

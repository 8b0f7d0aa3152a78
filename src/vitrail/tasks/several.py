"""A set of labels for each picture: how it is learned and answered, and how far it can be trusted. No torch.

Every label is a question of its own, yes or no: the model's output for it, through a sigmoid, is its probability.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from vitrail.errors import ConfigError
from vitrail.schema import validate
from vitrail.tasks.several_metrics import average_precision, count_hits, log_losses, mean
from vitrail.tasks.task import Answer, Array, Goal, Task, Trust
from vitrail.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.tasks.several_results import SeveralResults

Floats = np.ndarray[Any, np.dtype[np.float64]]
THRESHOLD = 0.5  # above it, a label applies, unless a calibration found a better one
FOCUS, CLIP = 4.0, 0.05  # of the asymmetric loss: how little sure negatives count, and which do not count at all
MOST_WEIGHT = 20.0  # of a rare label's pictures
TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, kw_only=True)
class MissRates:
    """How probable a label must be to belong to a set, so that no more true labels are missed than promised.

    Conformal risk control (Angelopoulos et al., 2022): of the labels of a picture, the share that its set misses is at
    most 1 − coverage in expectation, over pictures with labels that are like those of the calibration.
    """

    levels: tuple[float, ...]  # shares of a picture's labels that its set holds, ascending
    thresholds: tuple[float, ...]  # probabilities from which a label belongs to the set, descending, one for each level

    def __post_init__(self) -> None:
        validate(self)
        if not self.levels or len(self.levels) != len(self.thresholds):
            raise ConfigError(f"there must be a threshold for each level; got {len(self.thresholds)}.")
        for values in (self.levels, self.thresholds[::-1]):
            if not all(0 <= value <= 1 for value in values) or list(values) != sorted(values):
                raise ConfigError("levels must ascend and thresholds descend, from 0 to 1.")

    def threshold(self, coverage: float) -> float:
        """The threshold of the lowest level that is at least this coverage."""
        if not 0 < coverage < 1:
            raise ConfigError(f"must be between 0 and 1, such as 0.95; got {coverage:g}.", field="coverage")
        for level, threshold in zip(self.levels, self.thresholds, strict=True):
            if level >= coverage - 1e-9:
                return threshold
        raise ConfigError(
            f"`coverage={coverage:g}` is more than the calibration of this model can promise, which is at most "
            f"{self.levels[-1]:g}; more validation pictures allow more."
        )


@dataclass(frozen=True, kw_only=True)
class SeveralTrust(Trust):
    """What a calibration found, label by label, in the order of the outputs."""

    kind: Literal["several"] = "several"
    slopes: tuple[float, ...]  # Platt's scaling: a label's output is multiplied by its slope,
    offsets: tuple[float, ...]  # and its offset is added, before the sigmoid
    thresholds: tuple[float, ...]  # probabilities above which a label applies
    sets: MissRates | None = None

    def __post_init__(self) -> None:
        validate(self)
        if not self.slopes or not len(self.slopes) == len(self.offsets) == len(self.thresholds):
            sizes = f"{len(self.slopes)}, {len(self.offsets)} and {len(self.thresholds)}"
            raise ConfigError(f"there must be a slope, an offset and a threshold for each label; got {sizes}.")
        if not all(map(math.isfinite, (*self.slopes, *self.offsets))) or min(self.slopes) <= 0:
            raise ConfigError("the slopes of a calibration must be above 0, and its offsets finite.")
        if not all(0 <= threshold <= 1 for threshold in self.thresholds):
            raise ConfigError("the thresholds of a calibration must be from 0 to 1.")

    def __repr__(self) -> str:
        return f"<Trust {'; '.join(self.describe())}>"

    def reordered(self, order: Sequence[int]) -> Self:
        """The same for outputs in another order: the new first is the old `order[0]`."""
        columns = (self.slopes, self.offsets, self.thresholds)
        slopes, offsets, thresholds = (tuple(column[index] for index in order) for column in columns)
        return replace(self, slopes=slopes, offsets=offsets, thresholds=thresholds)

    def check_coverage(self, coverage: float) -> None:
        if self.sets is None:
            raise ConfigError("needs more validation pictures than this model was calibrated on.", field="coverage")
        self.sets.threshold(coverage)

    def facts(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "pictures": self.pictures,
            "slopes": list(self.slopes),
            "offsets": list(self.offsets),
            "thresholds": list(self.thresholds),
            "highest_coverage": None if self.sets is None else self.sets.levels[-1],
            "familiarity": self.familiarity is not None,
        }

    def describe(self) -> list[str]:
        scaled = sum(pair != (1.0, 0.0) for pair in zip(self.slopes, self.offsets, strict=True))
        lines = [
            f"on {counted(self.pictures, 'picture')} of {self.data}: probabilities of {scaled:,} of "
            f"{counted(len(self.slopes), 'label')} scaled",
            f"labels apply above probabilities of {min(self.thresholds):.2g} to {max(self.thresholds):.2g}",
        ]
        lines += [f"label sets for a coverage of up to {self.sets.levels[-1]:g}"] if self.sets else []
        known = self.familiarity
        return lines + ([known.describe()] if known else [])


def scale(outputs: Any, trust: Trust | None) -> Floats:  # (…, L), each
    """Outputs as a calibration found them to mean, in double precision: the logarithms of the odds."""
    numbers = np.asarray(outputs).astype(np.float64)
    if trust is None:
        return numbers
    assert isinstance(trust, SeveralTrust)
    if numbers.shape[-1] != len(trust.slopes):
        raise ConfigError(f"the calibration is of {counted(len(trust.slopes), 'label')}; got {numbers.shape[-1]:,}.")
    return numbers * np.array(trust.slopes) + np.array(trust.offsets)


def restore_logits(shares: Any, trust: Trust | None) -> Floats:  # (…, L), each
    """The outputs of which `Several.probabilities` made these."""
    numbers = np.asarray(shares).astype(np.float64)
    odds = np.log(np.maximum(numbers, TINY)) - np.log(np.maximum(1 - numbers, TINY))
    if trust is None:
        return odds
    assert isinstance(trust, SeveralTrust)
    return (odds - np.array(trust.offsets)) / np.array(trust.slopes)


def thresholds_of(trust: Trust | None, count: int) -> Floats:
    """The probabilities above which labels apply."""
    assert trust is None or isinstance(trust, SeveralTrust)
    return np.full(count, THRESHOLD) if trust is None else np.array(trust.thresholds)


class Part(NamedTuple):
    """What validation keeps of some pictures."""

    loss: float  # summed over the pictures
    logits: Array  # (B, L) float32
    targets: Array  # (B, L) uint8


@dataclass(frozen=True, kw_only=True)
class Several(Task):
    """A set of labels for each picture, perhaps an empty one."""

    kind: Literal["several"] = "several"
    losses = ("bce", "asymmetric")
    balances = ("none", "weight")
    metrics: ClassVar[Mapping[str, bool]] = MappingProxyType(
        {"map": True, "micro_f1": True, "macro_f1": True, "exact_match": True}
    )
    compares = True
    softens = True
    noun = ("label", "labels")
    same: ClassVar[str] = "the same labels"

    def loss(self, outputs: "Tensor", targets: "Tensor", goal: Goal) -> "Tensor":
        """The mean over pictures and labels: binary cross-entropy, or the asymmetric loss (Ridnik et al., 2021)."""
        import torch
        import torch.nn.functional as F

        outputs, targets = outputs.float(), targets.float()
        targets = targets + goal.label_smoothing * (0.5 - targets)
        if goal.loss == "asymmetric":  # with γ+ = 0, γ− = 4, and probabilities of negatives lowered by the clip
            absent = (torch.sigmoid(-outputs) + CLIP).clamp(max=1)
            negative = (1 - absent) ** FOCUS * absent.log()
        else:
            negative = F.logsigmoid(-outputs)
        positive = F.logsigmoid(outputs)
        if goal.balance == "weight":
            positive = positive * outputs.new_tensor(positive_weights(goal))
        return -(targets * positive + (1 - targets) * negative).mean()

    def imitation(self, outputs: "Tensor", answers: "Tensor", temperature: float, *, hard: bool) -> "Tensor":
        """T² KL(teacher ‖ model), the mean over labels, each with its own probability sigmoid(logit / T)."""
        import torch.nn.functional as F

        if hard:
            return F.binary_cross_entropy_with_logits(outputs, (answers > 0).float())
        own, wanted = outputs / temperature, answers / temperature
        share = wanted.sigmoid()
        there = share * (F.logsigmoid(wanted) - F.logsigmoid(own))
        absent = (1 - share) * (F.logsigmoid(-wanted) - F.logsigmoid(-own))
        return (there + absent).mean() * temperature**2

    def chance(self, targets: Array) -> float:
        return math.log(2)  # a coin for each label

    def score(self, outputs: "Tensor", targets: "Tensor") -> Part:
        logits = outputs.detach().float().cpu().numpy()
        truth = targets.cpu().numpy().astype(np.uint8)
        return Part(float(log_losses(logits.astype(np.float64), truth).sum()), logits, truth)

    def summarize(self, parts: Sequence[Part]) -> dict[str, float]:
        logits, targets = (np.concatenate([part[column] for part in parts]) for column in (1, 2))
        hits = count_hits(logits > 0, targets)  # probabilities above 0.5
        return {
            "loss": math.fsum(part.loss for part in parts) / len(targets),
            "map": mean(average_precision(logits, targets)),
            "micro_f1": hits.micro_f1,
            "macro_f1": hits.macro_f1,
            "exact_match": float((targets == (logits > 0)).all(axis=1).mean()),
        }

    def probabilities(self, outputs: Any, trust: Trust | None) -> Floats:
        return sigmoid(scale(outputs, trust))

    def answer(
        self, outputs: Array, names: Sequence[str], trust: Trust | None, *, top_k: int, coverage: float | None
    ) -> Answer:
        """The labels that apply, the most probable first; of more than `top_k`, the most probable. There may be none.

        A label set of a coverage has its own threshold, and is not cut.
        """
        odds = scale(outputs, trust)
        shares, order = sigmoid(odds), np.argsort(-odds, kind="stable")  # odds still differ where shares are all 1
        best = order[shares[order] > thresholds_of(trust, len(shares))[order]][:top_k]
        label_set = None
        if coverage is not None and isinstance(trust, SeveralTrust) and trust.sets is not None:
            held = order[shares[order] >= trust.sets.threshold(coverage)]
            label_set = tuple(names[int(index)] for index in held)
        return Answer(
            labels=tuple(names[int(index)] for index in best),
            scores=tuple(shares[best].tolist()),
            indices=tuple(best.tolist()),
            label_set=label_set,
        )

    def graph(self, outputs: "Tensor", trust: Trust | None) -> "Tensor":
        if trust is None:
            return outputs.sigmoid()
        import torch

        assert isinstance(trust, SeveralTrust)
        return (outputs * torch.tensor(trust.slopes) + torch.tensor(trust.offsets)).sigmoid()

    def restore(self, meanings: Any, trust: Trust | None) -> Floats:
        return restore_logits(meanings, trust)

    def thresholds(self, trust: Trust | None, count: int) -> tuple[float, ...]:
        return tuple(thresholds_of(trust, count).tolist())

    def same_answers(self, expected: Array, actual: Array, trust: Trust | None) -> Array:
        limits = thresholds_of(trust, expected.shape[1])
        applies = [self.probabilities(outputs, trust) > limits for outputs in (expected, actual)]
        return (applies[0] == applies[1]).all(axis=1)

    def check(self, count: int, trust: Trust | None) -> None:
        super().check(count, trust)
        if isinstance(trust, SeveralTrust) and len(trust.slopes) != count:
            raise ConfigError(f"the calibration is of {counted(len(trust.slopes), 'label')}; the model has {count:,}.")

    def measure(
        self, outputs: Array, targets: Array, names: Sequence[str], trust: Trust | None, coverage: float
    ) -> "SeveralResults":
        from vitrail.tasks.several_results import SeveralResults

        assert trust is None or isinstance(trust, SeveralTrust)
        return SeveralResults(outputs, targets, names, trust, coverage)

    def calibrate(self, outputs: Array, targets: Array, names: Sequence[str], data: str) -> SeveralTrust:
        from vitrail.tasks.several_calibration import fit_trust

        return fit_trust(outputs, targets, data)


def sigmoid(odds: Floats) -> Floats:
    """Probabilities from the logarithms of their odds."""
    return np.exp(-np.logaddexp(0, -odds))


def positive_weights(goal: Goal) -> list[float]:
    """How much a picture with a label counts, for each label: as much as all without it, within limits."""
    assert goal.pictures >= max(goal.counts)
    weights = ((goal.pictures - count) / max(count, 1) for count in goal.counts)
    return [min(max(weight, 1 / MOST_WEIGHT), MOST_WEIGHT) for weight in weights]


TASK, TRUST = Several, SeveralTrust

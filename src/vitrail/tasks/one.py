"""One class for each picture: its loss, its answer, and how far that can be trusted. No torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from vitrail.errors import ConfigError
from vitrail.schema import validate
from vitrail.tasks.coverage import find_level
from vitrail.tasks.task import Answer, Array, Goal, Results, Task, Trust
from vitrail.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Scores = Literal["softmax", "sigmoid"]  # one label among all; or each label by itself, as SigLIP was trained
FLOOR = 0.01  # the share of its probability that every class keeps when smoothing is undone


@dataclass(frozen=True, kw_only=True)
class LabelSets:
    """How many of the most likely labels make a set that holds the truth as often as requested.

    Conformal prediction (APS and RAPS: Romano et al., 2020; Angelopoulos et al., 2021) without random numbers. A
    label's score is the probability of all labels ahead of it, plus a penalty for each rank beyond the first few; a set
    holds the labels whose score is at most the threshold of its level. The most likely label has the score 0: no set is
    empty, and the same picture always gets the same set.
    """

    levels: tuple[float, ...]  # shares of pictures whose set holds the truth, ascending
    thresholds: tuple[float, ...]  # one for each level
    free_ranks: int  # ranks without a penalty
    penalty: float  # for each further rank

    def __post_init__(self) -> None:
        validate(self)
        if not self.levels or len(self.levels) != len(self.thresholds):
            raise ConfigError(f"there must be a threshold for each level; got {len(self.thresholds)}.")
        for values in (self.levels, self.thresholds):
            if not all(map(math.isfinite, values)) or list(values) != sorted(values):
                raise ConfigError("levels and thresholds must ascend.")

    def threshold(self, coverage: float) -> float:
        """The threshold of the lowest level that is at least this coverage."""
        return self.thresholds[find_level(self.levels, coverage)]

    def scores(self, shares: Floats) -> Floats:  # (N, classes), both
        """The scores of all labels, in the order of their ranks, in which they ascend."""
        ranked = -np.sort(-shares, axis=1)
        ahead = np.cumsum(ranked, axis=1) - ranked
        ranks = np.arange(1, shares.shape[1] + 1)
        return ahead + self.penalty * np.maximum(ranks - self.free_ranks, 0)

    def sizes(self, shares: Floats, coverage: float) -> Integers:  # (N, classes) → (N,)
        """How many of the most likely labels are in each set."""
        return np.maximum((self.scores(shares) <= self.threshold(coverage)).sum(axis=1), 1)


@dataclass(frozen=True, kw_only=True)
class OneTrust(Trust):
    """What a calibration found; `vitrail.calibrate`, and every training run with a validation split, make one."""

    temperature: float  # logits are divided by this before they become probabilities
    smoothing: float = 0.0  # the share of the probability that the model wrongly spreads over all classes
    sets: LabelSets | None = None

    def __post_init__(self) -> None:
        validate(self)
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ConfigError(f"a temperature must be above 0; got {self.temperature}.")
        if not 0 <= self.smoothing < 1:
            raise ConfigError(f"a share of the probability must be from 0 to below 1; got {self.smoothing}.")

    def __repr__(self) -> str:
        return f"<Trust {'; '.join(self.describe())}>"

    def check_coverage(self, coverage: float) -> None:
        if self.sets is None:
            raise ConfigError("needs more validation pictures than this model was calibrated on.", field="coverage")
        self.sets.threshold(coverage)

    def facts(self) -> dict[str, Any]:
        """The numbers that people and programs ask for."""
        return {
            "data": self.data,
            "pictures": self.pictures,
            "temperature": self.temperature,
            "smoothing": self.smoothing,
            "highest_coverage": None if self.sets is None else self.sets.levels[-1],
            "familiarity": self.familiarity is not None,
        }

    def describe(self) -> list[str]:
        """The same as lines of text."""
        even = f", label smoothing of {self.smoothing:.1%} undone" if self.smoothing else ""
        lines = [f"on {counted(self.pictures, 'picture')} of {self.data}: temperature {self.temperature:g}{even}"]
        lines += [f"label sets for a coverage of up to {self.sets.levels[-1]:g}"] if self.sets else []
        known = self.familiarity
        return lines + ([known.describe()] if known else [])


def probabilities(logits: Any, trust: Trust | None = None, scores: Scores = "softmax") -> Floats:  # (…, classes), each
    """Logits as probabilities, in double precision, as a calibration found them to mean; without one, by `scores`."""
    if trust is None and scores == "sigmoid":
        return 1 / (1 + np.exp(-np.asarray(logits).astype(np.float64)))
    return np.exp(log_probabilities(logits, trust))


def log_probabilities(logits: Any, trust: Trust | None = None) -> Floats:
    """Their logarithms; the order of the classes stays."""
    assert trust is None or isinstance(trust, OneTrust)
    return calibrate(logits, *((1.0, 0.0) if trust is None else (trust.temperature, trust.smoothing)))


def calibrate(logits: Any, temperature: float, smoothing: float) -> Floats:
    """Divide logits by a temperature, and undo the smoothing: remove the probability that is spread evenly.

    Training with smoothed labels or mixed pictures teaches a model to spread a share over all classes, which no
    temperature undoes. Of a class that has less than its part of it, 1 % is left.
    """
    logs = _log_softmax(np.asarray(logits).astype(np.float64) / temperature)
    if not smoothing:
        return logs
    with np.errstate(over="ignore"):  # a class with no probability at all
        kept = 1 - smoothing / logs.shape[-1] * np.exp(-logs)
    return _log_softmax(logs + np.log(np.maximum(kept, FLOOR)))


def restore_logits(shares: Any, trust: Trust | None, scores: Scores = "softmax") -> Floats:  # (…, classes), each
    """The logits, up to a constant for each picture, of which `probabilities` made these."""
    shares = np.maximum(np.asarray(shares).astype(np.float64), np.finfo(np.float32).tiny)
    if trust is None and scores == "sigmoid":
        return np.log(shares) - np.log(np.maximum(1 - shares, np.finfo(np.float32).tiny))
    if trust is None:
        return np.log(shares)
    assert isinstance(trust, OneTrust)
    if trust.smoothing:
        # What was left of q is min(l + part, l / FLOOR) of l = shares · total; the k largest have the first form, and
        # q sums to 1 at the largest of the totals that each k would have.
        part = trust.smoothing / shares.shape[-1]
        ranked = np.cumsum(-np.sort(-shares, axis=-1), axis=-1)
        counts = np.arange(1, shares.shape[-1] + 1)
        totals = (1 - counts * part) / (ranked + (ranked[..., -1:] - ranked) / FLOOR)
        left = shares * totals.max(axis=-1, keepdims=True)
        shares = np.minimum(left + part, left / FLOOR)
    return trust.temperature * np.log(shares)


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def targets_of(targets: "Tensor") -> "Tensor":
    """Classes, as cross-entropy takes them: indices, or shares where pictures are mixed."""
    return targets if targets.is_floating_point() else targets.long()


@dataclass(frozen=True, kw_only=True)
class One(Task):
    """One class for each picture."""

    kind: Literal["one"] = "one"
    losses = ("cross-entropy",)
    balances = ("none", "sample", "weight", "focal", "logit")
    metrics: ClassVar[Mapping[str, bool]] = MappingProxyType({"accuracy": True, "balanced_accuracy": True})
    compares = True
    softens = True
    noun = ("class", "classes")

    def loss(self, outputs: "Tensor", targets: "Tensor", goal: Goal) -> "Tensor":
        from vitrail.tasks.one_loss import cross_entropy

        return cross_entropy(outputs, targets_of(targets), goal)

    def imitation(self, outputs: "Tensor", answers: "Tensor", temperature: float, *, hard: bool) -> "Tensor":
        """T² KL(teacher ‖ model) of softmax(logits / T) (Hinton et al., 2015); hard: its class is the label."""
        import torch.nn.functional as F

        if hard:
            return F.cross_entropy(outputs, answers.argmax(dim=1))
        own, wanted = ((logits / temperature).log_softmax(dim=1) for logits in (outputs, answers))
        return F.kl_div(own, wanted, reduction="batchmean", log_target=True) * temperature**2

    def chance(self, targets: Array) -> float:
        return math.log(max(int(targets.max()) + 1, 2))

    def score(self, outputs: "Tensor", targets: "Tensor") -> Any:
        import torch.nn.functional as F

        loss = F.cross_entropy(outputs, targets_of(targets), reduction="none").cpu().double().sum()
        correct = (outputs.argmax(dim=1) == targets).cpu()
        width, truth = outputs.shape[1], targets.cpu()
        counts = [some.bincount(minlength=width).numpy() for some in (truth, truth[correct])]
        return np.stack(counts), float(loss)

    def summarize(self, parts: Sequence[Any]) -> dict[str, float]:
        support, hits = np.sum([counts for counts, _ in parts], axis=0)
        loss = sum(loss for _, loss in parts)
        there = support > 0
        return {
            "loss": loss / support.sum(),
            "accuracy": float(hits.sum() / support.sum()),
            "balanced_accuracy": float((hits[there] / support[there]).mean()),
        }

    def probabilities(self, outputs: Any, trust: Trust | None) -> Floats:
        return probabilities(outputs, trust)

    def answer(
        self, outputs: Array, names: Sequence[str], trust: Trust | None, *, top_k: int, coverage: float | None
    ) -> Answer:
        return pick_labels(self.probabilities(outputs, trust), names, trust, top_k=top_k, coverage=coverage)

    def graph(self, outputs: "Tensor", trust: Trust | None) -> "Tensor":
        import torch

        assert trust is None or isinstance(trust, OneTrust)
        if trust is None:
            return outputs.softmax(dim=-1)
        shares = (outputs / trust.temperature).softmax(dim=-1)
        if not trust.smoothing:
            return shares
        left = torch.maximum(shares - trust.smoothing / outputs.shape[-1], FLOOR * shares)
        return left / left.sum(dim=-1, keepdim=True)

    def restore(self, meanings: Any, trust: Trust | None) -> Floats:
        return restore_logits(meanings, trust)

    def influence(self, whole: "Tensor", changed: "Tensor", target: int) -> "Tensor":
        """Of the log-odds, log p / (1 − p), because the probability of a confident model hardly moves."""
        return log_odds(whole[None], target) - log_odds(changed, target)

    def average(self, outputs: Sequence[Array]) -> Array:
        """The logarithms of the mean probabilities."""
        import torch

        if len(outputs) == 1:
            return outputs[0]
        stacked = torch.from_numpy(np.stack(outputs)).log_softmax(dim=2)
        return (stacked.logsumexp(dim=0) - math.log(len(outputs))).numpy()

    def measure(
        self, outputs: Array, targets: Array, names: Sequence[str], trust: Trust | None, coverage: float
    ) -> Results:
        from vitrail.tasks.one_results import OneResults

        assert trust is None or isinstance(trust, OneTrust)
        return OneResults(outputs, targets, names, trust, coverage)

    def calibrate(self, outputs: Array, targets: Array, names: Sequence[str], data: str) -> Trust:
        from vitrail.tasks.one_calibration import fit_trust

        return fit_trust(outputs, targets, data)


def log_odds(logits: "Tensor", target: int) -> "Tensor":  # (n, classes) → (n,)
    """The target's logit minus the log of what the others weigh together; the logit itself if there are none."""
    logits = logits.float()
    if logits.shape[1] == 1:
        return logits[:, 0]
    others = logits.clone()
    others[:, target] = -math.inf
    return logits[:, target] - others.logsumexp(dim=1)


def pick_labels(
    shares: Floats, names: Sequence[str], trust: Trust | None, *, top_k: int, coverage: float | None
) -> Answer:
    """The most likely classes, given the probabilities (C,) of all."""
    order = np.argsort(-shares, kind="stable")
    best = order[:top_k]
    label_set = None
    if coverage is not None and isinstance(trust, OneTrust) and trust.sets is not None:
        size = int(trust.sets.sizes(shares[None], coverage)[0])
        label_set = tuple(names[int(index)] for index in order[:size])
    return Answer(
        labels=tuple(names[int(index)] for index in best),
        scores=tuple(shares[best].tolist()),
        indices=tuple(best.tolist()),
        label_set=label_set,
    )


TASK, TRUST = One, OneTrust
ONE = One()  # what models are that do not say

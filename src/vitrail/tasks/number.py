"""The task `number`: one or more measured values for each picture, such as an age, or the angles of a joint.

The model's outputs are standardised: value = output · std + mean, with the mean and the standard deviation of the
training pictures. Everything that people see is in their own units; only what adds several values up, such as the loss,
is in standard deviations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from vitrail.errors import ConfigError, DataError, InputError, suggest
from vitrail.schema import validate
from vitrail.tasks.coverage import find_level, refuse_few, score_levels
from vitrail.tasks.task import Answer, Array, Goal, Results, Task, Trust
from vitrail.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

Floats = np.ndarray[Any, np.dtype[np.float64]]
NEAR = 0.05  # of a standard deviation: values that are as good as the same


@dataclass(frozen=True, kw_only=True)
class NumberTrust(Trust):
    """Intervals with a guarantee: how far from the truth each value was on pictures that the model was not trained on.

    Split conformal prediction (Lei et al., 2018): of each value, an interval of a level's half-width around the
    prediction holds the truth with at least that probability. The guarantee is for each value by itself: that all
    values of a picture lie in their intervals at once is rarer.
    """

    kind: Literal["number"] = "number"
    levels: tuple[float, ...]  # shares of pictures whose interval holds the truth, ascending
    half_widths: tuple[tuple[float, ...], ...]  # for each level, of each value, in the user's units
    spread: tuple[float, ...]  # the standard deviation of each value's error

    def __post_init__(self) -> None:
        validate(self)
        if not self.levels or len(self.levels) != len(self.half_widths):
            raise ConfigError(f"there must be half-widths for each level; got {len(self.half_widths)}.")
        if any(len(widths) != len(self.spread) for widths in self.half_widths) or not self.spread:
            raise ConfigError(f"there must be a half-width for each of {counted(len(self.spread), 'value')}.")
        for numbers in (self.levels, *zip(*self.half_widths, strict=True)):
            if not all(map(math.isfinite, numbers)) or list(numbers) != sorted(numbers):
                raise ConfigError("levels and half-widths must ascend.")
        if not 0 < self.levels[0] <= self.levels[-1] < 1:
            raise ConfigError(f"levels must be between 0 and 1; got {self.levels[0]:g} to {self.levels[-1]:g}.")
        if min(*self.half_widths[0], *self.spread) < 0 or not all(map(math.isfinite, self.spread)):
            raise ConfigError("half-widths and the spread of errors must be finite and at least 0.")

    def __repr__(self) -> str:
        return f"<NumberTrust {'; '.join(self.describe())}>"

    def facts(self) -> dict[str, Any]:
        """The numbers that people and programs ask for, as JSON values."""
        return {
            "data": self.data,
            "pictures": self.pictures,
            "error_spread": list(self.spread),
            "highest_coverage": self.levels[-1],
            "familiarity": self.familiarity is not None,
        }

    def describe(self) -> list[str]:
        """The same as lines of text."""
        lines = [f"on {counted(self.pictures, 'picture')} of {self.data}"]
        lines += [f"intervals around each value for a coverage of up to {self.levels[-1]:g}"]
        known = self.familiarity
        return lines + ([known.describe()] if known else [])

    def check_coverage(self, coverage: float) -> None:
        """Refuse a coverage that this calibration cannot promise."""
        find_level(self.levels, coverage)

    def reordered(self, order: Sequence[int]) -> Self:
        """The same for values in another order: the new first is the old `order[0]`."""
        rows = (*self.half_widths, self.spread)
        *widths, spread = (tuple(row[index] for index in order) for row in rows)
        return replace(self, half_widths=tuple(widths), spread=spread)

    def half_widths_at(self, coverage: float) -> Floats:  # (C,)
        """Half the width of the intervals of this coverage, of each value."""
        return np.array(self.half_widths[find_level(self.levels, coverage)])


@dataclass(frozen=True, kw_only=True)
class Number(Task):
    """One or more measured values; without a mean, nothing is fitted yet and outputs are the values themselves."""

    kind: Literal["number"] = "number"
    mean: tuple[float, ...] = ()  # of each value, over the training pictures
    std: tuple[float, ...] = ()  # the same; 1 for a value that is constant

    losses: ClassVar[tuple[str, ...]] = ("mse", "l1", "huber")
    # In the user's units for a single value. Of several, whose units may differ: the mean over the values, of mae and
    # rmse in standard deviations.
    metrics: ClassVar[Mapping[str, bool]] = {"mae": False, "rmse": False, "r2": True}
    unsuited: ClassVar[Mapping[str, Any]] = {"label_smoothing": 0.0, "mixup": 0.0, "cutmix": 0.0, "outlier_rate": 0.0}
    noun: ClassVar[tuple[str, str]] = ("value", "values")
    output: ClassVar[str] = "values"
    same: ClassVar[str] = "nearly the same values"
    explained: ClassVar[int | None] = 0

    def __post_init__(self) -> None:
        validate(self)
        if len(self.mean) != len(self.std):
            raise ConfigError(f"each value must have a mean and a std; got {len(self.mean)} and {len(self.std)}.")
        if not all(map(math.isfinite, (*self.mean, *self.std))) or min(self.std, default=1.0) <= 0:
            raise ConfigError("the mean and the std of each value must be finite, and the std above 0.")

    # Learning -----------------------------------------------------------------------------------------------------

    def fitted(self, targets: Array) -> Self:
        """The task with the mean and the standard deviation of the training targets (N, C)."""
        values = np.asarray(targets).astype(np.float64)
        if values.ndim != 2 or not values.size or not np.isfinite(values).all():
            raise DataError(f"values must be finite numbers, (pictures, values); got shape {values.shape}.")
        constant = values.max(axis=0) == values.min(axis=0)  # whose std may be a rounding error
        std = np.where(constant, 1.0, values.std(axis=0))
        return replace(self, mean=tuple(values.mean(axis=0).tolist()), std=tuple(std.tolist()))

    def loss(self, outputs: "Tensor", targets: "Tensor", goal: Goal) -> "Tensor":
        """The mean over pictures and values; targets are in the user's units, and perhaps mixed."""
        from torch.nn import functional

        self.check_goal(goal)
        self._check_count(outputs.shape[-1])
        wanted = targets.float()
        if self.mean:  # in two steps, so that single precision is enough for a mean far above the std
            mean = np.array(self.mean)
            rounded = mean.astype(np.float32)
            first, rest, std = (wanted.new_tensor(np.asarray(part)) for part in (rounded, mean - rounded, self.std))
            wanted = (wanted - first - rest) / std
        losses = {"mse": functional.mse_loss, "l1": functional.l1_loss, "huber": functional.huber_loss}
        return losses[goal.loss or self.losses[0]](outputs.float(), wanted)

    def check_goal(self, goal: Goal) -> None:
        if goal.label_smoothing:
            text = f"must be 0 for measured values, which have no classes to spread over; got {goal.label_smoothing:g}."
            raise ConfigError(text, field="label_smoothing")
        for name, known in (("loss", self.losses), ("balance", self.balances)):
            if (value := getattr(goal, name)) and value not in known:
                raise ConfigError(
                    f"must be one for measured values; got {value!r}; {suggest(value, known)}", field=name
                )

    def _check_count(self, count: int) -> None:
        if self.mean and count != len(self.mean):
            raise InputError(f"there must be {counted(len(self.mean), 'value')} for each picture; got {count}.")

    def learned_from(self, outputs: "Tensor", teacher: Task, order: Sequence[int]) -> "Tensor":
        """The teacher's values, in standard deviations of this task."""
        values = teacher.probabilities(outputs.cpu().numpy(), None)[:, list(order)]
        return outputs.new_tensor(self.standardise(values))

    def chance(self, targets: Array) -> float:
        """The mse of always answering the mean: about 1."""
        return float(np.square(self.standardise(targets)).mean())

    def score(self, outputs: "Tensor", targets: "Tensor") -> Floats:
        """(7, C), in standard deviations: how many pictures; of the errors, the sums of absolute values and of squares;
        of the truth, the mean, the sum of squared distances to it, the least and the largest.
        """
        truth = self.standardise(targets.detach().cpu().double().numpy())
        errors = outputs.detach().cpu().double().numpy() - truth
        centre = truth.mean(axis=0)
        sums = (np.abs(errors).sum(axis=0), np.square(errors).sum(axis=0), centre)
        spread = np.square(truth - centre).sum(axis=0)
        return np.stack((np.full_like(centre, len(truth)), *sums, spread, truth.min(axis=0), truth.max(axis=0)))

    def summarize(self, parts: Sequence[Any]) -> dict[str, float]:
        """The metrics of all parts; "loss" is the mse of the standardised values, whichever loss was trained with."""
        counts, sizes, squares, centres, spreads, lowest, highest = np.stack(parts, axis=1)  # (parts, C) each
        count = counts.sum(axis=0)
        mae, mse = sizes.sum(axis=0) / count, squares.sum(axis=0) / count
        centre = (counts * centres).sum(axis=0) / count
        spread = (spreads + counts * np.square(centres - centre)).sum(axis=0)  # exact however pictures are batched
        varied = highest.max(axis=0) > lowest.min(axis=0)
        r2 = 1 - np.divide(mse * count, spread, out=np.full_like(mse, np.nan), where=varied)
        unit = self.std[0] if len(self.std) == 1 else 1.0
        return {
            "loss": float(mse.mean()),
            "mae": float(mae.mean()) * unit,
            "rmse": float(np.sqrt(mse).mean()) * unit,
            "r2": float(r2[varied].mean()) if varied.any() else math.nan,
        }

    # Using ---------------------------------------------------------------------------------------------------------

    def standardise(self, values: Array) -> Floats:  # (…, C), both
        """Values in the user's units as the model is to give them."""
        numbers = np.asarray(values).astype(np.float64)
        self._check_count(numbers.shape[-1])
        return (numbers - np.array(self.mean)) / np.array(self.std) if self.mean else numbers

    def probabilities(self, outputs: Any, trust: Trust | None) -> Floats:
        """The values, in the user's units; a calibration changes none of them."""
        numbers = np.asarray(outputs).astype(np.float64)
        self._check_count(numbers.shape[-1])
        return numbers * np.array(self.std) + np.array(self.mean) if self.mean else numbers

    def answer(
        self, outputs: Array, names: Sequence[str], trust: Trust | None, *, top_k: int, coverage: float | None
    ) -> Answer:
        """The values (C,) of one picture; with a coverage, and a model that was calibrated, their intervals."""
        values = self.probabilities(outputs, trust)
        if coverage is None or not isinstance(trust, NumberTrust):
            return Answer(values=tuple(values.tolist()))
        half = trust.half_widths_at(coverage)
        intervals = tuple(zip((values - half).tolist(), (values + half).tolist(), strict=True))
        return Answer(values=tuple(values.tolist()), intervals=intervals)

    def graph(self, outputs: "Tensor", trust: Trust | None) -> "Tensor":
        if not self.mean:
            return outputs
        import torch

        return outputs * torch.tensor(self.std) + torch.tensor(self.mean)

    def restore(self, meanings: Any, trust: Trust | None) -> Floats:
        return self.standardise(meanings)

    def show(self, meaning: float) -> str:
        return f"{meaning:.4g}"

    def same_answers(self, expected: Array, actual: Array, trust: Trust | None) -> Array:
        """All values within 5 % of a standard deviation of each other."""
        spread: Floats = expected.astype(np.float64).std(axis=0)
        scale = np.ones(len(self.mean)) if self.mean else np.maximum(spread, np.finfo(np.float32).tiny)
        return np.all(np.abs(expected - actual) <= NEAR * scale, axis=1)

    # Explaining ----------------------------------------------------------------------------------------------------

    def evidence(self, outputs: "Tensor", targets: "Tensor") -> "Tensor":
        """How far a value is from the mean of training, whether above or below."""
        return super().evidence(outputs, targets).abs()

    def influence(self, whole: "Tensor", changed: "Tensor", target: int) -> "Tensor":
        """How far the value moves, whether up or down."""
        return super().influence(whole, changed, target).abs()

    def support(self, whole: "Tensor", changed: "Tensor", target: int) -> "Tensor":
        """1 for the value of the whole picture; a standard deviation away, 1/e."""
        return (-self.influence(whole, changed, target)).exp()

    # Going along with the head -------------------------------------------------------------------------------------

    def check(self, count: int, trust: Trust | None) -> None:
        super().check(count, trust)
        known = [len(self.mean)] * bool(self.mean) + ([len(trust.spread)] if isinstance(trust, NumberTrust) else [])
        if wrong := [number for number in known if number != count]:
            raise ConfigError(f"the model has {counted(count, 'output')}; its mean, or its calibration, {wrong[0]:,}.")

    def reordered(self, order: Sequence[int]) -> Self:
        if not self.mean:
            return self
        mean, std = (tuple(column[index] for index in order) for column in (self.mean, self.std))
        return replace(self, mean=mean, std=std)

    def unfitted(self) -> Self:
        return replace(self, mean=(), std=())

    # Measuring -----------------------------------------------------------------------------------------------------

    def measure(
        self, outputs: Array, targets: Array, names: Sequence[str], trust: Trust | None, coverage: float
    ) -> Results:
        """How good (N, C) outputs are, with the calibration if there is one."""
        from vitrail.tasks.number_results import NumberResults

        predicted, truth = self._pair(outputs, targets, len(names))
        scale = np.array(self.std or [1.0] * len(names))
        known = trust if isinstance(trust, NumberTrust) else None
        return NumberResults(
            predicted=predicted, truth=truth, names=tuple(names), scale=scale, trust=known, requested=coverage
        )

    def calibrate(self, outputs: Array, targets: Array, names: Sequence[str], data: str) -> NumberTrust:
        """The intervals that these pictures, which the model was not trained on, can promise."""
        refuse_few(len(targets), data)
        predicted, truth = self._pair(outputs, targets, len(names))
        errors = predicted - truth
        widths = score_levels(np.abs(errors))
        return NumberTrust(
            data=data,
            pictures=len(truth),
            levels=tuple(widths),
            half_widths=tuple(tuple(row.tolist()) for row in widths.values()),
            spread=tuple(errors.std(axis=0).tolist()),
        )

    def _pair(self, outputs: Any, targets: Any, count: int) -> tuple[Floats, Floats]:
        """Predicted and true values (N, C) in the user's units, or an error that explains what is wrong with them."""
        predicted, truth = self.probabilities(outputs, None), np.asarray(targets).astype(np.float64)
        if predicted.shape != truth.shape or truth.shape[1:] != (count,) or not truth.size:
            raise InputError(
                f"outputs and targets must be (N, {count}), with N at least 1; got {predicted.shape} and {truth.shape}."
            )
        broken = np.flatnonzero(~np.isfinite(predicted + truth).all(axis=1))
        if len(broken):
            raise InputError(
                f"outputs and targets must be finite; {len(broken)} of {len(truth)} rows are not, the first is row "
                f"{broken[0]}."
            )
        return predicted, truth


TASK, TRUST = Number, NumberTrust

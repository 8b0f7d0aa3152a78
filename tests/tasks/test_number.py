"""Measured values: losses by their formulas, metrics however pictures are batched, and the promise of intervals."""

import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import ConfigError, DataError, InputError
from vitrail.schema import from_dict, to_dict
from vitrail.tasks.coverage import LEVELS
from vitrail.tasks.number import Number, NumberTrust
from vitrail.tasks.task import Answer, Goal, Task, Trust, make_task

LOSSES = {
    "mse": lambda error: error**2,
    "l1": np.abs,
    "huber": lambda error: np.where(np.abs(error) < 1, error**2 / 2, np.abs(error) - 0.5),
}


def draw(count: int, values: int, seed: int = 0, shift: float = 0.0) -> tuple[Number, np.ndarray, np.ndarray]:
    """A fitted task, standardised outputs and targets in units; the errors have heavy tails."""
    generator = np.random.default_rng(seed)
    targets = (shift + generator.normal(3, 2, (count, values)) * (1 + np.arange(values))).astype(np.float32)
    task = Number().fitted(targets)
    outputs = task.standardise(targets) + generator.standard_t(3, (count, values)) / 2
    return task, outputs.astype(np.float32), targets


def score(task: Number, outputs: np.ndarray, targets: np.ndarray) -> Any:
    return task.score(torch.as_tensor(outputs), torch.as_tensor(targets))


def test_the_task_has_the_mean_and_the_spread_of_the_targets() -> None:
    targets = np.array([[1.0, 0.1], [3.0, 0.1], [5.0, 0.1]])  # whose second standard deviation is rounded to 1e-17
    task = make_task("number").fitted(targets)
    assert isinstance(task, Number)
    assert task.mean == pytest.approx((3, 0.1))
    assert task.std == pytest.approx((math.sqrt(8 / 3), 1))  # the second value is constant
    values = task.probabilities(torch.tensor([[0.0, 0.0], [1.0, -1.0]]), None)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, [task.mean, (3 + task.std[0], 0.1 - 1)])
    np.testing.assert_allclose(task.standardise(values), [[0, 0], [1, -1]], atol=1e-12)
    assert task.chance(targets) == pytest.approx(0.5)  # 1 of the first value, 0 of the constant


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_losses_are_those_of_standardised_values(loss: str, shift: float) -> None:
    task, outputs, targets = draw(40, 3, shift=shift)
    errors = outputs - (targets.astype(np.float64) - np.array(task.mean)) / np.array(task.std)
    result = task.loss(torch.as_tensor(outputs), torch.as_tensor(targets), Goal(loss=loss))
    assert float(result) == pytest.approx(LOSSES[loss](errors).mean(), rel=1e-5)
    if loss == "mse":
        assert task.loss(torch.as_tensor(outputs), torch.as_tensor(targets), Goal()) == result


def test_guessing_the_mean_has_the_loss_of_chance() -> None:
    task, outputs, targets = draw(200, 2, shift=1e6)
    guess = task.loss(torch.zeros(outputs.shape), torch.as_tensor(targets), Goal())
    assert float(guess) == pytest.approx(task.chance(targets), rel=1e-5) == pytest.approx(1, rel=1e-5)


def test_half_precision_outputs_and_gradients() -> None:
    task, outputs, targets = draw(20, 2)
    half = torch.as_tensor(outputs).bfloat16().requires_grad_()
    task.loss(half, torch.as_tensor(targets), Goal()).backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.bfloat16
    assert math.isfinite(task.summarize([score(task, half.detach(), targets)])["mae"])


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (Goal(label_smoothing=0.1), "label_smoothing.* must be 0 for measured values"),
        (Goal(loss="hubber"), "did you mean huber"),
        (Goal(balance="weights"), "balance.*known: none"),
    ],
)
def test_goals_that_numbers_cannot_have(goal: Goal, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Number().loss(torch.zeros(1, 1), torch.zeros(1, 1), goal)


@given(st.integers(1, 60), st.sampled_from([1, 3]), st.lists(st.integers(0, 60), max_size=5), st.booleans())
def test_metrics_do_not_depend_on_batches(count: int, values: int, cuts: list[int], shifted: bool) -> None:
    task, outputs, targets = draw(count, values, seed=count, shift=1e6 if shifted else 0.0)
    places = [0, *sorted(min(cut, count) for cut in cuts), count]
    pairs = [(start, end) for start, end in itertools.pairwise(places) if end > start]
    batched = task.summarize([score(task, outputs[start:end], targets[start:end]) for start, end in pairs])
    whole = task.summarize([score(task, outputs, targets)])
    assert list(whole) == ["loss", *task.metrics]
    assert batched == pytest.approx(whole, rel=1e-9, nan_ok=True)
    assert math.isnan(whole["r2"]) == (count == 1)


def test_metrics_equal_scikit_learns() -> None:
    for values, shift in ((1, 0.0), (1, 1e6), (3, 0.0)):
        task, outputs, targets = draw(300, values, shift=shift)
        measured = task.summarize([score(task, outputs, targets)])
        truth, predicted = targets.astype(np.float64), task.probabilities(outputs, None)
        unit = np.array(task.std) if values > 1 else 1.0  # of several values, in standard deviations
        assert measured["mae"] == pytest.approx(sk.mean_absolute_error(truth / unit, predicted / unit))
        assert measured["rmse"] == pytest.approx(sk.root_mean_squared_error(truth / unit, predicted / unit))
        assert measured["r2"] == pytest.approx(sk.r2_score(truth, predicted))
        z = task.standardise(targets)
        assert measured["loss"] == pytest.approx(sk.mean_squared_error(z, outputs.astype(np.float64)))


def test_a_value_that_is_constant_has_no_r2() -> None:
    targets = np.stack([np.full(9, 0.1), np.arange(9)], axis=1).astype(np.float32)
    task = Number().fitted(targets)
    parts = [score(task, np.zeros((3, 2)), targets[start : start + 3]) for start in (0, 3, 6)]
    assert task.summarize(parts)["r2"] == pytest.approx(0)  # of the second, which the mean does not explain
    assert math.isnan(task.summarize([part[:, :1] for part in parts])["r2"])


def test_intervals_are_the_residuals_at_their_places() -> None:
    task, outputs, targets = draw(99, 2)
    trust = task.calibrate(outputs, targets, ("a", "b"), "toy, val")
    residuals = np.sort(np.abs(task.probabilities(outputs, None) - targets), axis=0)
    for coverage, place in ((0.5, 50), (0.9, 90), (0.901, 91), (0.99, 99)):
        np.testing.assert_allclose(trust.half_widths_at(coverage), residuals[place - 1])
    assert trust.levels == tuple(level for level in LEVELS if level <= 0.99)
    assert trust.spread == pytest.approx((task.probabilities(outputs, None) - targets).std(axis=0))
    answer = task.answer(outputs[0], ("a", "b"), trust, top_k=5, coverage=0.9)
    assert answer.values == pytest.approx(task.probabilities(outputs[0], None))
    assert answer.intervals is not None
    for (low, high), value, half in zip(answer.intervals, answer.values, residuals[89], strict=True):
        assert (low, high) == pytest.approx((value - half, value + half))
    assert answer._replace(values=(), intervals=None) == Answer()
    assert task.answer(outputs[0], ("a", "b"), trust, top_k=5, coverage=None).intervals is None


@given(st.integers(50, 400), st.floats(0.5, 0.98))
def test_a_calibration_holds_its_coverage_on_its_own_pictures(count: int, coverage: float) -> None:
    task, outputs, targets = draw(count, 1, seed=count)
    trust = task.calibrate(outputs, targets, ("a",), "toy, val")
    held = np.abs(task.probabilities(outputs, None) - targets) <= trust.half_widths_at(coverage)
    assert held.mean() >= coverage - 1e-9
    assert trust.half_widths_at(coverage) <= trust.half_widths_at(min(coverage + 0.01, 0.98))


def test_the_promise_holds_for_new_pictures() -> None:
    """Over 200 random splits of data with heavy tails, the mean coverage is what theory says: (place) / (n + 1)."""
    generator = np.random.default_rng(0)
    covered, fresh = [], 400
    for _ in range(200):
        truth = generator.normal(size=(60 + fresh, 1))
        outputs = truth + generator.standard_t(2, truth.shape) * (0.2 + np.abs(truth))
        trust = Number().calibrate(outputs[:60], truth[:60], ("a",), "toy, val")
        covered.append(np.mean(np.abs(outputs[60:] - truth[60:]) <= trust.half_widths_at(0.9)))
    expected = math.ceil(61 * 0.9) / 61  # and the standard deviation of a Beta(55, 6) variable
    spread = math.sqrt(expected * (1 - expected) / 62 + expected * (1 - expected) / fresh)
    assert abs(np.mean(covered) - expected) < 4 * spread / math.sqrt(200)
    assert expected >= 0.9


def test_coverages_that_cannot_be_promised_are_refused() -> None:
    task, outputs, targets = draw(60, 1)
    trust = task.calibrate(outputs, targets, ("a",), "toy, val")
    trust.check_coverage(0.98)
    with pytest.raises(
        ConfigError, match=r"`?coverage=0\.99`? is more than .* at most 0\.98; more validation pictures"
    ):
        trust.check_coverage(0.99)
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigError, match="must be between 0 and 1"):
            trust.check_coverage(wrong)
    with pytest.raises(DataError, match="a calibration needs at least 50 pictures; of toy, val, 49 pictures could"):
        task.calibrate(outputs[:49], targets[:49], ("a",), "toy, val")


def test_task_and_trust_go_through_json() -> None:
    task, outputs, targets = draw(80, 2)
    trust = task.calibrate(outputs, targets, ("a", "b"), "toy, val")
    for value, base in ((task, Task), (trust, Trust)):
        plain = json.loads(json.dumps(to_dict(value)))
        assert plain["kind"] == "number"
        assert base.__parse__(plain, "file") == value == from_dict(type(value), plain)
    assert trust.facts()["highest_coverage"] == 0.985
    assert json.loads(json.dumps(trust.facts())) == trust.facts()
    assert trust.describe() == [
        "on 80 pictures of toy, val",
        "intervals around each value for a coverage of up to 0.985",
    ]
    assert "80 pictures" in repr(trust)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levels": ()}, "half-widths for each level"),
        ({"levels": (0.9, 0.5)}, "must ascend"),
        ({"levels": (0.5, 1.0)}, "between 0 and 1"),
        ({"half_widths": ((1.0,), (0.5,))}, "must ascend"),
        ({"half_widths": ((-1.0,), (0.5,))}, "at least 0"),
        ({"half_widths": ((1.0,), (2.0, 3.0))}, "a half-width for each of 1 value"),
        ({"spread": (math.inf,)}, "finite"),
        ({"kind": "one"}, "kind must be one of number"),
    ],
)
def test_trust_is_validated(change: dict[str, Any], message: str) -> None:
    trust = NumberTrust(data="toy", pictures=60, levels=(0.5, 0.9), half_widths=((1.0,), (2.0,)), spread=(1.0,))
    with pytest.raises(ConfigError, match=message):
        replace(trust, **change)


@pytest.mark.parametrize(
    "facts", [{"mean": (1.0,)}, {"mean": (1.0,), "std": (0.0,)}, {"mean": (math.nan,), "std": (1.0,)}]
)
def test_the_task_is_validated(facts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="mean and"):
        Number(**facts)


def test_shapes_and_broken_numbers_are_refused() -> None:
    task, outputs, targets = draw(60, 2)
    with pytest.raises(InputError, match="must be 2 values for each picture; got 3"):
        task.probabilities(np.zeros((4, 3)), None)
    with pytest.raises(InputError, match=r"must be \(N, 2\)"):
        task.measure(outputs, targets[:-1], ("a", "b"), None, 0.9)
    with pytest.raises(InputError, match="1 of 60 rows are not, the first is row 7"):
        task.measure(np.where(np.arange(60)[:, None] == 7, np.nan, outputs), targets, ("a", "b"), None, 0.9)
    with pytest.raises(DataError, match="finite"):
        Number().fitted(np.array([[np.inf]]))


def test_importing_the_task_loads_nothing_heavy() -> None:
    code = "import sys, vitrail.tasks.number; print({'torch', 'scipy', 'matplotlib', 'PIL'} & set(sys.modules) or '')"
    assert not subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

"""Results of measured values against scikit-learn's, SciPy's and torchmetrics', and how they are shown."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics as sk
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vitrail.blocks import Table
from vitrail.canvas import DARK, LIGHT, figure_bytes
from vitrail.tasks.number import Number
from vitrail.tasks.number_metrics import ValueScores, format_number, measure_values, score_draws
from vitrail.tasks.number_results import NumberResults

NAMES = ("angle", "width", "age")


def make_results(count: int = 120, values: int = 1, *, calibrated: bool = True, coverage: float = 0.9) -> NumberResults:
    """Predictions that are too near to the mean, with heavy tails."""
    generator = np.random.default_rng(count)
    truth = generator.normal(45, 25, (count + 200, values)) * 10.0 ** np.arange(values)
    task = Number().fitted(truth)
    outputs = 0.9 * task.standardise(truth) + generator.standard_t(3, truth.shape) / 5
    names = tuple(NAMES[index % 3] + "'" * (index // 3) for index in range(values))
    trust = task.calibrate(outputs[:200], truth[:200], names, "toy, val") if calibrated else None
    results = task.measure(outputs[200:], truth[200:], names, trust, coverage)
    assert isinstance(results, NumberResults)
    return results


def scores_of(predicted: Any, truth: Any) -> ValueScores:
    columns = (np.asarray(each, dtype=np.float64)[:, None] for each in (predicted, truth))
    return measure_values(*columns, np.ones(1))[0]


few_values = arrays(np.float64, 30, elements=st.integers(-4, 4).map(float))  # ties
any_values = arrays(np.float64, 30, elements=st.floats(-1e6, 1e6, width=32))


@given(st.tuples(few_values, few_values) | st.tuples(any_values, any_values))
def test_scores_equal_scikit_learns_and_scipys(case: tuple[np.ndarray, np.ndarray]) -> None:
    predicted, truth = case
    scores = scores_of(predicted, truth)
    assert scores.mae.value == pytest.approx(sk.mean_absolute_error(truth, predicted))
    assert scores.rmse.value == pytest.approx(sk.root_mean_squared_error(truth, predicted))
    assert scores.bias.value == pytest.approx((predicted - truth).mean(), abs=1e-6)
    varied = len(np.unique(truth)) > 1
    assert math.isnan(scores.r2.value) == (not varied)
    if varied and truth.std() > 1e-3 * np.abs(truth).max():
        assert scores.r2.value == pytest.approx(sk.r2_score(truth, predicted), rel=1e-6, abs=1e-9)
    if varied and len(np.unique(predicted)) > 1:
        expected = scipy.stats.spearmanr(predicted, truth).statistic
        assert scores.rank_correlation.value == pytest.approx(expected, abs=1e-9)
    else:
        assert math.isnan(scores.rank_correlation.value)


def test_scores_equal_torchmetrics() -> None:
    from benchmarks.peers import torchmetrics  # it takes five seconds

    results = make_results()
    predicted, truth = (torch.as_tensor(each[:, 0]) for each in (results.predicted, results.truth))
    assert results.overall.r2.value == pytest.approx(
        float(torchmetrics.functional.r2_score(predicted, truth)), rel=1e-5
    )
    correlation = float(torchmetrics.functional.spearman_corrcoef(predicted, truth))
    assert results.overall.rank_correlation.value == pytest.approx(correlation, rel=1e-5)


def test_resamples_are_scored_as_if_they_were_all_pictures() -> None:
    generator = np.random.default_rng(0)
    truth, predicted = generator.integers(0, 5, (2, 9, 1)).astype(np.float64)
    draws = generator.integers(0, 9, (20, 9))
    for row, scores in zip(draws, score_draws(predicted, truth, draws)[..., 0], strict=True):
        one, other = truth[row, 0], predicted[row, 0]
        correlation = scipy.stats.spearmanr(one, other).statistic
        errors = sk.mean_absolute_error(one, other), sk.root_mean_squared_error(one, other)
        np.testing.assert_allclose(scores, (*errors, sk.r2_score(one, other), correlation, (other - one).mean()))


def test_intervals_are_about_those_of_scipy() -> None:
    results = make_results(150)
    predicted, truth = results.predicted[:, 0], results.truth[:, 0]
    statistics = {
        "mae": sk.mean_absolute_error,
        "rmse": sk.root_mean_squared_error,
        "r2": sk.r2_score,
        "rank_correlation": lambda one, other: scipy.stats.spearmanr(one, other).statistic,
        "bias": lambda one, other: float(np.mean(other - one)),
    }
    for name, statistic in statistics.items():
        expected = scipy.stats.bootstrap(
            (truth, predicted),
            statistic,
            paired=True,
            vectorized=False,
            n_resamples=300,
            method="percentile",
            rng=np.random.default_rng(1),
        ).confidence_interval
        found, width = getattr(results.overall, name), expected.high - expected.low
        assert found.low == pytest.approx(expected.low, abs=0.25 * width), name
        assert found.high == pytest.approx(expected.high, abs=0.25 * width), name


def test_intervals_of_very_many_pictures_are_as_narrow_as_theirs() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(60_000, 10))
    errors = generator.normal(size=truth.shape)
    overall, each = measure_values(truth + errors, truth, np.ones(10))
    for scores, error in zip(each, np.abs(errors).T, strict=True):
        half = 1.96 * error.std() / math.sqrt(len(error))  # the central limit theorem
        assert scores.mae.low == pytest.approx(error.mean() - half, abs=0.2 * half)
        assert scores.mae.high == pytest.approx(error.mean() + half, abs=0.2 * half)
    assert overall.mae.high - overall.mae.low < (each[0].mae.high - each[0].mae.low) / 2  # a mean of 10


def test_a_large_mean_costs_no_accuracy() -> None:
    truth = np.random.default_rng(0).normal(size=(90, 1))
    near, far = (measure_values(truth * 0.5 + shift, truth + shift, np.ones(1))[0] for shift in (0.0, 1e6))
    for one, other in zip(near[:4], far[:4], strict=True):
        assert one.value == pytest.approx(other.value, rel=1e-8)
        assert one.low == pytest.approx(other.low, rel=1e-6)


def test_of_several_values_the_means_are_in_standard_deviations() -> None:
    results = make_results(values=3)
    truth, predicted = results.truth / results.scale, results.predicted / results.scale
    assert results.overall.mae.value == pytest.approx(sk.mean_absolute_error(truth, predicted))
    assert results.overall.rmse.value == pytest.approx(sk.root_mean_squared_error(truth, predicted))
    assert results.overall.r2.value == pytest.approx(sk.r2_score(truth, predicted))
    for index, scores in enumerate(results.values):
        expected = sk.mean_absolute_error(results.truth[:, index], results.predicted[:, index])
        assert scores.mae.value == pytest.approx(expected)
        assert scores.mae.low < expected < scores.mae.high
    assert "standard deviations on average over 3 values" in results.verdict("tiny", "120 test pictures of toy")


def test_the_same_pictures_have_the_same_intervals() -> None:
    assert make_results(80).facts() == make_results(80).facts()


def test_undefined_numbers_are_none_and_dashes() -> None:
    results = replace(make_results(60, calibrated=False), predicted=np.zeros((60, 1)), truth=np.ones((60, 1)))
    facts = results.facts()
    assert facts["r2"] == facts["rank_correlation"] == {"value": None, "low": None, "high": None}
    assert facts["mae"] == {"value": 1, "low": 1, "high": 1}
    assert results.verdict("tiny", "60 pictures") == (
        "tiny is off by 1.00 on average (95 % interval: 1.00 to 1.00) for 60 pictures."
    )
    assert results.table().rows[0][3:5] == ("–", "–")
    one = replace(results, predicted=np.zeros((1, 1)), truth=np.ones((1, 1)))
    assert one.verdict("tiny", "1 picture") == "tiny is off by 1.00 on average for 1 picture."
    assert one.facts()["mae"] == {"value": 1, "low": None, "high": None}


def test_coverage_is_counted() -> None:
    results = make_results(300, values=3)
    assert results.trust is not None
    half = results.trust.half_widths_at(0.9)
    held = (results.predicted - half <= results.truth) & (results.truth <= results.predicted + half)
    intervals = results.facts()["intervals"]
    for value, share, width in zip(intervals["values"], held.mean(axis=0), 2 * half, strict=True):
        assert value["coverage"]["value"] == pytest.approx(share)
        expected = scipy.stats.binomtest(round(share * 300), 300).proportion_ci(0.95, method="wilson")
        assert value["coverage"]["low"] == pytest.approx(expected.low)
        assert value["width"] == pytest.approx(width)
    assert [point["requested"] for point in intervals["curve"]] == [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99]
    for point in intervals["curve"]:
        for value in point["values"]:
            assert abs(value["coverage"]["value"] - point["requested"]) < 0.1


@pytest.mark.parametrize("values", [1, 3])
def test_what_is_written(values: int) -> None:
    results = make_results(values=values)
    columns, rows = results.columns(), list(results.predictions())
    assert len(set(columns)) == len(columns) == 5 * values == len(rows[0])
    assert not {"picture", "error"} & set(columns)  # which every predictions.csv has
    first = dict(zip(columns, rows[7], strict=True))
    prefix = "" if values == 1 else "angle_"
    assert first[f"{prefix}true"] == results.truth[7, 0]
    assert first[f"{prefix}difference"] == results.predicted[7, 0] - results.truth[7, 0]
    assert first[f"{prefix}low"] < first[f"{prefix}predicted"] < first[f"{prefix}high"]
    ((name, (head, lines)),) = results.tables().items()
    table = [dict(zip(head, line, strict=True)) for line in lines]
    assert name == "values.csv"
    assert [line["value"] for line in table] == list(results.names)
    assert table[0]["mae"] == results.values[0].mae.value
    assert json.loads(json.dumps(results.facts())) == results.facts()
    plain = make_results(values=values, calibrated=False)
    assert next(iter(plain.predictions()))[3:5] == [None, None]
    assert plain.facts()["intervals"] is plain.facts()["calibration"] is None


@pytest.mark.parametrize("values", [1, 3])
def test_what_is_shown(values: int) -> None:
    results = make_results(values=values)
    table = results.table()
    assert len(table.rows) == values
    assert {len(row) for row in table.rows} == {len(table.head)}
    assert [fact.name for fact in results.headline()][:3] == ["mean absolute error", "root mean squared error", "R²"]
    assert dict(results.rows())["R²"].startswith(results.overall.r2.text())
    assert results.verdict("tiny", "120 test pictures of toy").endswith(f"R² {results.overall.r2.value:.2f}.")
    assert results.blocks()
    tables = [block for block in results.trust_blocks() if isinstance(block, Table)]
    assert len(tables) == (values > 1)
    assert make_results(values=values, calibrated=False).trust_blocks() == []


def test_a_bias_is_named_if_it_is_beyond_doubt() -> None:
    results = make_results()
    high = replace(results, predicted=results.truth + np.linspace(4, 6, len(results.truth))[:, None])
    assert "angle is predicted too high by 5.00" in str(high.blocks())
    low = replace(results, predicted=results.truth - np.linspace(4, 6, len(results.truth))[:, None])
    assert "angle is predicted too low by 5.00" in str(low.blocks())
    even = replace(results, predicted=results.truth + np.linspace(-1, 1, len(results.truth))[:, None])
    assert "predicted too" not in str(even.blocks())


def test_worst_best_and_captions() -> None:
    results = make_results(values=3)
    relative = np.abs(results.predicted - results.truth) / results.scale
    worst = results.worst(5)
    assert worst.tolist() == np.argsort(-relative.max(axis=1))[:5].tolist()
    assert results.explained(int(worst[0])) == relative[worst[0]].argmax()
    best = results.best(4)
    assert len(set(best.tolist())) == 4
    assert np.all(np.diff(results.truth[best, 0]) > 0)  # spread over the range
    assert relative[best].max() < np.median(relative.max(axis=1))
    assert len(results.best(10**6)) == 120
    exact = replace(results, predicted=results.truth)
    assert len(exact.worst(5)) == 0
    single = make_results()
    single = replace(single, scale=np.array([25.0]), predicted=np.full((120, 1), 31.2), truth=np.full((120, 1), 45.0))
    assert single.caption(0) == "angle 31.2 (true 45.0)"
    assert make_results(values=5).caption(0).count("(true") == 3


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.14159, None, "3.14"),
        (1234567.0, None, "1,234,567"),
        (1000000.3, 1.0, "1,000,000.30"),
        (0.00001234, None, "1.23e-05"),
        (1.0000123, 1e-5, "1.0000123"),
        (-0.001, 1.0, "0.00"),
        (0.0, None, "0"),
        (math.nan, 1.0, "–"),
    ],
)
def test_numbers_for_people(value: float, unit: float | None, text: str) -> None:
    assert format_number(value, unit) == text


@pytest.mark.parametrize(("count", "values"), [(1, 1), (60, 7), (4000, 2)])
def test_figures(count: int, values: int) -> None:
    results = make_results(count, values)
    drawings = results.drawings("toy, test: $5 of pictures")
    assert [name.rpartition(".")[2] for name in drawings] == ["png"] * 3
    for number, drawing in enumerate(drawings.values()):
        theme = (LIGHT, DARK)[number % 2]
        figure = drawing.draw(theme)
        assert len(figure.axes) == min(values, 6)
        assert figure_bytes(figure, dpi=30).startswith(b"\x89PNG")
        assert drawing.alt
        assert ("The first 6 of 7" in drawing.caption) == (values > 6)


def test_figures_without_a_calibration_or_any_spread() -> None:
    results = make_results(60, calibrated=False)
    for truth in (0.0, 1e9):
        flat = replace(results, predicted=np.full((60, 1), truth), truth=np.full((60, 1), truth))
        for drawing in flat.drawings("toy").values():
            assert "band" not in drawing.caption
            assert figure_bytes(drawing.draw(LIGHT), dpi=30)

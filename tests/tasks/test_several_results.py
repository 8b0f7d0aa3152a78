"""The numbers of several labels against scikit-learn's and torchmetrics', and how they are shown."""

import json
import math
import warnings

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.text import Text
from scipy.special import expit
from tests.tasks.test_several import NAMES, TASK, make_pictures

from vitrail.canvas import DARK, LIGHT, figure_bytes
from vitrail.errors import InputError
from vitrail.tasks.several_metrics import FEWEST_POSITIVES, average_precision, bootstrap_precision, rank
from vitrail.tasks.several_results import SeveralResults

Case = tuple[np.ndarray, np.ndarray]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Logits and targets: ties perhaps, labels without pictures perhaps, one picture perhaps."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from([1, 2, 5, 60])), draw(st.sampled_from([1, 3, 8]))
    logits = generator.normal(scale=draw(st.sampled_from([0.01, 1.0, 8.0])), size=shape)
    if draw(st.booleans()):
        logits = np.round(logits)  # ties
    targets = generator.random(shape) < draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    return logits.astype(np.float32), targets.astype(np.uint8)


def measure(case: Case) -> SeveralResults:
    return TASK.measure(*case, [str(label) for label in range(case[0].shape[1])], None, 0.95)


@given(cases())
def test_equal_to_scikit_learn(case: Case) -> None:
    logits, targets = case
    found, predicted = measure(case), logits > 0
    for label in range(logits.shape[1]):
        own = targets[:, label]
        if own.any():
            expected = sk.average_precision_score(own, logits[:, label])
            assert found.average_precision[label] == pytest.approx(expected)
            ranking = found.ranking(label)
            precision, recall, _ = sk.precision_recall_curve(own, logits[:, label])  # ends with no recall
            np.testing.assert_allclose(ranking.precision[::-1], precision[:-1])
            np.testing.assert_allclose(ranking.recall[::-1], recall[:-1])
        else:
            assert math.isnan(found.average_precision[label])
            assert math.isnan(found.hits.recall[label])
    columns = (found.hits.precision, found.hits.recall, found.hits.f1, found.hits.support)
    if logits.shape[1] > 1:
        expected = sk.precision_recall_fscore_support(targets, predicted, zero_division=np.nan)
        for own, theirs in zip(columns, expected, strict=True):
            np.testing.assert_allclose(own, theirs)
        for average in ("micro", "macro"):
            expected = sk.f1_score(targets, predicted, average=average, zero_division=np.nan)
            assert getattr(found.hits, f"{average}_f1") == pytest.approx(expected, nan_ok=True)
        assert found.exact_match.value == pytest.approx(sk.accuracy_score(targets, predicted))
    assert found.hamming == pytest.approx(sk.hamming_loss(targets, predicted))
    shares = expit(logits.astype(np.float64))
    losses = -np.where(targets, np.log(shares), np.log1p(-shares)).mean(axis=1)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-6, atol=1e-12)


@given(cases())
def test_equal_to_torchmetrics(case: Case) -> None:
    from benchmarks.peers import torchmetrics  # it takes five seconds

    tm, found = torchmetrics.classification, measure(case)
    logits, targets = torch.as_tensor(case[0]).double(), torch.as_tensor(case[1]).long()
    labels = logits.shape[1]
    if labels < 2:
        return
    shares, having = torch.sigmoid(logits), case[1].any(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # labels without pictures
        precision = tm.MultilabelAveragePrecision(labels, average="none")(shares, targets)
    np.testing.assert_allclose(found.average_precision[having], precision[having], rtol=1e-5)
    if having.any():
        assert found.mean_average_precision == pytest.approx(float(precision[having].mean()), rel=1e-5)
        micro = tm.MultilabelF1Score(labels, average="micro")(shares, targets)
        assert found.hits.micro_f1 == pytest.approx(float(micro), rel=1e-5)
        f1 = tm.MultilabelF1Score(labels, average="none")(shares, targets)
        np.testing.assert_allclose(found.hits.f1[having], f1[having], rtol=1e-5)
    match = tm.MultilabelExactMatch(labels)(shares, targets)
    assert found.exact_match.value == pytest.approx(float(match))


def test_intervals_are_those_of_resampled_pictures() -> None:
    """With scikit-learn as the judge of other resamples, drawn by NumPy."""
    logits, targets = make_pictures(200, labels=4)
    targets[FEWEST_POSITIVES - 1 :, 0] = 0
    targets[: FEWEST_POSITIVES - 1, 0] = 1
    spread = bootstrap_precision(logits, targets)
    assert np.isnan([spread.low[0], spread.high[0]]).all()
    drawn = np.random.default_rng(0).integers(0, 200, (150, 200))
    resampled = [
        [sk.average_precision_score(targets[rows, label], logits[rows, label]) for label in (1, 2, 3)] for rows in drawn
    ]
    low, high = np.quantile(resampled, (0.025, 0.975), axis=0)
    np.testing.assert_allclose(spread.low[1:], low, atol=0.04)
    np.testing.assert_allclose(spread.high[1:], high, atol=0.04)
    value = average_precision(logits, targets)
    assert spread.mean_low < np.nanmean(value) < spread.mean_high
    assert spread.mean_high - spread.mean_low < (spread.high - spread.low)[1:].max()


@given(cases())
def test_resamples_with_every_picture_once_change_nothing(case: Case) -> None:
    from vitrail.tasks.several_metrics import _areas

    logits, targets = case
    once = np.ones((2, len(logits)), dtype=np.uint8)
    twice = np.concatenate([once, 2 * once])
    for label in range(logits.shape[1]):
        areas = _areas(logits[:, label], targets[:, label], twice)
        expected = average_precision(logits[:, label : label + 1], targets[:, label : label + 1])
        np.testing.assert_allclose(areas, np.broadcast_to(expected, 4))


def test_wrong_inputs() -> None:
    logits, targets = make_pictures(3)
    with pytest.raises(InputError, match=r"must be \(N, labels\)"):
        TASK.measure(logits, targets[:, 0], NAMES, None, 0.95)
    with pytest.raises(InputError, match="targets must be 0 or 1"):
        TASK.measure(logits, targets + 1, NAMES, None, 0.95)
    with pytest.raises(InputError, match="1 of 3 rows are not: row 2"):
        TASK.measure(np.where(np.arange(3)[:, None] == 2, np.nan, logits), targets, NAMES, None, 0.95)


@pytest.fixture(scope="module")
def results() -> SeveralResults:
    trust = TASK.calibrate(*make_pictures(300), NAMES, "toy, val")
    return TASK.measure(*make_pictures(200, seed=1), NAMES, trust, 0.9)


def test_calibration_is_measured(results: SeveralResults) -> None:
    assert results.calibration_error < 0.5 * results.uncalibrated_error
    gaps, truth = [], results.targets.ravel()
    bins = np.minimum((results.shares.ravel() * 15).astype(int), 14)
    for number in range(15):
        own = bins == number
        gaps.append(abs(results.shares.ravel()[own].sum() - truth[own].sum()))
    assert results.calibration_error == pytest.approx(sum(gaps) / truth.size)
    sets = results.sets
    assert sets is not None
    found = sets.facts()
    assert found["missed_low"] < found["missed"] < found["missed_high"]
    assert found["missed_low"] < 0.1
    assert found["mean_size"] > results.predicted.sum(axis=1).mean()
    requested = [each.requested for each in results.curve]
    missed = [each.facts()["missed"] for each in results.curve]
    assert requested == sorted(requested)
    assert missed == sorted(missed, reverse=True)
    assert TASK.measure(results.outputs, results.targets, NAMES, results.trust, 0.9999).sets is None


def test_predictions_agree_with_answers(results: SeveralResults) -> None:
    rows = [dict(zip(results.columns(), row, strict=True)) for row in results.predictions()]
    assert len(rows) == 200
    for row, outputs, truth in zip(rows, results.outputs, results.targets, strict=True):
        answer = TASK.answer(outputs, NAMES, results.trust, top_k=5, coverage=0.9)
        own = {name for name, has in zip(NAMES, truth, strict=True) if has}
        assert row["predicted"] == "|".join(answer.labels)
        assert [float(score) for score in row["scores"].split("|") if score] == pytest.approx(answer.scores, abs=1e-6)
        assert set(row["true"].split("|")) - {""} == own
        assert set(row["missed"].split("|")) - {""} == own - set(answer.labels)
        assert set(row["extra"].split("|")) - {""} == set(answer.labels) - own
        assert row["correct"] is (own == set(answer.labels))
        assert answer.label_set is not None
        assert row["set_size"] == len(answer.label_set)
        assert set(row["missed_in_set"].split("|")) - {""} == own - set(answer.label_set)
    assert {row["correct"] for row in rows} == {True, False}


def test_pictures(results: SeveralResults) -> None:
    worst, best = results.worst(1000), results.best(3)
    assert len(worst) == int((~results.correct).sum())
    assert (np.diff(results.losses[worst]) <= 0).all()
    assert results.correct[best].all()
    assert len(set(best.tolist())) == 3
    logits = np.array([[3.0, 1.0, -2.0, -3.0, -3.0], [-1.0, -1.0, -2.0, -3.0, -3.0], [-1.0, 2.0, -2.0, -3.0, -3.0]])
    targets = np.array([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]])
    few = TASK.measure(logits, targets, NAMES, None, 0.95)
    assert few.caption(0) == "predicted cat 95%, dog 73% (wrong); missed bird (12%)"
    assert few.caption(1) == "predicted no label"
    assert [few.explained(index) for index in range(3)] == [2, 0, 1]
    assert few.worst(9).tolist() == [0]
    assert few.best(9).tolist() == [2]


def test_texts_and_tables(results: SeveralResults) -> None:
    facts = results.facts()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    verdict = results.verdict("model.pt", "200 test pictures of toy")
    assert f"{facts['map']:.2%} (95 % interval: {facts['map_low']:.2%}" in verdict
    assert dict(results.rows())["micro F1"] == f"{facts['micro_f1']:.3f}"
    assert [row[0] for row in results.table().rows] == list(NAMES)
    tables = results.tables()
    head, rows = tables["labels.csv"]
    assert [dict(zip(head, row, strict=True)) for row in rows] == facts["labels"]
    wrong = results.predicted & ~results.truth
    for truth, extra, count in tables["confusion.csv"][1]:
        own, other = NAMES.index(truth), NAMES.index(extra)
        assert count == int((results.truth[:, own] & wrong[:, other]).sum()) > 0
    assert len(results.headline()) == 3
    assert len(results.blocks()) == 3
    assert len(results.trust_blocks()) == 3


def test_many_labels() -> None:
    logits, targets = make_pictures(120, labels=60)
    targets[:, 7] = 0
    names = [f"label {label}" for label in range(60)]
    found = TASK.measure(logits, targets, names, None, 0.95)
    table = found.table()
    assert table.note.startswith("The 40 worst of 60 labels")
    assert table.rows[0][0] == names[int(np.nanargmin(found.average_precision))]
    assert found.facts()["labels"][7]["average_precision"] is None
    assert found.worst_labels()[-1] == 7
    assert found.trust_blocks() == []
    assert found.facts()["label_sets"] is None


@pytest.mark.parametrize("labels", [2, 45])
def test_drawings(labels: int) -> None:
    logits, targets = make_pictures(60, labels=labels)
    targets[:, 0] = 0
    names = [f"_label {label}$" for label in range(labels)]
    found = TASK.measure(logits, targets, names, None, 0.95)
    worst = rf"_label {found.worst_labels()[0]}\$"
    for name, drawing in found.drawings("toy, test").items():
        light, dark = drawing.draw(LIGHT), drawing.draw(DARK)
        assert (light.get_facecolor(), dark.get_facecolor()) == (to_rgba(LIGHT.paper), to_rgba(DARK.paper))
        texts = [text.get_text() for text in light.findobj(Text)]
        assert any(worst in text for text in texts) or (name, labels) == ("label_confusion.png", 45)
        assert "_label 0" not in "".join(texts) or name == "label_confusion.png"  # it has no pictures
        for text in dark.findobj(Text):
            assert text.get_color() not in ("black", LIGHT.ink)


@pytest.mark.draws
def test_no_picture_has_a_label() -> None:
    found = TASK.measure(np.zeros((3, 2)), np.zeros((3, 2), dtype=int), ("a", "b"), None, 0.95)
    facts = found.facts()
    assert facts["map"] is facts["micro_f1"] is facts["macro_f1"] is facts["map_low"] is None
    assert (
        found.verdict("m", "3 pictures")
        == "m finds exactly the labels of 100.00% of 3 pictures, none of which has a label."
    )
    assert dict(found.rows())["mean average precision"] == "–"
    assert found.best(2).size == found.worst(2).size == 0
    for drawing in found.drawings("toy").values():
        figure_bytes(drawing.draw(LIGHT), dpi=20)


def test_equal_scores_are_ties() -> None:
    ranking = rank(np.array([1.0, 0.0, 1.0]), np.array([1, 1, 0]))
    assert ranking.ends.tolist() == [1, 2]
    assert ranking.positives.tolist() == [1, 2]

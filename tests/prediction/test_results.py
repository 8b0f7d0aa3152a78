"""Calibrated answers: probabilities, label sets, and what is unlike anything seen in training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.prediction.conftest import CLASSES
from tests.prediction.test_predictor import Upside
from tests.trusting import with_trust

from vitrail.data import prepare
from vitrail.data.pixels import prepare_array
from vitrail.errors import ConfigError
from vitrail.prediction import Predictor
from vitrail.prediction import results as predictions
from vitrail.tasks.one import probabilities


@pytest.fixture
def calibrated(predictor: Predictor) -> Predictor:
    return with_trust(predictor)


def test_probabilities_are_the_calibrated_ones(predictor: Predictor, calibrated: Predictor, photos: list[Path]) -> None:
    before, after = predictor.predict(photos[0], top_k=7), calibrated.predict(photos[0], top_k=7)
    logits = predictor(prepare(photos[0], predictor.preprocess)[None])[0].numpy()
    np.testing.assert_allclose(sorted(after.scores), sorted(probabilities(logits, calibrated.trust)), rtol=1e-5)
    assert after.labels == before.labels
    assert after.scores != before.scores
    assert torch.equal(calibrated(torch.zeros(1, 3, 32, 32)), predictor(torch.zeros(1, 3, 32, 32)))  # logits stay
    assert (before.label_set, before.familiarity, before.familiar) == (None, None, None)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_stream_answers_as_single_pictures_do(calibrated: Predictor, photos: list[Path], batch_size: int) -> None:
    """Whatever the order and the batches."""
    stream = list(calibrated.predict(photos[::-1], coverage=0.8, batch_size=batch_size))[::-1]
    for path, row in zip(photos, stream, strict=True):
        if row.error is None:
            alone = calibrated.predict(path, coverage=0.8)
            assert alone.label_set == row.label_set
            assert alone.familiarity == pytest.approx(row.familiarity, abs=1e-4)


def test_label_sets_are_the_most_likely_labels(calibrated: Predictor, photos: list[Path]) -> None:
    sizes = {}
    for coverage in (0.5, 0.9, 0.99):
        row = calibrated.predict(photos[1], top_k=7, coverage=coverage)
        assert row.label_set == row.labels[: len(row.label_set or ())]
        sizes[coverage] = len(row.label_set or ())
    assert 1 <= sizes[0.5] <= sizes[0.9] <= sizes[0.99]
    assert sizes[0.99] > 1


def test_abstaining(calibrated: Predictor, photos: list[Path]) -> None:
    """Photographs are unlike noise, which is all that this model has seen; noise is not."""
    photo = calibrated.predict(photos[0], abstain=True, coverage=0.9)
    assert photo.familiar is False
    assert (photo.label, photo.labels, photo.label_set, photo.error) == (None, (), None, None)
    assert calibrated.predict(photos[0]).label in CLASSES
    trust = calibrated.trust
    assert trust is not None
    assert trust.familiarity is not None
    lenient = replace(trust.familiarity, quantiles=(-1e12, 0.0))
    easy = replace(calibrated, trust=replace(trust, familiarity=lenient))
    assert easy.predict(photos[0], abstain=True).label == calibrated.predict(photos[0]).label


def test_what_a_model_cannot_answer(predictor: Predictor, calibrated: Predictor, photos: list[Path]) -> None:
    with pytest.raises(ConfigError, match="coverage= needs a calibrated model"):
        predictor.predict(photos, coverage=0.9)
    with pytest.raises(ConfigError, match="abstain= needs a model that can tell what is unfamiliar; it was not cali"):
        predictor.predict(photos[0], abstain=True)
    with pytest.raises(ConfigError, match="coverage=0.999 is more than .* at most 0.995"):
        calibrated.predict(photos, coverage=0.999)
    blind = replace(calibrated, runtime=Upside(), classes=("r", "g", "b"))
    with pytest.raises(ConfigError, match="this export, on Upside, gives no features"):
        blind.predict(photos[0], abstain=True)
    assert blind.predict(photos[0]).familiar is None


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pictures that were decoded, in order."""
    names: list[str] = []

    def prepare(picture: Path, spec: object, out: object, name: str) -> None:
        names.append(Path(name).stem)
        prepare_array(picture, spec, out, name)  # pyright: ignore

    monkeypatch.setattr("vitrail.data.pixels.prepare_array", prepare)
    return names


def test_a_sequence_like_a_list(predictor: Predictor, photos: list[Path], decoded: list[str]) -> None:
    rows = predictor.predict(photos, batch_size=4)
    assert len(rows) == 11
    assert repr(rows) == "<Predictions for 11 pictures, 0 computed so far>"
    assert not decoded
    assert rows[9].picture == str(photos[9])
    assert decoded == ["08", "09", "10"], "only its batch"
    whole = list(rows)
    assert [row.picture for row in whole] == list(map(str, photos))
    assert repr(rows) == "<Predictions for 11 pictures, 11 computed so far>"
    decoded.clear()
    assert list(rows) == whole
    assert (rows[-1], rows[2:7], rows[::-3], rows[20:]) == (whole[-1], whole[2:7], whole[::-3], [])
    assert whole[5] in rows
    assert not decoded, "computed once"
    assert list(rows.stream()) == whole
    assert len(decoded) == 11
    with pytest.raises(IndexError):
        rows[11]


def test_old_predictions_are_dropped_and_computed_again(
    predictor: Predictor, photos: list[Path], decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "KEPT", 8)
    rows = predictor.predict(photos, batch_size=4)
    whole = list(rows)
    assert repr(rows) == "<Predictions for 11 pictures, 7 computed so far>"
    decoded.clear()
    assert rows[6] == whole[6]
    assert not decoded
    assert list(rows) == whole
    assert len(decoded) == 11


def test_reading_a_part_decodes_only_a_little_ahead(
    predictor: Predictor, photos: list[Path], decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(predictor.runtime), "threads", 2)
    rows = predictor.predict(photos * 20, batch_size=2)
    assert next(iter(rows)).picture == str(photos[0])
    assert len(decoded) < 30
    assert len(rows[3:5]) == 2


def test_a_notebook_shows_the_first_rows(predictor: Predictor, photos: list[Path]) -> None:
    lines = predictor.predict(photos)._repr_markdown_().splitlines()
    assert len(lines) == 2 + 10 + 2
    assert "00.jpg | " in lines[2]
    assert "not a picture" in lines[5]
    assert lines[-1] == "… and 1 more picture"


def test_a_model_and_its_calibration_introduce_themselves_briefly(predictor: Predictor) -> None:
    calibrated = with_trust(predictor)
    assert repr(calibrated) == "<Predictor model: 7 classes, pictures of 32×32, on torch>"
    assert repr(calibrated.trust).startswith("<Trust on 200 pictures of ")
    assert len(repr(calibrated.trust)) < 300
    assert "tensor(" not in repr(calibrated.checkpoint())

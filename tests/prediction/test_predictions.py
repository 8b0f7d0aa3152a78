"""Several predictions are a sequence, computed as it is read."""

from pathlib import Path

import pytest
from tests.trusting import with_trust

from vitrail.prediction import Predictor, predictions
from vitrail.prediction.predictor import prepare_array


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pictures that were decoded, in order."""
    names: list[str] = []

    def prepare(picture: Path, spec: object, out: object, name: str) -> None:
        names.append(Path(name).stem)
        prepare_array(picture, spec, out, name)  # pyright: ignore

    monkeypatch.setattr("vitrail.prediction.predictor.prepare_array", prepare)
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

"""`vitrail.predict` and `vitrail predict` are the same thing through two doors."""

import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.prediction.conftest import CLASSES, checkpoint_file, photos, write_tiny  # noqa: F401

import vitrail
from vitrail.cli.main import main
from vitrail.errors import ConfigError, InputError, VitrailError
from vitrail.prediction import Prediction
from vitrail.verbs.predict import Predictions, PredictionStream, predict


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos: list[Path], checkpoint_file: Path) -> Path:  # noqa: F811
    monkeypatch.chdir(tmp_path)
    return tmp_path


def several(*arguments: Any, **options: Any) -> Predictions:
    predictions = predict(*arguments, **options)
    assert isinstance(predictions, Predictions)
    return predictions


def fields(rows: Iterable[Prediction]) -> list[dict[str, Any]]:
    return [
        {"picture": row.picture, "labels": list(row.labels), "scores": list(row.scores), "error": row.error}
        for row in rows
    ]


def test_both_doors_give_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    Path("list").write_text("photos/01.jpg\ngone.jpg\n")
    assert main(["predict", "tiny.safetensors", "photos", "--list", "list", "--format", "jsonl"]) == 1
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    predictions = several("tiny.safetensors", "photos", list_file="list")
    assert predictions.top_k == 3
    rows = fields(predictions)
    assert not "".join(capsys.readouterr())  # quiet
    assert rows == printed
    assert [row["picture"] for row in rows[-2:]] == ["photos/01.jpg", "gone.jpg"]
    assert [bool(row["error"]) for row in rows] == [index in (3, 12) for index in range(13)]


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl", "labels.parquet"])
def test_both_doors_write_the_same_file(name: str, inside: Path) -> None:
    write_tiny(inside / "bare.safetensors", None)
    Path("names.txt").write_text("\n".join(f"={label}" for label in CLASSES))
    command = ["predict", "bare.safetensors", "photos/0*.jpg", "--classes", "names.txt", "--top-k", "99"]
    assert main([*command, "--out", f"command-{name}"]) == 1
    predictions = several("bare.safetensors", ["photos/0*.jpg"], classes="names.txt", top_k=99)
    assert predictions.top_k == len(CLASSES)
    path = predictions.save(f"python-{name}")
    if name.endswith("parquet"):
        assert pq.read_table(path).equals(pq.read_table(f"command-{name}"))
    else:
        assert path.read_bytes() == Path(f"command-{name}").read_bytes()


def test_one_picture_is_one_prediction() -> None:
    model = vitrail.load("tiny.safetensors")
    expected = model.predict("photos/00.jpg", top_k=3)
    assert predict(model, "photos/00.jpg") == predict("tiny.safetensors", Path("photos/00.jpg")) == expected
    with Image.open("photos/00.jpg") as image:
        pixels = np.array(image)
        shown = predict(model, image)
        assert isinstance(shown, Prediction)
        assert shown.labels == expected.labels
        assert (shown._repr_png_() or b"").startswith(b"\x89PNG")
        names = [row.picture for row in several(model, [pixels, "photos/00.jpg", image])]
    assert names == ["picture 0", "photos/00.jpg", "picture 2"]
    with pytest.raises(InputError, match=r"photos/03\.jpg: not a picture"):
        predict(model, "photos/03.jpg")


def test_a_picture_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path("photos/00.jpg").read_bytes())))
    read, named = predict("tiny.safetensors", "-"), predict("tiny.safetensors", "photos/00.jpg")
    assert isinstance(read, Prediction)
    assert isinstance(named, Prediction)
    assert (read.picture, read.labels) == ("-", named.labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "top_k= must be at least 1; got 0"),
        ({"batch_size": 0}, "batch_size= must be at least 1; got 0"),
        ({"classes": "gone.txt"}, "gone.txt"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"pictures": "gone.jpg"}, "gone.jpg: there is no such picture"),
        ({"pictures": ()}, "name at least one picture"),
        ({"model": "gone.safetensors"}, "no checkpoint gone.safetensors"),
    ],
)
def test_mistakes_are_told_before_the_model_is_read(options: dict[str, Any], message: str) -> None:
    Path("tiny.safetensors").write_bytes(b"broken")
    with pytest.raises(VitrailError, match=re.escape(message)):
        predict(**{"model": "tiny.safetensors", "pictures": "photos", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out": "labels.txt"}, "out=labels.txt must end in .jsonl"),
        ({"out": "photos", "format": "csv"}, "photos is a folder"),
        ({"out": "labels.csv", "format": "cvs"}, "format= has no 'cvs'; did you mean csv?"),
        ({"out": "labels.jsonl", "raw": True}, "raw= is about the cells of CSV files"),
    ],
)
def test_a_file_that_cannot_be_written(options: dict[str, Any], message: str, inside: Path) -> None:
    before = sorted(inside.rglob("*"))
    predictions = several("tiny.safetensors", "photos")
    with pytest.raises(ConfigError, match=re.escape(message)):
        predictions.save(**options)
    assert sorted(inside.rglob("*")) == before
    assert predictions[0].picture == "photos/00.jpg"


def test_what_has_a_length_is_a_sequence_and_the_rest_a_stream(inside: Path) -> None:
    model = vitrail.load("tiny.safetensors")
    folder = several(model, "photos", batch_size=4)
    assert [row.picture for row in folder] == [f"photos/{index:02}.jpg" for index in range(11)]
    assert list(folder.stream()) == list(folder) == list(several(model, Path("photos"), batch_size=4))
    Path("list").write_text("photos/00.jpg\nphotos/01.jpg\n")
    assert len(several(model, list_file="list")) == 2
    stream = predict(model, (name for name in ["photos/00.jpg", "photos/01.jpg"]))
    assert isinstance(stream, PredictionStream)
    assert next(stream).picture == "photos/00.jpg"
    assert stream.save("rest.csv").read_text().count("photos/") == 1  # what is left

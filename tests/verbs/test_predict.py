"""`vitrail.predict` and `vitrail predict` are the same thing through two doors."""

import io
import json
import re
from collections.abc import Iterable, Iterator
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
from vitrail.prediction import Prediction, Predictor
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
    assert predictions.top_k == 5
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
    predictions = several("bare.safetensors", ["photos/0*.jpg"], class_names="names.txt", top_k=99)
    assert predictions.top_k == len(CLASSES)
    path = predictions.save(f"python-{name}")
    if name.endswith("parquet"):
        assert pq.read_table(path).equals(pq.read_table(f"command-{name}"))
    else:
        assert path.read_bytes() == Path(f"command-{name}").read_bytes()


def test_one_picture_is_one_prediction() -> None:
    model = vitrail.load("tiny.safetensors")
    expected = model.predict("photos/00.jpg")
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
        ({"class_names": "gone.txt"}, "gone.txt"),
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


class Killed(BaseException):
    """What ends a process in the middle, as far as a test can."""


@pytest.fixture
def die_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ends the next job after some rows; then counts the pictures that are computed."""
    seen: list[str] = []
    original = Predictor.answering

    def set_limit(limit: int) -> list[str]:
        def some(self: Predictor, *arguments: Any) -> Any:
            compute, size = original(self, *arguments)

            def compute_some(pictures: Any) -> Iterator[Prediction]:
                seen.clear()
                for count, row in enumerate(compute(pictures)):
                    if count == limit:
                        raise Killed
                    seen.append(row.picture)
                    yield row

            return compute_some, size

        monkeypatch.setattr(Predictor, "answering", some)
        return seen

    return set_limit


@pytest.mark.parametrize("name", ["labels.csv", "labels.jsonl", "labels.parquet"])
def test_an_interrupted_job_continues(name: str, die_after: Any) -> None:
    several("tiny.safetensors", "photos").save(f"whole-{name}")
    names = [row.picture for row in several("tiny.safetensors", "photos")]
    die_after(5)
    with pytest.raises(Killed):
        several("tiny.safetensors", "photos").save(name, resume=True)
    journal = Path(f".{name}.partial")
    assert not Path(name).exists()
    journal.write_bytes(journal.read_bytes()[:-7])  # as if it had been killed while it wrote the fifth row
    die_after(3)
    with pytest.raises(Killed):
        several("tiny.safetensors", "photos").save(name, resume=True)
    computed = die_after(999)
    assert main(["predict", "tiny.safetensors", "photos", "--out", name, "--resume"]) == 1
    assert computed == names[7:], "four rows of the first job and three of the second are not computed again"
    assert Path(name).read_bytes() == Path(f"whole-{name}").read_bytes()
    assert list(Path().glob(f".{name}*")) == []
    with pytest.raises(ConfigError, match="is complete, so there is nothing to resume; omit resume= to write it again"):
        several("tiny.safetensors", "photos").save(name, resume=True)


def test_another_job_is_not_continued(die_after: Any, inside: Path) -> None:
    die_after(3)
    with pytest.raises(Killed):
        several("tiny.safetensors", "photos").save("labels.csv", resume=True)
    kept = Path(".labels.csv.partial").read_bytes()
    write_tiny(inside / "other.safetensors", None)
    for model, pictures, options, message in (
        ("other.safetensors", "photos", {}, "model="),
        ("tiny.safetensors", "photos", {"top_k": 2}, "top_k=2 conflicts with the interrupted job, which has 5"),
        ("tiny.safetensors", "photos", {"precision": "bf16"}, "precision='bf16' conflicts"),
        ("tiny.safetensors", "photos/0[1-9].jpg", {}, "there is photos/01.jpg where photos/00.jpg was"),
        ("tiny.safetensors", ["photos/00.jpg", "photos/01.jpg"], {}, "there is nothing where photos/02.jpg was"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            several(model, pictures, **options).save("labels.csv", resume=True)
    assert Path(".labels.csv.partial").read_bytes() == kept, "and nothing of it is lost"
    assert not Path("labels.csv").exists()
    stream = predict("tiny.safetensors", (name for name in ["photos/00.jpg"]))
    assert isinstance(stream, PredictionStream)
    with pytest.raises(ConfigError, match="resume= needs pictures that can be listed again"):
        stream.save("labels.csv", resume=True)
    assert main(["predict", "tiny.safetensors", "photos", "--resume"]) == 2

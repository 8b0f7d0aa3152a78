"""`vitrail.search` and `vitrail search` are the same thing through two doors."""

import csv
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.conftest import picture
from tests.prediction.conftest import write_tiny

import vitrail
from vitrail.cli.main import main
from vitrail.errors import ConfigError, InputError, MissingExtraError
from vitrail.prediction import job as jobs
from vitrail.verbs import search as verb
from vitrail.verbs.search import SearchResults, search

MODEL = "tiny.safetensors"


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, eight photographs, one of them broken, and their embeddings in a file and as a job."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "UNIT", 3)
    write_tiny(tmp_path / MODEL)
    Path("photos").mkdir()
    for number in range(8):
        picture(number).save(f"photos/{number}.png")
    Path("photos/5.png").write_bytes(b"no picture")
    vitrail.embed(MODEL, "photos", out="embedded", map="none")
    vitrail.run_job(MODEL, "photos", "job", task="embed", runtime="torch")
    return tmp_path


def rows_of(results: SearchResults) -> list[list[int]]:
    return [[near.row for near in found.neighbours] for found in results]


def test_both_doors_give_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["embedded", "photos/2.png", "photos/6.png", "--model", MODEL, "--top-k", "3"]
    assert main(["search", *arguments, "--out", "command", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    results = search("embedded", ["photos/2.png", "photos/6.png"], model=MODEL, top_k=3)
    assert not "".join(capsys.readouterr())  # quiet
    assert [path.rpartition("/")[2] for path in printed.pop("written")] == ["search.jpg", "search.json", "search.csv"]
    assert printed == {name: value for name, value in results.to_dict().items() if name != "written"}
    assert printed == json.loads(Path("command/search.json").read_text())
    with Path("command/search.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["query"], int(row["rank"]), int(row["row"])) for row in rows] == [
        (found.query, rank, near.row) for found in results for rank, near in enumerate(found.neighbours, 1)
    ]
    first = results[0].neighbours[0]
    assert (first.picture, first.row) == ("photos/2.png", 2)  # the picture itself, like any other
    assert first.similarity == pytest.approx(1, abs=1e-6)
    assert results.method == "exact"
    assert not Path("runs").exists()


def test_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "job", "photos/2.png", "--top-k", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "photos/2.png"
    assert lines[1] == f"  1.0000  {Path('photos/2.png').absolute()}"  # as the job calls it
    assert "7 pictures in job, every one compared; 1 more without an embedding" in lines
    assert lines[-2].startswith("wrote runs/search-1/search.jpg")
    assert lines[-1] == f"next: vitrail explain {Path(MODEL).absolute()} photos/2.png"


def test_the_labels_of_a_data_set_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    vitrail.embed(MODEL, data="digits", split="val", out="digits", map="none", format="npy")
    assert main(["search", "digits/features.npy", "photos/1.png", "--model", MODEL, "--top-k", "3"]) == 0
    labels = [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:4]]
    found = search("digits", "photos/1.png", model=MODEL, top_k=3)[0]
    assert labels == [near.label for near in found.neighbours]
    assert set(labels) <= {str(digit) for digit in range(10)}


def test_any_kind_of_picture_and_vectors() -> None:
    model = vitrail.load(MODEL)
    expected = rows_of(search("job", ["photos/1.png", "photos/4.png"]))
    with Image.open("photos/4.png") as image:
        for pictures in (
            [Path("photos/1.png").read_bytes(), image],
            (name for name in ("photos/1.png", "photos/4.png")),
            "photos/[14].png",
            np.stack([model.embed(f"photos/{number}.png").vector for number in (1, 4)]),  # type: ignore[misc]
        ):
            assert rows_of(search("job", pictures, model=model)) == expected
    vector = model.embed("photos/1.png").vector
    assert vector is not None
    results = search("job", vector)
    assert rows_of(results) == expected[:1]
    assert results[0].query == "vector 0"


def test_a_picture_that_cannot_be_read() -> None:
    Path("broken.png").write_bytes(b"no picture")
    assert main(["search", "job", "broken.png", "photos/1.png"]) == 1
    results = search("job", ["broken.png", "photos/1.png"])
    assert list(results.errors) == ["broken.png"]
    assert [found.query for found in results] == ["photos/1.png"]
    with pytest.raises(InputError, match="no picture could be read; the first: "):
        search("job", "broken.png")


@pytest.mark.draws
def test_the_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query is on the left; what cannot be opened is an empty frame."""
    results = search("job", [Path(f"photos/{number}.png").read_bytes() for number in (2, 6)])
    sheet = results.sheet
    assert results._repr_png_().startswith(b"\x89PNG")
    Path("photos").rename("elsewhere")
    empty = results.sheet
    grey = (236, 236, 241)
    middle = [(16 + 120 * column + 60, 120) for column in range(8)]
    assert grey not in [sheet.getpixel(place) for place in middle]
    assert [empty.getpixel(place) == grey for place in middle] == [False] + [True] * 7
    monkeypatch.setattr(verb, "MOST_ON_SHEET", 1)
    assert results.sheet.height < sheet.height


@pytest.mark.draws
def test_the_sheet_of_pictures_in_shards() -> None:
    """They have no path of their own: the job knows where they are."""
    with tarfile.open("photos.tar", "w") as archive:
        for number in range(4):
            archive.add(f"photos/{number}.png")
    vitrail.run_job(MODEL, "photos.tar", "shards", task="embed", runtime="torch")
    sheet = search("shards", "photos/2.png").sheet
    assert (236, 236, 241) not in [sheet.getpixel((16 + 120 * column + 60, 120)) for column in range(5)]


def test_the_approximate_method(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, approximate = (search("job", "photos", method=method) for method in ("exact", "approximate"))
    assert rows_of(approximate) == rows_of(exact)
    assert (approximate.method, approximate.searched, approximate.broken) == ("approximate", 7, 1)
    assert search("job", "photos/1.png").method == "approximate"  # since there is an index now
    for index in Path("job").glob("*.faiss"):
        index.unlink()
    assert search("job", "photos/1.png").method == "exact"
    monkeypatch.setattr(verb, "LARGE", 6)
    assert search("job", "photos/1.png").method == "approximate"
    monkeypatch.setitem(sys.modules, "faiss", None)
    large = search("job", "photos/1.png")
    assert large.method == "exact"
    assert large.note.endswith('run: pip install "vitrail[search]"')
    assert f"note: {large.note}" in large.lines()
    with pytest.raises(MissingExtraError, match=r'pip install "vitrail\[search\]"'):
        search("job", "photos/1.png", method="approximate")


def test_the_model_is_the_one_that_made_the_index() -> None:
    with pytest.raises(ConfigError, match="model= must be passed: embedded/features.npz does not tell which model"):
        search("embedded", "photos/1.png")
    write_tiny(Path(MODEL), classes=("one", "two"))
    with pytest.raises(ConfigError, match="tiny.safetensors has changed since the job job began"):
        search("job", "photos/1.png")
    assert len(search("job", "photos/1.png", model=MODEL)) == 1
    write_tiny(Path("wide.safetensors"), width=64)
    with pytest.raises(InputError, match="must have 32 features, as those of job; got 64. Use the model"):
        search("job", "photos/1.png", model="wide.safetensors")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["job", "photos/1.png", "--top-k", "0"], "--top-k must be at least 1; got 0"),
        (["job", "photos/1.png", "--method", "fast"], "--method"),
        (["job", "none.png"], "none.png: there is no such picture"),
        (["job"], "name at least one picture"),
        (["none", "photos/1.png"], "none: must be a folder that `vitrail embed` has written"),
    ],
)
def test_mistakes(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", *arguments]) == 2
    assert why in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()


def test_vectors_that_are_none() -> None:
    empty: Any = np.empty((0, 32), np.float32)
    for vectors in (empty, np.full((1, 32), np.nan, np.float32)):
        with pytest.raises(InputError, match="embeddings must be finite numbers"):
            search("job", vectors)
    with pytest.raises(ConfigError, match="has no 'fast'; known: approximate, auto, exact"):
        search("job", np.ones((1, 32), np.float32), method="fast")  # type: ignore[arg-type]

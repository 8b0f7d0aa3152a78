"""`vitrail.embed` and `vitrail embed` are the same thing through two doors."""

import os
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.conftest import picture
from tests.prediction.conftest import write_tiny

import vitrail
from vitrail.cli.main import main
from vitrail.data import open_data
from vitrail.errors import ConfigError, InputError
from vitrail.prediction import Predictor
from vitrail.verbs.embed import embed


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "tiny.safetensors")
    (tmp_path / "photos").mkdir()
    for number in range(5):
        picture(number).save(tmp_path / "photos" / f"{number}.png")
    (tmp_path / "photos" / "3.png").write_bytes(b"broken")
    return tmp_path


def test_both_doors_give_the_same_of_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "tiny.safetensors", "photos", "--out", "command"]) == 1
    capsys.readouterr()
    embeddings = embed("tiny.safetensors", "photos", out="python")
    assert not "".join(capsys.readouterr())  # quiet
    assert [path.name for path in embeddings.written] == ["features.npz", "errors.csv", "map_pca.png"]
    assert list(embeddings.errors) == ["photos/3.png"]
    command, python = np.load("command/features.npz"), np.load("python/features.npz")
    assert set(command) == set(python) == {"features", "picture"}
    for name in command:
        np.testing.assert_array_equal(command[name], python[name])
    np.testing.assert_array_equal(embeddings.features, python["features"])


def test_both_doors_give_the_same_of_data() -> None:
    assert main(["embed", "tiny.safetensors", "--data", "digits", "--split", "val", "--map", "none", "--out", "x"]) == 0
    model = vitrail.load("tiny.safetensors")
    by_name, opened = embed(model, data="digits", split="val"), embed(model, data=open_data("digits"), split=["val"])
    command = np.load("x/features.npz")
    for embeddings in (by_name, opened):
        np.testing.assert_array_equal(command["features"], embeddings.features)
        assert command["label"].tolist() == list(embeddings.labels)
        assert set(embeddings.splits) == {"val"}
        assert len(embeddings) == len(embeddings.pictures) == 269
        assert embeddings.folder is None
    assert not Path("runs").exists()


def test_any_kind_of_picture() -> None:
    model = vitrail.load("tiny.safetensors")
    paths = ["photos/0.png", Path("photos/1.png")]
    with Image.open("photos/2.png") as image:
        embeddings = embed(model, [*paths, image])
    assert embeddings.pictures == ("photos/0.png", "photos/1.png", "picture 2")
    vectors = [model.embed(f"photos/{number}.png").vector for number in range(3)]
    expected = np.stack([vector for vector in vectors if vector is not None])
    np.testing.assert_allclose(embeddings.features, expected, atol=1e-5)
    assert len(embed(model, (path for path in paths))) == 2
    with pytest.raises(InputError, match="no picture could be read"):
        embed(model, "photos/3.png")


@pytest.mark.draws
@pytest.mark.parametrize("suffix", ["npz", "npy", "parquet"])
def test_it_is_saved_and_drawn(suffix: str) -> None:
    embeddings = embed("tiny.safetensors", ["photos/*.png"])
    path = embeddings.save(f"features.{suffix}")
    if suffix == "parquet":
        features: Any = np.array(pytest.importorskip("pyarrow.parquet").read_table(path)["features"].to_pylist())
    else:
        features = np.load(path)["features"] if suffix == "npz" else np.load(path, mmap_mode="r")
    np.testing.assert_array_equal(features, embeddings.features)
    drawn = embeddings.map("pca")
    assert drawn.points.shape == (4, 2)
    assert drawn._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"\.npz, \.npy or \.parquet"):
        embeddings.save("features.txt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pictures": "photos", "val_rate": 0.1}, "val_rate= goes with data="),
        ({"pictures": "photos", "data": "digits"}, "pass pictures or data=, not both"),
        ({"pictures": "photos", "map": "umap"}, "map= has no 'umap'"),
        ({"pictures": "photos", "format": "npzz"}, "format= has no 'npzz'; did you mean npz?"),
        ({"pictures": "photos", "format": "npy", "out": "mine"}, "mine/features.npy comes with mine/features.csv"),
        ({"data": "digits", "batch_siz": 3}, "embed has no setting 'batch_siz'; did you mean batch_size"),
    ],
)
def test_settings_are_checked_before_anything_is_opened(options: dict[str, Any], message: str) -> None:
    Path("mine").mkdir()
    Path("mine/features.csv").touch()
    with pytest.raises(ConfigError, match=re.escape(message)):
        embed("nowhere.safetensors", **options)


def test_a_name_that_is_not_utf8_is_escaped_in_parquet() -> None:
    name = os.fsdecode(b"photos/caf\xe9.png")
    Path("photos/0.png").rename(name)
    embed("tiny.safetensors", name, out="out", format="parquet", map="none")
    rows = pytest.importorskip("pyarrow.parquet").read_table("out/features.parquet")
    assert rows["picture"].to_pylist() == [r"photos/caf\udce9.png"]
    Path(name).write_bytes(b"broken")
    path = vitrail.predict("tiny.safetensors", [name]).save("rows.parquet")  # pyright: ignore
    (error,) = pytest.importorskip("pyarrow.parquet").read_table(path)["error"].to_pylist()
    assert error.startswith(r"photos/caf\udce9.png: not a picture")


def test_a_limit_for_broken_pictures_is_refused_where_it_would_do_nothing() -> None:
    with pytest.raises(vitrail.VitrailError, match=r"max_broken_rate= has no use here: .* left out and listed"):
        vitrail.embed(None, data="digits", max_broken_rate=0.5)


@pytest.mark.parametrize("form", ["npz", "npy", "parquet"])
def test_a_file_holds_what_memory_would(form: Any) -> None:
    model = vitrail.load("tiny.safetensors")
    inside = embed(model, data="digits", split=["val", "test"])
    written = embed(model, data="digits", split=["val", "test"], out=form, format=form, map="none")
    assert [path.name for path in written.written] == [f"features.{form}", *(["features.csv"] if form == "npy" else [])]
    np.testing.assert_array_equal(written.features, inside.features)
    assert isinstance(written.features, np.memmap) is (form == "npy")
    for name in ("pictures", "labels", "splits"):
        assert getattr(written, name) == getattr(inside, name)
    ours, theirs = written.map(), inside.map()
    np.testing.assert_array_equal(ours.points, theirs.points)
    assert ours.labels == theirs.labels
    assert len(written) == len(inside)


def test_all_that_was_left_out_is_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("vitrail.verbs.embed.MOST_ERRORS", 2)
    broken = [f"photos/=broken {number}.png" for number in range(15)]
    for name in broken:
        Path(name).write_bytes(b"no picture")
    assert main(["embed", "tiny.safetensors", *broken, "photos/0.png", "--format", "npy", "--out", "x"]) == 1
    printed = capsys.readouterr().out
    assert printed.count("left out photos/=broken") == 2
    assert "… and 13 more" in printed
    assert "x/features.npy, x/features.csv, x/errors.csv" in printed
    lines = Path("x/errors.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "picture,error"
    assert [line.split(",")[0] for line in lines[1:]] == broken
    embeddings = embed("tiny.safetensors", [*broken, "photos/0.png"], out="x")
    assert (list(embeddings.errors), embeddings.num_errors) == (broken[:2], 15)
    assert len(embed("tiny.safetensors", [*broken, "photos/0.png"]).errors) == 15  # in memory, all of them
    embed("tiny.safetensors", "photos/0.png", out="x")
    assert not Path("x/errors.csv").exists()  # it would be of the pictures before


def test_without_a_readable_picture_there_is_no_folder() -> None:
    Path("mine").mkdir()
    for out in ("new/folder", "mine", True):
        with pytest.raises(InputError, match="no picture could be read; the first: "):
            embed("tiny.safetensors", ["photos/3.png"], out=out)
    assert not Path("new").exists()
    assert not Path("runs").exists()
    assert not list(Path("mine").iterdir())


@pytest.mark.parametrize("form", ["npz", "npy", "parquet"])
def test_memory_does_not_grow_with_the_number_of_pictures(form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 MB more features; Python and NumPy tell what they allocate."""
    vector = np.zeros(768, np.float32)
    monkeypatch.setattr(Predictor, "features", lambda _, named, __: ((name, vector) for name, _ in named))
    model = vitrail.load("tiny.safetensors")
    peaks: list[int] = []
    for count in (100, 4096, 8192):
        named = ((f"a picture with a long name {number:09d}.png", b"") for number in range(count))
        monkeypatch.setattr("vitrail.verbs.call.PictureArgument.stream", lambda _, named=named: named)
        tracemalloc.start()
        table = embed(model, "photos/0.png", out=f"{form} {count}", format=form, map="none").table
        assert table.features_at(np.array([7])).shape == (1, 768)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 1_000_000

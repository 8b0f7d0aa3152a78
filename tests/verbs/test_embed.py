"""`vitrail.embed` and `vitrail embed` are the same thing through two doors."""

import os
import re
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
    assert [path.name for path in embeddings.written] == ["features.npz", "map_pca.png"]
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
@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_it_is_saved_and_drawn(suffix: str) -> None:
    embeddings = embed("tiny.safetensors", ["photos/*.png"])
    path = embeddings.save(f"features.{suffix}")
    if suffix == "npz":
        features: Any = np.load(path)["features"]
    else:
        features = np.array(pytest.importorskip("pyarrow.parquet").read_table(path)["features"].to_pylist())
    np.testing.assert_array_equal(features, embeddings.features)
    drawn = embeddings.map("pca")
    assert drawn.points.shape == (4, 2)
    assert drawn._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"\.npz or \.parquet"):
        embeddings.save("features.txt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pictures": "photos", "val_rate": 0.1}, "val_rate= goes with data="),
        ({"pictures": "photos", "data": "digits"}, "pass pictures or data=, not both"),
        ({"pictures": "photos", "map": "umap"}, "map= has no 'umap'"),
        ({"pictures": "photos", "format": "npy"}, "format= has no 'npy'; did you mean npz?"),
        ({"data": "digits", "batch_siz": 3}, "embed has no setting 'batch_siz'; did you mean batch_size"),
    ],
)
def test_settings_are_checked_before_anything_is_opened(options: dict[str, Any], message: str) -> None:
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

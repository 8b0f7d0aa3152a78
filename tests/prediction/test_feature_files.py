"""Features in files: the same as NumPy and pyarrow write from memory, and read back a part at a time."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vitrail.errors import ConfigError, InputError
from vitrail.prediction.feature_files import read_features, write_features
from vitrail.prediction.feature_table import BLOCK, TEXTS, FeaturesInMemory, FeatureTable, collect_features

ODD = [
    "",
    "a,b",
    'say "x"',
    "two\nlines",
    "old\rmac",
    "dos\r\n",
    " =1+1",
    "é 猫",
    os.fsdecode(b"caf\xe9"),
    "\x85\u2028",
]
COUNT = 2 * BLOCK + 5


def make_table(count: int = COUNT, columns: tuple[str, ...] = TEXTS, width: int = 3) -> FeaturesInMemory:
    features = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
    names = [*ODD, *(f"photos/{place}.jpg" for place in range(count))][:count]
    texts = {"picture": names, "label": [f"class {len(name) % 7}" for name in names], "split": ["train"] * count}
    return FeaturesInMemory(features, **{column: texts[column] for column in columns})


def write(table: FeatureTable, path: Path) -> Path:
    with write_features(path, table.columns, table.shape[1]) as write_row:
        for texts, features in table.rows():
            write_row(texts, features)
    return path


@pytest.mark.parametrize("columns", [TEXTS, TEXTS[:1]])
def test_npz_is_what_numpy_writes(columns: tuple[str, ...], tmp_path: Path) -> None:
    table = make_table(columns=columns)
    np.savez(tmp_path / "theirs.npz", features=table.features, **{name: list(table.texts(name)) for name in columns})
    assert write(table, tmp_path / "ours.npz").read_bytes() == (tmp_path / "theirs.npz").read_bytes()


def test_npy_is_what_numpy_writes(tmp_path: Path) -> None:
    table = make_table()
    np.save(tmp_path / "theirs.npy", table.features)
    path = write(table, tmp_path / "ours.npy")
    assert path.read_bytes() == (tmp_path / "theirs.npy").read_bytes()
    assert path.with_suffix(".csv").read_text(encoding="utf-8", errors="surrogateescape").startswith("picture,label,")
    assert isinstance(read_features(path).features, np.memmap)
    assert sorted(tmp_path.iterdir()) == [path.with_suffix(".csv"), path, tmp_path / "theirs.npy"]


def test_parquet_is_what_pyarrow_writes(tmp_path: Path) -> None:
    table = make_table()
    texts = {name: [text.encode("utf-8", "backslashreplace").decode() for text in table.texts(name)] for name in TEXTS}
    lists = pa.FixedSizeListArray.from_arrays(pa.array(table.features.ravel()), table.shape[1])
    pq.write_table(pa.table({**texts, "features": lists}), tmp_path / "theirs.parquet")
    path = write(table, tmp_path / "ours.parquet")
    ours, theirs = pq.read_table(path), pq.read_table(tmp_path / "theirs.parquet")
    assert ours.equals(theirs)
    assert ours.schema.equals(theirs.schema)
    groups = pq.ParquetFile(path).metadata
    assert [groups.row_group(index).num_rows for index in range(groups.num_row_groups)] == [BLOCK, BLOCK, 5]


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_any_part_is_read_back(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table()
    monkeypatch.chdir(tmp_path)
    found = read_features(write(table, Path(f"f{suffix}")))
    monkeypatch.chdir("/")
    assert (found.columns, found.shape) == (table.columns, table.shape)
    np.testing.assert_array_equal(found.features, table.features)
    escape: Callable[[str], str] = lambda text: text.encode("utf-8", "backslashreplace").decode()  # noqa: E731
    for column in TEXTS:
        expected = map(escape, table.texts(column)) if suffix == ".parquet" else table.texts(column)
        assert found.texts(column) == tuple(expected)
    places = np.array([0, 1, BLOCK - 1, BLOCK, COUNT - 1])
    for each in (table, found):
        np.testing.assert_array_equal(each.features_at(places), table.features[places])
        assert each.texts_at("picture", places) == tuple(found.texts("picture")[place] for place in places)
    again = tmp_path / "again.npz"
    write(found, again)
    np.testing.assert_array_equal(np.load(again)["features"], table.features)


def test_rows_are_collected() -> None:
    for count in (1, BLOCK, BLOCK + 1):
        table = make_table(count)
        found = collect_features(table.rows(), table.columns, 3)
        np.testing.assert_array_equal(found.features, table.features)
        assert found.features.shape == (count, 3)
        assert found.texts("picture") == table.texts("picture")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet"])
def test_a_file_that_was_replaced_is_not_read(suffix: str, tmp_path: Path) -> None:
    path = write(make_table(4), tmp_path / f"f{suffix}")
    first = read_features(path)
    write(make_table(5), path)
    for read in (lambda: first.features, lambda: first.texts("picture"), lambda: first.features_at(np.array([1]))):
        with pytest.raises(InputError, match="was written again after these features"):
            read()


def test_a_table_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos.csv").write_text("mine")
    with pytest.raises(ConfigError, match=r"photos\.npy comes with .*photos\.csv, which exists without it"):
        write(make_table(4), tmp_path / "photos.npy")
    assert (tmp_path / "photos.csv").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("f.txt", lambda path: None, r"\.npy, \.npz, \.parquet files"),
        ("gone.npy", lambda path: None, "No such file"),
        ("f.npy", lambda path: path.with_suffix(".csv").unlink(), "No such file"),
        ("f.npy", lambda path: path.write_bytes(path.read_bytes()[:-1]), "it is cut off"),
        ("f.npy", lambda path: path.write_bytes(b"no array"), "no features can be read"),
        ("f.npy", lambda path: np.save(path, np.ones((4, 3))), r"must be float32 of shape \(N, D\), not float64"),
        ("f.npy", lambda path: np.save(path, np.ones((4, 3), np.float32, order="F")), "one after the other"),
        ("f.npy", lambda path: path.with_suffix(".csv").write_text("file\na\n"), "must have the texts picture"),
        ("f.npy", lambda path: path.with_suffix(".csv").write_text("picture\na\n"), "must describe the 4 rows of"),
        ("f.npy", lambda path: path.with_suffix(".csv").write_text("picture\na,b\n"), "row 1 must have 1 cell; has 2"),
        ("f.npz", lambda path: path.write_bytes(b"no archive"), "no features can be read"),
        ("f.npz", lambda path: np.savez_compressed(path, features=np.ones((4, 3), np.float32)), "are compressed"),
        ("f.npz", lambda path: np.savez(path, other=np.ones(3)), "no features can be read"),
        ("f.npz", lambda path: np.savez(path, features=np.ones((1, 2), np.float32)), "texts picture.*got none"),
        ("f.npz", lambda path: np.savez(path, features=np.ones((1, 2), np.float32), picture=[1]), "a text for each"),
        ("f.parquet", lambda path: path.write_bytes(b"no table"), "no features can be read"),
        ("f.parquet", lambda path: pq.write_table(pa.table({"picture": ["a"]}), path), "no features can be read"),
        ("f.parquet", lambda path: pq.write_table(pa.table({"features": ["a"]}), path), "lists of D float32 each"),
    ],
)
def test_what_holds_no_features_is_refused(
    name: str, spoil: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    for suffix in (".npy", ".npz", ".parquet"):
        write(make_table(4), tmp_path / f"f{suffix}")
    spoil(tmp_path / name)
    with pytest.raises(InputError, match=message):
        read_features(tmp_path / name).texts("picture")

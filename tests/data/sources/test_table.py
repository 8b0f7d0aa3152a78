"""CSV, TSV and Parquet tables."""

import io
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.conftest import picture

from vitrail.data import DataConfig, open_data, write_split_file
from vitrail.data.check.findings import check_data
from vitrail.data.config import Columns
from vitrail.data.pixels import open_picture
from vitrail.data.shard_writer import encode
from vitrail.errors import DataError, InputError


@pytest.fixture
def table(make_folder, tmp_path: Path):
    make_folder("x", "y", count=10)

    def write(text: str, name: str = "t.csv") -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def rows(header: str = "path,label,split", split: bool = True) -> str:
    lines = [header]
    for name in ("x", "y"):
        for index in range(10):
            where = ",train" if index < 6 else ",valid" if index < 8 else ",test"
            lines.append(f"pictures/{name}/{index:03d}.jpg,{name}{where if split else ''}")
    return "\n".join(lines) + "\n"


def test_csv_with_splits(table) -> None:
    data = open_data(table(rows()))
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 12, "val": 4, "test": 4}
    assert data.splits["test"].key(0) == "pictures/x/008.jpg"
    assert Path(str(data.splits["test"].picture(0))).is_file()
    assert data.classes == ("x", "y")


def test_csv_without_splits_gets_one(table) -> None:
    data = open_data(table(rows("file_name,category", split=False)), DataConfig(val_rate=0.2, test_rate=0.2))
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 12, "val": 4, "test": 4}
    assert data.made_split


def test_tsv_byte_order_mark_and_own_names(table) -> None:
    text = "\ufeff" + rows("photo,what,part").replace(",", "\t")
    config = DataConfig(columns=Columns(picture="photo", label="what", split="part"))
    assert len(open_data(table(text, "t.tsv"), config).splits["train"]) == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the picture column must be one of path.*the table has none"),
        ("path,label\n", "no rows"),
        ("path,kind\na.jpg,x\n", "label column must be one of label.*the table has path, kind"),
        ("label,size\nx,1\n", "picture column must be one of path"),
        ("path,label\na.jpg,\nb.jpg,x\n", "row 1 has no label"),
        ("path,label,split\na.jpg,x,train\nb.jpg,y,train\nc.jpg,z,val\n", "val has classes that train lacks: z"),
        ("path,label,split\na.jpg,x,train\nb.jpg,y,later\n", "row 2 has the split 'later'"),
        ("path,label,split\na.jpg,x,val\nb.jpg,y,val\n", "val has classes that train lacks: x, y"),
        ('path,label\n"a.jpg,x\n', "line .*not a table"),
        ("path,label\na.jpg,x\nb.jpg,x\n", "at least two classes"),
    ],
)
def test_tables_that_cannot_be(table, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data(table(text))


def test_a_column_asked_for_must_exist(table) -> None:
    with pytest.raises(DataError, match="split column must be 'fold'"):
        open_data(table(rows()), DataConfig(columns=Columns(split="fold")))


def jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    picture(seed).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize("nested", [False, True])
def test_parquet_of_bytes(tmp_path: Path, nested: bool) -> None:
    pictures = [jpeg(seed) for seed in range(20)]
    column = [{"bytes": data, "path": None} for data in pictures] if nested else pictures
    labels = [seed % 2 for seed in range(20)]
    table = pa.table({"image": column, "label": labels})
    if nested:
        info = {"info": {"features": {"label": {"names": ["zebra", "ant"], "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({b"huggingface": json.dumps(info).encode()})
    pq.write_table(table, tmp_path / "t.parquet")
    data = open_data(tmp_path / "t.parquet")
    assert data.classes == (("ant", "zebra") if nested else ("0", "1"))
    source = data.splits["train"]
    for index in range(len(source)):
        row = int(source.key(index).split(":")[1])
        assert source.picture(index) == pictures[row]
        name = ["zebra", "ant"][row % 2] if nested else str(row % 2)
        assert data.classes[source.labels[index]] == name


def test_parquet_of_paths_and_unknown_labels(table, tmp_path: Path) -> None:
    table("")
    paths = [f"pictures/{name}/{index:03d}.jpg" for name in "xy" for index in range(10)]
    pq.write_table(pa.table({"path": paths, "label": ["x"] * 10 + ["y"] * 10}), tmp_path / "p.parquet")
    assert Path(str(open_data(tmp_path / "p.parquet").splits["train"].picture(0))).is_file()
    info = {"info": {"features": {"label": {"names": ["a", "b"]}}}}
    wrong = pa.table({"path": paths, "label": [5] * 20}).replace_schema_metadata(
        {b"huggingface": json.dumps(info).encode()}
    )
    pq.write_table(wrong, tmp_path / "w.parquet")
    with pytest.raises(DataError, match="row 1 has the unknown label 5; there are 2"):
        open_data(tmp_path / "w.parquet")


def test_damaged_parquet(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match="not a readable Parquet table"):
        open_data(tmp_path / "t.parquet")
    pq.write_table(pa.table({"image": [1.5, 2.5], "label": ["a", "b"]}), tmp_path / "n.parquet")
    with pytest.raises(DataError, match="must hold paths or encoded bytes; its type is double"):
        open_data(tmp_path / "n.parquet")


def test_extensions_in_capitals(table, tmp_path: Path) -> None:
    assert len(open_data(table(rows(), "T.CSV")).splits["train"]) == 12
    pq.write_table(
        pa.table({"path": ["pictures/x/000.jpg", "pictures/y/000.jpg"], "label": ["x", "y"]}), tmp_path / "T.PARQUET"
    )
    assert len(open_data(tmp_path / "T.PARQUET").splits["train"]) == 2


def test_a_table_with_semicolons_says_so(table) -> None:
    with pytest.raises(DataError, match="separated by semicolons"):
        open_data(table(rows().replace(",", ";")))


def test_a_path_listed_twice_stays_in_one_split(table, tmp_path: Path) -> None:
    """Or the copy in the test would be one that was learned, and the split file would hold the same key twice."""
    text = rows("path,label", split=False)
    data = open_data(table(text + text.split("\n", 1)[1]), DataConfig(val_rate=0.25, test_rate=0.25))
    where: dict[str, set[str]] = {}
    for name, source in data.splits.items():
        for index in range(len(source)):
            where.setdefault(source.key(index), set()).add(name)
    assert {len(names) for names in where.values()} == {1}
    write_split_file(data, tmp_path / "split.csv")
    again = open_data(tmp_path / "t.csv", DataConfig(split_file=tmp_path / "split.csv"))
    assert {name: len(source) for name, source in again.splits.items()} == {
        name: len(source) for name, source in data.splits.items()
    }


def test_parquet_structs_with_a_path_and_no_bytes(table, tmp_path: Path) -> None:
    table(rows())
    values = [{"bytes": None, "path": f"pictures/{name}/000.jpg"} for name in ("x", "y")]
    pq.write_table(
        pa.table(
            {"image": pa.array(values, pa.struct({"bytes": pa.binary(), "path": pa.string()})), "label": ["x", "y"]}
        ),
        tmp_path / "t.parquet",
    )
    source = open_data(tmp_path / "t.parquet").split("train")
    assert source.picture(1) == tmp_path / "pictures/y/000.jpg"


def write_parquet(target: Path, metadata: bytes | None = None, **columns) -> Path:
    table = pa.table({"label": ["x", "y"] * 10, "image": [b"1"] * 20, **columns})
    pq.write_table(table.replace_schema_metadata({b"huggingface": metadata} if metadata else None), target)
    return target


@pytest.mark.parametrize(
    "metadata",
    [
        b"{",
        b"\xff",
        b"[]",
        b"3",
        b'{"info": []}',
        b'{"info": {"features": 3}}',
        b'{"info": {"features": {"label": {"names": 3}}}}',
        b'{"info": {"features": {"label": {"names": [3, null]}}}}',
        b'{"info": {"features": {"label": [1]}}}',
        b"[" * 100_000,
    ],
    ids=range(10),
)
def test_parquet_metadata_that_says_nothing(tmp_path: Path, metadata: bytes) -> None:
    with pytest.raises(DataError, match="the header `huggingface` does not say which classes label has"):
        open_data(write_parquet(tmp_path / "t.parquet", metadata))


def test_parquet_that_repeats_one_value_is_not_unpacked(tmp_path: Path) -> None:
    blank = pa.DictionaryArray.from_arrays(np.zeros(10_000, np.int32), pa.array([bytes(5_000_000)]))
    names = pa.array(["x", "y"] * 5_000)
    pq.write_table(pa.table({"image": blank, "label": names}), tmp_path / "t.parquet", compression="zstd")
    assert (tmp_path / "t.parquet").stat().st_size < 10_000
    data = open_data(tmp_path / "t.parquet")  # 50 GB, of which each picture is the same
    assert len(data.split("train").picture(7)) == 5_000_000
    label = pa.DictionaryArray.from_arrays(np.zeros(10_000, np.int32), pa.array(["x" * 5_000_000]))
    pq.write_table(pa.table({"image": blank, "label": label}), tmp_path / "l.parquet", compression="zstd")
    with pytest.raises(DataError, match="label unpacks to 50,000,000,000 characters"):
        open_data(tmp_path / "l.parquet")
    paths = pa.array([b"x" * 800_000] * 100).cast(pa.string())
    pq.write_table(
        pa.table({"path": paths, "label": ["x", "y"] * 50}),
        tmp_path / "d.parquet",
        compression="zstd",
        use_dictionary=False,
        column_encoding={"path": "DELTA_BYTE_ARRAY", "label": "PLAIN"},
    )
    with pytest.raises(DataError, match="unpacks to"):
        open_data(tmp_path / "d.parquet")
    many = pa.table({"path": pa.nulls(3_000_000, pa.string()), "label": pa.nulls(3_000_000, pa.string())})
    pq.write_table(many, tmp_path / "n.parquet")
    with pytest.raises(DataError, match="3,000,000 rows cannot be in"):
        open_data(tmp_path / "n.parquet")


def test_parquet_columns_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"label must hold texts, numbers or lists .*; its type is list<.*double"):
        open_data(write_parquet(tmp_path / "a.parquet", label=[[1.5], [2.5]] * 10))
    with pytest.raises(DataError, match=r"image must be a struct of bytes and path"):
        open_data(write_parquet(tmp_path / "b.parquet", image=[{"bytes": [1]}] * 20))
    twice = pa.Table.from_arrays([pa.array(["x", "y"])] * 3, names=["label", "label", "path"])
    pq.write_table(twice, tmp_path / "c.parquet")
    with pytest.raises(DataError, match="has 2 columns called 'label'"):
        open_data(tmp_path / "c.parquet")


@pytest.mark.parametrize("where", ["/dev/zero", "pipe", "a\0b", "."])
def test_a_row_may_name_what_is_no_file(tmp_path: Path, where: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    image = pa.array([{"bytes": None, "path": where}] * 20, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    for name, columns in (("s", {"image": image}), ("p", {"path": [where] * 20})):
        source = open_data(write_parquet(tmp_path / f"{name}.parquet", **columns)).split("train")
        if name == "s":
            with pytest.raises(InputError):
                open_picture(source.picture(0))
            with pytest.raises(InputError):
                encode(source.picture(0))
        report = check_data(open_data(tmp_path / f"{name}.parquet"), 1)
        assert all(fact.trouble for fact in report.facts)


def test_a_wide_table_with_short_rows_takes_no_more_than_it_has(table) -> None:
    header = ",".join(["path", "label", *(f"c{number}" for number in range(20_000))])
    tracemalloc.start()
    data = open_data(table(header + "\n" + "a.jpg,x\nb.jpg,y\n" * 1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert data.classes == ("x", "y")
    assert peak < 20_000_000


def test_two_columns_of_one_name(table) -> None:
    with pytest.raises(DataError, match="has 2 columns called label"):
        open_data(table("path,label,label\na.jpg,x,y\nb.jpg,y,x\n"))


def test_damaged_facts_about_a_column_do_not_end_the_process() -> None:
    """pyarrow aborts when it is asked for them; this file once took the whole process with it."""
    path = Path(__file__).parent.parent / "fixtures" / "damaged_histogram.parquet"
    read = "import sys; from vitrail.data import open_data; open_data(sys.argv[1])"
    result = subprocess.run([sys.executable, "-c", read, str(path)], capture_output=True, text=True)
    assert result.returncode == 1, result.stderr
    assert "DataError" in result.stderr.splitlines()[-1]

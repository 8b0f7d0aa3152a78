"""Samples that a user excludes are in no split, and nothing else changes."""

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from vitrail.data import DataConfig, Dataset, open_data, write_split_file
from vitrail.errors import DataError
from vitrail.files import harmless_cell

MakeFolder = Callable[..., Path]


def keys_of(dataset: Dataset) -> dict[str, set[str]]:
    return {name: set(source.keys()) for name, source in dataset.splits.items()}


def write_list(path: Path, *keys: str, head: str = "key") -> Path:
    path.write_text("\n".join([head, *keys]), encoding="utf-8")
    return path


def test_the_others_stay_in_their_splits(make_folder: MakeFolder, tmp_path: Path) -> None:
    root = make_folder("cat", "dog", count=20)
    before = keys_of(open_data(root))
    gone = sorted(before["train"])[:3] + sorted(before["val"])[:2]
    config = DataConfig(exclude=write_list(tmp_path / "labels.csv", *gone))  # pyright: ignore[reportArgumentType]
    assert config.exclude == (tmp_path / "labels.csv",)
    data = open_data(root, config)
    assert keys_of(data) == {name: keys - set(gone) for name, keys in before.items()}
    assert {name: set(source.keys()) for name, source in data.excluded.items()} == {
        "train": set(gone[:3]),
        "val": set(gone[3:]),
    }


def test_a_validation_split_that_is_made_later_keeps_its_pictures(make_folder: MakeFolder, tmp_path: Path) -> None:
    root = make_folder("train/cat", "train/dog", count=20)
    whole = keys_of(open_data(root).with_validation(0.2))
    for split in ("train", "val"):
        gone = sorted(whole[split])[:3]
        data = open_data(root, DataConfig(exclude=(write_list(tmp_path / "labels.csv", *gone),)))
        assert keys_of(data.with_validation(0.2)) == {name: keys - set(gone) for name, keys in whole.items()}


def test_split_files_name_the_excluded_as_unused(make_folder: MakeFolder, tmp_path: Path) -> None:
    root = make_folder("cat", "dog", count=20)
    exclude = (write_list(tmp_path / "labels.csv", "cat/003.jpg"), write_list(tmp_path / "more.csv", "dog/001.jpg"))
    data = open_data(root, DataConfig(exclude=exclude))
    write_split_file(data, tmp_path / "split.csv")
    with (tmp_path / "split.csv").open() as file:
        unused = {row["key"]: row["class"] for row in csv.DictReader(file) if row["split"] == "unused"}
    assert unused == {"cat/003.jpg": "cat", "dog/001.jpg": "dog"}
    for again in (
        open_data(root, DataConfig(split_file=tmp_path / "split.csv")),
        open_data(root, DataConfig(split_file=tmp_path / "split.csv", exclude=exclude)),
    ):
        assert keys_of(again) == keys_of(data)
        write_split_file(again, tmp_path / "again.csv")
        lines = [sorted((tmp_path / name).read_text().splitlines()) for name in ("split.csv", "again.csv")]
        assert lines[0] == lines[1]


def test_where_a_key_is_in_two_splits_the_row_says_which(make_folder: MakeFolder, tmp_path: Path) -> None:
    make_folder("x", "y", count=3)
    rows = [f"pictures/{name}/{index:03d}.jpg,{name},train" for name in "xy" for index in range(3)]
    rows += ["pictures/x/000.jpg,x,test", "pictures/y/002.jpg,y,test"]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split", *rows]))

    def left(*rows: str, head: str = "key,split") -> dict[str, int]:
        exclude = (write_list(tmp_path / "list.csv", *rows, head=head),)
        data = open_data(tmp_path / "t.csv", DataConfig(exclude=exclude))
        return {name: len(source) for name, source in data.splits.items()}

    key = "pictures/x/000.jpg"
    assert left(f"{key},train") == {"train": 5, "test": 2}
    assert left(f"{key},testing") == {"train": 6, "test": 1}
    assert left(f"{key},train", f"{key},test") == left(f"{key},") == left(key, head="key") == {"train": 5, "test": 1}
    assert left("pictures/x/001.jpg,val") == {"train": 5, "test": 2}  # only one can be meant
    assert left(f"{key},test", "pictures/y/002.jpg,test") == {"train": 6}  # an empty split is none


def test_keys_as_files_for_people_spell_them(tmp_path: Path) -> None:
    table, names = tmp_path / "t.csv", ["=a.png", "-b.png", "c\x1b.png", "d.png"]
    table.write_text("\n".join(["path,label,split", *(f"{name},{label},train" for name in names for label in "xy")]))
    exclude = write_list(tmp_path / "list.csv", *(str(harmless_cell(name)) for name in names[:3]))
    assert open_data(table, DataConfig(exclude=(exclude,))).split("train").keys() == ["d.png", "d.png"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key\ncat/000.jpg\ncat/999.jpg\n", "such as 'cat/999.jpg'; it must list samples"),
        ("picture\ncat/000.jpg\n", "list.csv: needs the column key; got ['picture']"),
        ("key,split\ncat/000.jpg,vall\n", "cat/000.jpg is in the split 'vall'; must be one of train, val, test"),
        ("key\n" + "".join(f"dog/{index:03d}.jpg\n" for index in range(8)), "leaves no training pictures of dog"),
        ("key\n" + "x" * 200_000, "not a table"),
        (None, "cannot read the list of excluded samples"),
    ],
)
def test_lists_that_cannot_be(make_folder: MakeFolder, tmp_path: Path, text: str | None, message: str) -> None:
    root = make_folder("cat", "dog", count=8)
    if text is not None:
        (tmp_path / "list.csv").write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        open_data(root, DataConfig(exclude=(tmp_path / "list.csv",)))

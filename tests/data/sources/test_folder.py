"""Class folders, as people really have them."""

import os
import subprocess
import sys
import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tests.data.conftest import picture

from vitrail.data import DataConfig, open_data, write_split_file
from vitrail.errors import DataError


def test_splits_under_all_their_names(make_folder) -> None:
    for val, test in (("val", "test"), ("valid", "testing"), ("validation", "Test"), ("dev", "TEST")):
        folders = [f"{split}/{name}" for split in ("Train", val, test) for name in ("cat", "dog")]
        data = open_data(make_folder(*folders, root=val))
        assert {name: len(source) for name, source in data.splits.items()} == {"train": 6, "val": 6, "test": 6}
        assert data.classes == ("cat", "dog")
        assert not data.made_split


def test_labels_follow_names_not_positions(make_folder) -> None:
    data = open_data(make_folder("train/b", "train/a", "val/b", "val/a", count=2))
    for source in data.splits.values():
        for index in range(len(source)):
            assert source.key(index).split("/")[1] == data.classes[source.labels[index]]


def test_flat_folders_are_split_by_class(make_folder) -> None:
    data = open_data(make_folder("cat", "dog", "owl", count=20), DataConfig(val_rate=0.2, test_rate=0.1))
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 42, "val": 12, "test": 6}
    for source, each in ((data.splits["val"], 4), (data.splits["test"], 2)):
        assert [int((source.labels == label).sum()) for label in range(3)] == [each] * 3
    assert data.made_split


def test_a_written_split_is_used_again(make_folder, tmp_path: Path) -> None:
    root = make_folder("cat", "dog", count=10)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    first = open_data(root, DataConfig(split_seed=5))
    write_split_file(first, tmp_path / "run" / "split.csv")
    again = open_data(root, DataConfig(split_file=tmp_path / "run" / "split.csv"))
    assert not again.made_split
    for name, source in first.splits.items():
        assert [source.key(i) for i in range(len(source))] == [again.splits[name].key(i) for i in range(len(source))]
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before  # nothing written beside the pictures


def test_a_split_of_other_pictures_is_refused(make_folder, tmp_path: Path) -> None:
    root = make_folder("cat", "dog", count=5)
    write_split_file(open_data(root), tmp_path / "split.csv")
    picture(99).save(root / "cat" / "new.jpg")
    (root / "dog" / "000.jpg").unlink()
    with pytest.raises(DataError, match=r"dog/000.jpg.*cat/new.jpg"):
        open_data(root, DataConfig(split_file=tmp_path / "split.csv"))
    with pytest.raises(DataError, match="cannot read the split file"):
        open_data(root, DataConfig(split_file=tmp_path / "missing.csv"))


def test_a_split_file_for_data_that_have_splits(make_folder, tmp_path: Path) -> None:
    root = make_folder("train/a", "train/b", "val/a", "val/b")
    with pytest.raises(DataError, match="has its own splits"):
        open_data(root, DataConfig(split_file=tmp_path / "split.csv"))


def test_trains_and_buses(make_folder) -> None:
    assert open_data(make_folder("train", "bus", count=10)).classes == ("bus", "train")


def test_spaces_and_other_scripts(make_folder) -> None:
    names = ("a cat", "Größe", "猫 犬", 'it\'s; "odd", [really]')
    data = open_data(make_folder(*(f"train/{name}" for name in names), *(f"val/{name}" for name in names)))
    assert set(data.classes) == set(names)
    assert Path(str(data.splits["train"].picture(0))).is_file()


def test_unicode_forms_are_one_name(make_folder) -> None:
    composed, apart = unicodedata.normalize("NFC", "café"), unicodedata.normalize("NFD", "café")
    data = open_data(make_folder(f"train/{composed}", "train/bar", f"val/{apart}", "val/bar"))
    assert data.classes == ("bar", composed)
    assert len(data.splits["val"]) == 6


def test_nested_hidden_and_other_files(make_folder) -> None:
    root = make_folder("train/cat", "train/dog")
    picture(7).save(root / "train/cat/000.PNG")
    (root / "train/cat/deep/er").mkdir(parents=True)
    picture(8).save(root / "train/cat/deep/er/x.webp")
    (root / "train/cat/notes.txt").write_text("x")
    (root / "train/cat/._000.jpg").write_bytes(b"x")
    (root / "train/.ipynb_checkpoints").mkdir()
    (root / "__MACOSX").mkdir()
    data = open_data(root)
    assert len(data.splits["train"]) == 8
    assert data.classes == ("cat", "dog")


def test_symlink_loops_end(make_folder) -> None:
    root = make_folder("train/cat", "train/dog")
    (root / "train/cat/loop").symlink_to(root / "train/cat", target_is_directory=True)
    (root / "train/dog/up").symlink_to(root, target_is_directory=True)
    (root / "train/dog/self.jpg").symlink_to(root / "train/dog/self.jpg")
    data = open_data(root)
    keys = [data.splits["train"].key(index) for index in range(len(data.splits["train"]))]
    assert "train/dog/self.jpg" in keys  # a broken picture, for the policy to handle
    assert sum(key.startswith("train/cat/") and "loop" not in key for key in keys) == 3
    assert not any("loop" in key for key in keys)


def test_linked_folders_are_followed(make_folder, tmp_path: Path) -> None:
    root = make_folder("train/cat", "train/dog")
    elsewhere = make_folder("owl", root="elsewhere") / "owl"
    (root / "train/owl").symlink_to(elsewhere, target_is_directory=True)
    assert open_data(root).classes == ("cat", "dog", "owl")


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "an empty folder"),
        (["cat"], "at least two classes; got cat"),
        (["train/cat", "val/cat"], "at least two classes"),
        (["train/cat", "train/dog", "val/cat", "val/dog", "val/owl"], "val has classes that train lacks: owl"),
        (["train/cat", "train/dog", "val/cat"], "val lacks the classes dog"),
        (["train/cat", "train/dog", "val/cat", "val/dog", "valid/cat"], "both mean val"),
        (["train/cat", "train/dog", "val/kat", "val/dog"], "lacks: kat; train has: cat, dog"),
        (["val/cat", "val/dog", "test/cat", "test/dog"], "test/ and val/ but no train/"),
        (["train/cat", "train/dog", "eval/cat", "eval/dog"], "eval/ is not the name of a split; rename it to one of"),
    ],
)
def test_folders_that_cannot_be(make_folder, tmp_path: Path, folders: list[str], message: str) -> None:
    (tmp_path / "pictures").mkdir()
    root = make_folder(*folders)
    with pytest.raises(DataError, match=message):
        open_data(root)


def test_pictures_without_a_class(tmp_path: Path) -> None:
    picture(0).save(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"one folder per class.*1 picture without a class"):
        open_data(tmp_path)


def test_an_empty_class(make_folder) -> None:
    root = make_folder("train/cat", "train/dog", "val/cat", "val/dog")
    (root / "train/owl").mkdir()
    (root / "val/owl").mkdir()
    with pytest.raises(DataError, match="no training pictures of owl"):
        open_data(root)
    picture(0).save(root / "train/owl/1.jpg")
    assert len(open_data(root).splits["val"]) == 6  # an empty folder in val/ says that this is meant


def test_folders_without_pictures(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text("x")
    with pytest.raises(DataError, match="no pictures in its 2 folders"):
        open_data(tmp_path)


def test_a_folder_that_may_not_be_listed(make_folder, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder("train/cat", "train/dog")

    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(DataError, match=r"cannot be read .*Permission denied"):
        open_data(root)


def test_an_archive_beside_the_class_folders(make_folder) -> None:
    """The download that they were unpacked from often stays there."""
    root = make_folder("cat", "dog", count=10)
    with tarfile.open(root / "pictures.tar", "w") as archive:
        archive.add(root / "cat/000.jpg", "cat/000.jpg")
    assert open_data(root).classes == ("cat", "dog")


def test_links_that_cross_are_walked_once(make_folder, tmp_path: Path) -> None:
    root = make_folder("cat", "dog")
    shared = tmp_path / "shared"
    for level in range(40):  # 2**40 paths
        (shared / str(level)).mkdir(parents=True)
        picture(level).save(shared / str(level) / "x.jpg")
        if level:
            for name in ("a", "b"):
                (shared / str(level) / name).symlink_to(shared / str(level - 1))
    (root / "cat" / "more").symlink_to(shared / "39")
    (root / "dog" / "again").symlink_to(root / "dog" / "zoo")
    (root / "dog" / "zoo").mkdir()
    picture(99).save(root / "dog" / "zoo" / "z.jpg")
    (root / "dog" / "zoo" / "loop").symlink_to(root / "dog")
    data = open_data(root)
    keys = {source.key(index) for source in data.splits.values() for index in range(len(source))}
    assert len(keys) == 3 + 40 + 3 + 1
    assert "dog/zoo/z.jpg" in keys


def test_folders_1100_deep(make_folder) -> None:
    root = make_folder("cat", "dog")
    here = os.open(root / "cat", os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("deep.jpg", os.O_CREAT, dir_fd=here))
    os.close(here)
    data = open_data(root)
    subprocess.run(["rm", "-r", root / "cat" / "d"], check=True)
    assert sum(len(source) for source in data.splits.values()) == 3 + 3 + 1


def test_the_data_set_inside_a_project_is_suggested(make_folder) -> None:
    splits = [f"dataset/{split}/{name}" for split in ("train", "val") for name in ("rose", "tulip")]
    root = make_folder(*splits, "demo")
    message = rf"dataset/ with train/ and val/ or test/ inside is a data set and not a class; pass {root / 'dataset'}\."
    with pytest.raises(DataError, match=message):
        open_data(root)
    assert open_data(root / "dataset").classes == ("rose", "tulip")
    root = make_folder("cat/train", "cat/test", "dog/train", "dog/test", root="inside out")
    with pytest.raises(DataError, match="are data sets and not classes.*put the splits first: train/cat"):
        open_data(root)


@pytest.mark.parametrize("where", ["a\0b", "a\0b.tar", "hf:a\0b", "pipe.csv", "pipe"])
def test_what_no_data_set_can_be_called(tmp_path: Path, where: str) -> None:
    for name in ("pipe", "pipe.csv"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="NUL|it is a pipe"):
        open_data(tmp_path / where if where.startswith("pipe") else where)


def test_a_file_costs_no_path_until_it_is_read(tmp_path: Path) -> None:
    def calls(count: int) -> int:
        """Into pathlib, while a folder with so many files is opened."""
        root = tmp_path / str(count)
        for name in ("cat", "dog"):
            (root / name / "more").mkdir(parents=True)
            for index in range(count // 4):
                (root / name / f"{index}.jpg").touch()
                (root / name / "more" / f"{index}.jpg").touch()
        made = 0

        def count_calls(frame: Any, event: str, _: object) -> None:
            nonlocal made
            made += event == "call" and "pathlib" in frame.f_code.co_filename

        sys.setprofile(count_calls)
        try:
            dataset = open_data(root)
        finally:
            sys.setprofile(None)
        assert sum(map(len, dataset.splits.values())) == count
        return made

    assert 0 < calls(400) == calls(40)

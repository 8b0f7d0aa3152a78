"""Hugging Face data sets, from their own library."""

from pathlib import Path

import datasets
import pytest
from tests.data.conftest import picture

from vitrail.data import open_data
from vitrail.data.config import Columns, DataConfig
from vitrail.errors import DataError, MissingExtraError


def make(labels: list[int], names: list[str]) -> datasets.Dataset:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
    rows = {"image": [picture(index) for index in range(len(labels))], "label": labels}
    return datasets.Dataset.from_dict(rows, features=features)


def test_splits_and_names_are_kept(tmp_path: Path) -> None:
    parts = {"train": make([0, 1, 0, 1], ["wolf", "cat"]), "validation": make([1, 0], ["cat", "wolf"])}
    datasets.DatasetDict(**parts).save_to_disk(tmp_path / "saved")
    data = open_data(f"hf:{tmp_path / 'saved'}")
    assert data.classes == ("cat", "wolf")
    assert data.splits["train"].labels.tolist() == [1, 0, 1, 0]
    assert data.splits["val"].labels.tolist() == [1, 0]  # by name, though the numbers were the other way round
    first = data.splits["train"].picture(0)
    assert isinstance(first, bytes)
    assert first.startswith(b"\x89PNG")


def test_one_split_is_divided_and_keeps_its_keys(tmp_path: Path) -> None:
    make([0, 1] * 20, ["a", "b"]).save_to_disk(tmp_path / "saved")
    data = open_data(f"hf:{tmp_path / 'saved'}")
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 28, "val": 6, "test": 6}
    keys = [source.key(index) for source in data.splits.values() for index in range(len(source))]
    assert len(set(keys)) == 40


def test_columns_must_be_there(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["x"]}).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match=r"needs an Image and a ClassLabel column \(or .*\); got text"):
        open_data(f"hf:{tmp_path / 'saved'}")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="cannot be loaded"):
        open_data(f"hf:{tmp_path / 'nothing'}")


def make_other(feature: object, label: list[object], **more: list[float]) -> datasets.Dataset:
    values = {name: datasets.Value("float32") for name in more}
    features = datasets.Features({"image": datasets.Image(), "label": feature, **values})
    rows = {"image": [picture(index) for index in range(len(label))], "label": label, **more}
    return datasets.Dataset.from_dict(rows, features=features)


def test_lists_of_class_labels_are_several_labels(tmp_path: Path) -> None:
    names = [["wolf", "cat"], ["cat", "wolf"]]
    features = [datasets.Sequence(datasets.ClassLabel(names=each)) for each in names]
    parts = {
        "train": make_other(features[0], [[0, 1], [1], []]),
        "validation": make_other(features[1], [[0], [1]]),
    }
    datasets.DatasetDict(**parts).save_to_disk(tmp_path / "saved")
    data = open_data(f"hf:{tmp_path / 'saved'}")
    assert (data.task, data.classes) == ("several", ("cat", "wolf"))
    assert data.splits["train"].labels.tolist() == [[1, 1], [1, 0], [0, 0]]
    assert data.splits["val"].labels.tolist() == [[1, 0], [0, 1]]  # by name


def test_columns_of_floats_are_numbers(tmp_path: Path) -> None:
    rows = make_other(datasets.Value("float32"), [0.5, 1.5, 2.5], depth=[1.0, 2.0, 3.0])
    rows.save_to_disk(tmp_path / "saved")
    where = f"hf:{tmp_path / 'saved'}"
    whole = DataConfig(val_rate=0, test_rate=0, columns=Columns(label="depth,label"))
    with pytest.raises(DataError, match=r"has several columns of numbers.*'label': 'label,depth'"):
        open_data(where)
    data = open_data(where, whole)
    assert (data.task, data.classes) == ("number", ("depth", "label"))
    assert data.splits["train"].labels.tolist() == [[1.0, 0.5], [2.0, 1.5], [3.0, 2.5]]


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r'pip install "vitrail\[datasets\]"'):
        open_data("hf:anything")


def test_pictures_without_a_label(tmp_path: Path) -> None:
    """The Hub's test splits often hide theirs as -1, which must not count as the last class."""
    parts = {"train": make([0, 1] * 10, ["a", "b"]), "test": make([-1, -1], ["a", "b"])}
    datasets.DatasetDict(**parts).save_to_disk(tmp_path / "hidden")
    assert list(open_data(f"hf:{tmp_path / 'hidden'}").splits) == ["train", "val", "test"]  # made of the training rows
    parts["validation"] = make([0, -1], ["a", "b"])
    datasets.DatasetDict(**parts).save_to_disk(tmp_path / "partly")
    with pytest.raises(DataError, match="partly/validation: row 1 has no label"):
        open_data(f"hf:{tmp_path / 'partly'}")

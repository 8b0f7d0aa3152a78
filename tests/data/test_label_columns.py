"""From the columns of a table to labels of each kind."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.data.conftest import picture

from vitrail.data import Dataset, open_data
from vitrail.data.config import Columns, DataConfig
from vitrail.errors import ConfigError, DataError
from vitrail.registry import TASKS, TaskKind
from vitrail.schema import to_dict

MakeTable = Callable[..., Path]


@pytest.fixture
def make_table(tmp_path: Path) -> MakeTable:
    """A table of one picture many times: make_table(label=["a", "b"], split=…)."""
    picture(0).save(tmp_path / "a.png")

    def make(**columns: Sequence[object]) -> Path:
        path = tmp_path / "table.csv"
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", *columns])
            rows.writerows(["a.png", *row] for row in zip(*columns.values(), strict=True))
        return path

    return make


def open_table(path: Path, task: str = "auto", label: str | None = None, separator: str | None = None) -> Dataset:
    columns = Columns(label=label)
    return open_data(path, DataConfig(task=task, columns=columns, separator=separator, val_rate=0, test_rate=0))


def texts(dataset: Dataset) -> list[str]:
    return [dataset.caption("train", index) for index in range(len(dataset.splits["train"]))]


def test_a_cell_with_several_labels_or_none(make_table) -> None:
    table = make_table(label=["cat|dog", "", "dog", " ", "bird|cat|dog", "bird"])
    dataset = open_table(table)
    assert (dataset.task, dataset.classes) == ("several", ("bird", "cat", "dog"))
    labels = dataset.splits["train"].labels
    assert labels.dtype == np.uint8
    assert labels.tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1], [1, 0, 0]]
    assert texts(dataset)[:2] == ["cat, dog", "no label"]
    with pytest.raises(DataError, match="row 2 has no label"):
        open_table(table, "one")


def test_the_users_separator(make_table) -> None:
    table = make_table(label=["cat and dog", "dog", "bird and cat"])
    assert open_table(table, separator=" and ").classes == ("bird", "cat", "dog")
    assert open_table(table, "one").classes == ("bird and cat", "cat and dog", "dog")
    with pytest.raises(ConfigError, match="separator= stands between several labels"):
        DataConfig(task="number", separator=",")
    with pytest.raises(DataError, match=r"one class per picture, which separator= cannot separate"):
        open_data("digits", DataConfig(separator=","))


def test_a_column_for_each_label(make_table) -> None:
    table = make_table(cat=["1", "0", "true"], dog=["0", "1", "TRUE"], size=[3, 4, 5])
    dataset = open_table(table, label="dog, cat")
    assert (dataset.task, dataset.classes) == ("several", ("dog", "cat"))  # in the order of the flag
    assert dataset.splits["train"].labels.tolist() == [[0, 1], [1, 0], [1, 1]]
    with pytest.raises(DataError, match=r"row 1 must have 0 or 1 in size; got '3'"):
        open_table(table, "several", "cat,size")
    with pytest.raises(DataError, match=r"the label column must be 'bird'"):
        open_table(table, label="cat,bird")
    with pytest.raises(DataError, match=r"one class per picture must be in one column; got cat, dog"):
        open_table(table, "one", "cat,dog")


def test_a_label_that_no_training_picture_has(make_table) -> None:
    with pytest.raises(DataError, match="no training pictures of dog; add some or remove the label"):
        open_table(make_table(cat=[1, 0], dog=[0, 0]), label="cat,dog")


def test_columns_of_numbers(make_table) -> None:
    table = make_table(angle=["12.5", "-3", "1e3"], depth=[1, 2, 3])
    dataset = open_table(table, label="angle,depth")
    assert (dataset.task, dataset.classes) == ("number", ("angle", "depth"))
    labels = dataset.splits["train"].labels
    assert labels.dtype == np.float32
    assert labels.tolist() == [[12.5, 1], [-3, 2], [1000, 3]]
    assert texts(dataset)[0] == "angle 12.5, depth 1"
    assert open_table(table, label="angle").task == "number"  # a named column with fractions
    assert open_table(table, label="depth").task == "one"
    assert open_table(table, "number", "depth").classes == ("depth",)


@pytest.mark.parametrize(
    ("cell", "shown"), [("", "nothing"), ("nan", "'nan'"), ("inf", "'inf'"), ("x", "'x'"), ("1e99", "'1e99'")]
)
def test_numbers_must_be_finite(make_table, cell: str, shown: str) -> None:
    with pytest.raises(DataError, match=rf"row 2 must have a finite number in angle; got {shown}"):
        open_table(make_table(angle=["1.5", cell]), "number", "angle")


def test_a_name_with_a_comma_is_one_column(make_table) -> None:
    assert open_table(make_table(**{"a,b": ["x", "y"]}), label="a,b").classes == ("x", "y")


def test_a_column_of_lists(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    picture(0).save(tmp_path / "a.png")
    rows = [["cat", "dog"], [], None, ["dog"]]
    for kind in (pa.list_(pa.string()), pa.large_list(pa.large_string())):
        pq.write_table(pa.table({"path": ["a.png"] * 4, "label": pa.array(rows, kind)}), tmp_path / "t.parquet")
        dataset = open_table(tmp_path / "t.parquet")
        assert (dataset.task, dataset.assumed) == ("several", ("label holds lists: task several",))
        assert texts(dataset) == ["cat, dog", "no label", "no label", "dog"]
    with pytest.raises(DataError, match=r"label holds lists: several labels per picture; pass task=several"):
        open_table(tmp_path / "t.parquet", "one")


def test_a_list_of_numbers_that_have_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    picture(0).save(tmp_path / "a.png")
    names = datasets.ClassLabel(names=["cat", "dog", "bird"])
    features = datasets.Features({"path": datasets.Value("string"), "label": datasets.Sequence(names)})
    rows = {"path": ["a.png"] * 3, "label": [[0, 2], [], [1]]}
    datasets.Dataset.from_dict(rows, features).to_parquet(tmp_path / "t.parquet")
    assert texts(open_table(tmp_path / "t.parquet")) == ["bird, cat", "no label", "dog"]


def test_names_of_tasks_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"task= must be a task; got 'severl'; did you mean several"):
        DataConfig(task="severl")
    with pytest.raises(DataError, match=r"has one class per picture, which task=several cannot learn"):
        open_data("digits", DataConfig(task="several"))


def test_a_label_in_validation_that_training_lacks(make_table) -> None:
    table = make_table(label=["a|b", "b", "a", "a|c"], split=["train", "train", "train", "val"])
    with pytest.raises(DataError, match="val has classes that train lacks: c"):
        open_table(table, "several")


def test_lists_that_cannot_be_in_so_few_bytes(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    many = pa.array([[None] * 3_000_000, ["a"]], pa.list_(pa.string()))
    pq.write_table(pa.table({"path": ["a.png"] * 2, "label": many}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="label lists more than"):
        open_table(tmp_path / "t.parquet")


def test_fixed_lists_and_a_separator_that_is_not_needed(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    picture(0).save(tmp_path / "a.png")
    pairs = pa.array([["a", "b"], ["b", "c"]], pa.list_(pa.string(), 2))
    pq.write_table(pa.table({"path": ["a.png"] * 2, "label": pairs}), tmp_path / "t.parquet")
    assert texts(open_table(tmp_path / "t.parquet")) == ["a, b", "b, c"]
    with pytest.raises(DataError, match="separator= is for texts in one column"):
        open_table(tmp_path / "t.parquet", separator=",")


def test_a_new_task_is_one_registration(make_table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "tags", TaskKind(name="tags", labels="set", module="tests.tags"))
    dataset = open_table(make_table(label=["a|b", "b", "a"]), "tags")
    assert (dataset.task, dataset.classes, dataset.labelling.noun) == ("tags", ("a", "b"), "label")
    assert dataset.with_validation(0.3).task == "tags"


def test_files_of_those_who_name_no_task_stay_as_they_were() -> None:
    assert {"task", "separator"}.isdisjoint(to_dict(DataConfig()))
    assert to_dict(DataConfig(task="several"))["task"] == "several"

"""What the names of classes give away, and that real names give nothing away."""

import csv
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.data.conftest import picture

from vitrail.data import open_data
from vitrail.data.check.findings import check_data
from vitrail.data.config import DataConfig
from vitrail.data.labels import doubt_labels, find_separator, split_cell
from vitrail.errors import DataError

FLOWERS, COLOURS = ("daisy", "rose", "tulip", "lily", "iris"), ("red", "white")
PAIRS = list(product(FLOWERS, COLOURS))
IMAGENETTE = ["tench", "English springer", "cassette player", "chain saw", "church", "French horn", "garbage truck"]


def combine(separator: str) -> list[str]:
    return [separator.join(pair) for pair in PAIRS]


@pytest.mark.parametrize(
    ("classes", "certain"),
    [
        (combine(","), True),
        (combine(", "), True),
        (combine(";"), True),
        (combine("|"), True),
        ([str(list(pair)) for pair in PAIRS], True),
        (combine(" "), False),  # colours and flowers may be names, too
        ([*combine(" "), "red daisy"], True),  # but not in either order
        (["cat", "dog", "bird", "cat dog", "dog bird"], True),  # nor if each word is a class
        (["cat", "dog", "cat,dog"], True),
    ],
)
def test_several_labels_in_one_cell(classes: list[str], certain: bool) -> None:
    doubt = doubt_labels(sorted(classes), pictures=1000)
    assert doubt is not None
    assert (doubt.what, doubt.certain) == ("several labels in one cell", certain)
    assert "to learn each label by itself, pass `task=several`" in doubt.detail


@pytest.mark.parametrize(
    "classes",
    [
        IMAGENETTE,
        ["tench, Tinca tinca", "goldfish, Carassius auratus", "great white shark, white shark, man-eater"],
        ["red apple", "green apple", "red pear", "green pear"],
        ["cat", "dog", "other, unclear"],
        ["0", "1", "10", "2"],
        ["1.0", "2.0", "3.0"],  # whole numbers that went through a column with gaps
        ["nan", "inf", "1.5"],
    ],
)
def test_names_are_left_in_peace(classes: list[str]) -> None:
    assert doubt_labels(sorted(classes), pictures=1000) is None


@pytest.mark.parametrize(
    ("classes", "pictures", "what", "certain"),
    [
        ([f"{number / 7:.3f}" for number in range(200)], 200, "the labels are measurements", True),
        ([f"{number / 2}" for number in range(11)], 5000, "the labels are measurements", False),  # half stars
        ([f"IMG_{number}" for number in range(200)], 210, "nearly one class per picture", True),
        ([str(number) for number in range(50)], 50, "nearly one class per picture", True),
    ],
)
def test_numbers_and_ids(classes: list[str], pictures: int, what: str, certain: bool) -> None:
    doubt = doubt_labels(classes, pictures)
    assert doubt is not None
    assert (doubt.what, doubt.certain) == (what, certain)


@pytest.fixture
def make_table(tmp_path: Path):
    picture(0).save(tmp_path / "a.png")

    def make(labels: list[str], splits: list[str] | None = None) -> Path:
        path = tmp_path / "table.csv"
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["path", "labels", *(["split"] if splits else [])])
            rows.writerows(["a.png", label, *([splits[row]] if splits else [])] for row, label in enumerate(labels))
        return path

    return make


def test_what_is_certain_is_chosen_and_what_is_doubtful_is_a_warning(make_table) -> None:
    dataset = open_data(make_table(combine(",") * 3))
    (note,) = dataset.assumed
    assert note.startswith("labels holds several labels, separated by commas: task several; pass `task=one`")
    assert (dataset.task, dataset.classes) == ("several", tuple(sorted((*FLOWERS, *COLOURS))))

    table = make_table(combine(" ") * 3)
    dataset = open_data(table)
    assert (dataset.task, len(dataset.classes), dataset.assumed) == ("one", 10, ())
    dataset.refuse_labels()  # only a warning
    report = check_data(dataset, workers=1)
    (finding,) = [item for item in report.findings if item.what == "several labels in one cell"]
    assert (finding.severity, finding.key) == ("warning", "daisy red")
    assert finding.detail.endswith("`task=several`")
    assert open_data(table, DataConfig(task="one")).doubt_labels() is None, "whoever names the task is not asked"


def test_one_class_per_picture_stays_an_error(make_table) -> None:
    table = make_table([f"IMG_{number}" for number in range(40)])
    for config in (DataConfig(), DataConfig(task="one")):
        with pytest.raises(DataError, match="nearly one class per picture"):
            open_data(table, config).refuse_labels()


def test_folders_that_are_named_after_several_labels_are_refused_as_classes(make_folder) -> None:
    root = make_folder("cat", "dog", "cat,dog")
    with pytest.raises(DataError, match=r"several labels in one cell, such as 'cat,dog': .* task=several"):
        open_data(root).refuse_labels()
    assert open_data(root, DataConfig(task="several")).classes == ("cat", "dog")


def test_measurements_in_two_splits_are_numbers(make_table) -> None:
    labels = [f"{number / 7:.3f}" for number in range(20)]
    dataset = open_data(make_table(labels, ["train"] * 15 + ["val"] * 5))
    assert (dataset.task, dataset.classes) == ("number", ("labels",))
    assert dataset.splits["val"].labels[:, 0].tolist() == np.array(labels[15:], dtype=np.float32).tolist()


def test_nan_is_no_label(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"path": ["a.png", "b.png"], "label": [1.0, float("nan")]}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="row 2 has no label"):
        open_data(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("cell", "separator", "labels"),
    [
        ("cat, dog", ",", ("cat", "dog")),
        ("cat|dog|cat", "|", ("cat", "dog")),  # each once
        ("cat (small), dog", ",", ("cat (small)", "dog")),  # brackets are a list only around the whole
        ("['tench, Tinca tinca', 'cat']", ",", ("tench, Tinca tinca", "cat")),
        ('["cat", "it\'s"]', ",", ("cat", "it's")),
        ("{cat; dog}", ";", ("cat", "dog")),
        ("['cat' 'dog']", " ", ("cat", "dog")),  # as NumPy prints them
        ("[]", ",", ()),
        ("cat and dog", " and ", ("cat", "dog")),
        ("french horn", None, ("french horn",)),
        (" , ", ",", ()),
    ],
)
def test_the_labels_of_a_cell(cell: str, separator: str | None, labels: tuple[str, ...]) -> None:
    assert split_cell(cell, separator) == labels


def test_the_separator_is_found() -> None:
    assert find_separator(combine(";")) == ";"
    assert find_separator(["cat|dog", "tench, Tinca tinca|cat", "bird|mouse"]) == "|"  # the commonest
    assert find_separator(["french horn", "church"]) is None

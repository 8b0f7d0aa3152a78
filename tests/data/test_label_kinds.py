"""Labels of each kind: stored, written and read again, in data sets of every source."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.conftest import picture

from vitrail.data import ArraySource, Augment, Dataset, Loader, LoaderConfig, Preprocess, open_data, write_split_file
from vitrail.data.agreement import _digest  # pyright: ignore[reportPrivateUsage]
from vitrail.data.check.findings import check_data
from vitrail.data.config import Columns, DataConfig
from vitrail.data.label_kinds import LABELLINGS, split_names
from vitrail.data.shard_writer import write_shards
from vitrail.data.sheet import augmentation_sheet, contact_sheet
from vitrail.errors import DataError
from vitrail.evaluation.probe import plan_probes

COUNT = 40
SETS = (np.arange(COUNT)[:, None] % [2, 3, 5] == 0).astype(np.uint8)
VALUES = np.stack([np.linspace(-5, 40, COUNT), np.cos(np.arange(COUNT))], axis=1).astype(np.float32)


def make(labels: np.ndarray, classes: tuple[str, ...], task: str) -> Dataset:
    images = torch.randint(0, 256, (COUNT, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    source = ArraySource(images, labels, "data")
    return Dataset(name="data", classes=classes, splits={"train": source}, task=task)


@pytest.fixture
def several() -> Dataset:
    return make(SETS, ("even", "three|3", "five\\5"), "several")


@pytest.fixture
def number() -> Dataset:
    return make(VALUES, ("angle", "depth"), "number")


@pytest.fixture(params=["several", "number"])
def dataset(request: pytest.FixtureRequest) -> Dataset:
    return request.getfixturevalue(request.param)


@given(st.lists(st.text(min_size=1), unique=True, min_size=1, max_size=6), st.data())
def test_sets_survive_a_cell(names: list[str], data: st.DataObject) -> None:
    row = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(names), max_size=len(names))), dtype=np.uint8)
    cell = LABELLINGS["set"].cell(row, names)
    assert split_names(cell) == [name for name, one in zip(names, row, strict=True) if one]
    assert LABELLINGS["set"].parse([cell], names)[0].tolist() == row.tolist()
    assert LABELLINGS["set"].used([cell], names) == set(split_names(cell))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=4))
def test_values_survive_a_cell(numbers: list[float]) -> None:
    names = [str(index) for index in range(len(numbers))]
    row = np.array(numbers, dtype=np.float32)
    assert LABELLINGS["values"].parse([LABELLINGS["values"].cell(row, names)], names)[0].tobytes() == row.tobytes()


def test_a_cell_is_short() -> None:
    assert LABELLINGS["values"].cell(np.array([12.3, -4], dtype=np.float32), ("a", "b")) == "12.3|-4.0"


@pytest.mark.parametrize(
    ("labels", "classes", "task", "message"),
    [
        (SETS, (), "several", "needs at least one label"),
        (SETS.astype(np.int64) * 2, ("a", "b", "c"), "several", r"must be those of task=several; got uint8 \(40, 3\)"),
        (VALUES, ("a", "b", "c"), "number", "must be those of task=number"),
        (np.full((COUNT, 1), np.nan), ("a",), "number", "must be those of task=number"),
        (np.arange(COUNT) % 2, ("a", "b"), "number", "must be those of task=number"),
        (SETS, ("a", "b", "c"), "one", "must be those of task=one"),
        (
            np.zeros((COUNT, 1), dtype=np.uint8),
            ("a",),
            "several",
            "no training pictures of a; add some or remove the label",
        ),
    ],
)
def test_labels_must_fit_the_task(labels: np.ndarray, classes: tuple[str, ...], task: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(labels, classes, task)


def test_pictures_without_labels() -> None:
    dataset = make(np.zeros((COUNT, 0)), (), "none")
    assert {name: len(part) for name, part in dataset.with_validation().splits.items()} == {"train": 36, "val": 4}
    batch = next(iter(Loader(dataset, "train", Preprocess(size=(32, 32)), LoaderConfig(batch_size=8))))
    assert batch.targets.shape == (8, 0)
    check_data(dataset, workers=1)


def test_splits_and_samples_keep_every_label(dataset: Dataset) -> None:
    split = dataset.with_validation(0.2)
    assert sum(map(len, split.splits.values())) == COUNT
    half = split.sample(0.5)
    assert half.task == dataset.task
    assert len(half.unused) + half.num_pictures == COUNT
    keys = dict(dataset.cells(dataset.splits["train"], range(COUNT)))
    assert all(keys[key] == cell for key, cell in half.unused)


def test_the_split_file_is_read_again(dataset: Dataset, tmp_path: Path) -> None:
    split = dataset.with_validation(0.2)
    write_split_file(split, tmp_path / "split.csv")
    rows = [line.split(",", 2) for line in (tmp_path / "split.csv").read_text().splitlines()[1:]]
    first = split.splits["train"]
    cells = {key: cell for key, _, cell in rows}
    parsed = dataset.labelling.parse([cells[key] for key in first.keys()], dataset.classes)  # noqa: SIM118
    assert parsed.tobytes() == first.labels.tobytes()


def test_batches_have_the_labels_or_their_mixtures(dataset: Dataset) -> None:
    spec, config = Preprocess(size=(32, 32)), LoaderConfig(batch_size=8, workers=0)
    labels = dataset.splits["train"].labels
    batch = next(iter(Loader(dataset, "train", spec, config)))
    assert batch.targets.dtype == {"several": torch.uint8, "number": torch.float32}[dataset.task]
    assert batch.targets.tolist() == labels[:8].tolist()
    mixed = next(iter(Loader(dataset, "train", spec, config, Augment(mixup=1.0))))
    assert mixed.targets.dtype == torch.float32
    own = torch.as_tensor(labels[mixed.indices]).float()
    partner = own[torch.arange(8) ^ 1]
    share = ((mixed.targets - partner).abs().sum(1) / (own - partner).abs().sum(1)).nan_to_num(1.0)[:, None]
    torch.testing.assert_close(mixed.targets, own * share + partner * (1 - share), atol=1e-4, rtol=1e-4)


def test_other_labels_are_other_data(several: Dataset) -> None:
    changed = SETS.copy()
    changed[0, 0] ^= 1
    assert _digest(several) != _digest(make(changed, several.classes, "several"))
    states = [
        Loader(each, "train", Preprocess(size=(32, 32))).state_dict()["data"]
        for each in (several, make(changed, several.classes, "several"))
    ]
    assert states[0] != states[1]


@pytest.mark.parametrize("lost", [False, True])
def test_shards_keep_labels(dataset: Dataset, lost: bool, tmp_path: Path) -> None:
    write_shards(dataset, tmp_path / "shards", max_bytes=60_000)
    if lost:  # then the files beside the pictures tell
        (tmp_path / "shards" / "shards.json").unlink()
    again = open_data(tmp_path / "shards", DataConfig(val_rate=0, test_rate=0))
    assert again.task == dataset.task
    assert set(again.classes) == set(dataset.classes)
    order = [again.classes.index(name) for name in dataset.classes]
    rows = sorted(again.splits["train"].labels[:, order].tolist())
    assert rows == sorted(dataset.splits["train"].labels.tolist())


def test_a_newer_list_of_shards_is_refused(several: Dataset, tmp_path: Path) -> None:
    write_shards(several, tmp_path / "shards")
    index = tmp_path / "shards" / "shards.json"
    text = index.read_text()
    for old, new, message in (
        ('"format": 2', '"format": 3', "its format 3 is newer"),
        ('"labels": "set"', '"labels": "boxes"', "labels must be one of class, set"),
        ('"labels": "set"', '"labels": "class"', r"has the label \["),
    ):
        index.write_text(text.replace(old, new, 1))
        with pytest.raises(DataError, match=message):
            open_data(tmp_path / "shards")


def test_what_a_check_finds_in_sets() -> None:
    sets = np.ones((COUNT, 3), dtype=np.uint8)
    sets[:, 1] = np.arange(COUNT) < 3
    sets[5:, 2] = 0
    report = check_data(make(sets, ("all", "rare", "five"), "several"), workers=1)
    found = {(finding.what, finding.key) for finding in report.findings}
    assert found == {
        ("a label that every picture has", "all"),
        ("fewer than 10 training pictures", "rare"),
        ("fewer than 10 training pictures", "five"),
        ("unbalanced labels (over 10:1)", "rare"),
    }
    assert report.counts() == {"all": {"train": 40}, "rare": {"train": 3}, "five": {"train": 5}}
    sets[-1] = 0
    (note,) = [
        item
        for item in check_data(make(sets, ("all", "rare", "five"), "several"), 1).findings
        if item.severity == "note"
    ]
    assert (note.what, note.detail) == ("pictures without a label", "1 of 40")


def test_what_a_check_finds_in_values() -> None:
    values = np.stack([np.arange(COUNT), np.full(COUNT, 7.0)], axis=1).astype(np.float32)
    values[3, 0] = -1000  # the median is 19.5, and its median deviation 10
    report = check_data(make(values, ("angle", "depth"), "number"), workers=1)
    assert [(finding.severity, finding.what, finding.key) for finding in report.findings] == [
        ("error", "a value that never changes", "depth"),
        ("warning", "a value far from all others", "data/3"),
    ]
    assert "angle is -1000, 102 median deviations from the median 19.5" in report.findings[1].detail


def test_the_same_picture_with_other_labels(several: Dataset) -> None:
    source = several.splits["train"]
    assert isinstance(source, ArraySource)
    twice = ArraySource(torch.cat([source.images[:1]] * 2), np.array([[1, 0, 1], [1, 1, 1]], dtype=np.uint8), "twice")
    report = check_data(replace(several, splits={"train": source, "val": twice}), workers=1)
    assert "the same picture with two sets of labels" in {finding.what for finding in report.findings}


def test_sheets_are_drawn(dataset: Dataset) -> None:
    assert contact_sheet(check_data(dataset, workers=1)).width > 400
    assert augmentation_sheet(dataset, Preprocess(size=(32, 32)), Augment(mixup=0.5), num_pictures=2).width > 400


def test_what_needs_classes_refuses_other_labels(dataset: Dataset) -> None:
    message = rf"a probe needs one class per picture; these data have .* \(task={dataset.task}\)"
    with pytest.raises(DataError, match=message):
        plan_probes(dataset.with_validation(), "val", ("knn",), 1)


def test_captions(several: Dataset, number: Dataset) -> None:
    assert [several.caption("train", index) for index in (0, 1, 6)] == [
        "even, three|3, five\\5",
        "no label",
        "even, three|3",
    ]
    assert number.caption("train", 0) == "angle -5, depth 1"


def test_a_link_into_another_class_folder_is_another_label(make_folder) -> None:
    root: Path = make_folder("train/cat", "train/dog", "train/bird", "val/cat", "val/dog", "val/bird")
    assert open_data(root).task == "one"
    (root / "train/dog/linked.jpg").symlink_to(root / "train/cat/000.jpg")
    (root / "train/bird/hard.jpg").hardlink_to(root / "train/cat/000.jpg")
    (root / "train/bird/again.jpg").hardlink_to(root / "train/bird/001.jpg")  # of one class only
    data = open_data(root)
    assert (data.task, data.classes) == ("several", ("bird", "cat", "dog"))
    assert data.assumed[0].startswith("1 picture is linked into several class folders: task several; pass `task=one`")
    train = data.splits["train"]
    assert len(train) == 9  # each picture once
    assert dict(data.cells(train, range(9)))["train/bird/hard.jpg"] == "bird|cat|dog"
    assert len(open_data(root, DataConfig(task="one")).splits["train"]) == 12
    copied = root / "val/dog/copy.jpg"
    copied.write_bytes((root / "val/cat/000.jpg").read_bytes())
    assert len(open_data(root).splits["val"]) == 10, "the same contents are not the same file"


def test_folders_hold_no_numbers(make_folder) -> None:
    with pytest.raises(DataError, match="class folders hold no numbers"):
        open_data(make_folder("cat", "dog"), DataConfig(task="number"))


def test_links_in_class_folders_without_splits(make_folder, tmp_path: Path) -> None:
    root: Path = make_folder("cat", "dog", count=20)
    for index in range(10):
        (root / f"dog/l{index}.jpg").hardlink_to(root / f"cat/{index:03d}.jpg")
    data = open_data(root)
    assert data.num_pictures == 40
    write_split_file(data, tmp_path / "split.csv")
    again = open_data(root, DataConfig(split_file=tmp_path / "split.csv"))
    for name, source in data.splits.items():
        assert again.splits[name].labels.tolist() == source.labels.tolist()


def test_excluded_samples_must_leave_every_label(tmp_path: Path) -> None:
    picture(0).save(tmp_path / "a.png")
    for index in range(4):
        picture(index).save(tmp_path / f"{index}.png")
    (tmp_path / "t.csv").write_text("path,a,b\n0.png,1,0\n1.png,1,1\n2.png,0,1\n3.png,1,0\n")
    listed = tmp_path / "out.csv"
    config = DataConfig(columns=Columns(label="a,b"), val_rate=0, test_rate=0, exclude=(listed,))
    listed.write_text("key\n1.png\n")
    data = open_data(tmp_path / "t.csv", config)
    assert data.splits["train"].labels.tolist() == [[1, 0], [0, 1], [1, 0]]
    listed.write_text("key\n1.png\n2.png\n")
    with pytest.raises(DataError, match="leaves no training pictures of b"):
        open_data(tmp_path / "t.csv", config)

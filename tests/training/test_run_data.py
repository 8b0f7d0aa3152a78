"""Replaced pictures are noticed, copied ones are left in peace."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.conftest import make_folder  # noqa: F401 - a fixture

from vitrail.data import DataConfig, Dataset, open_data, write_split_file
from vitrail.data.shard_writer import write_shards
from vitrail.data.source import ArraySource
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.ranks import Ranks
from vitrail.training import Listener, TrainConfig, train
from vitrail.training import run_data as contents
from vitrail.training.auto_config import resolve
from vitrail.training.changes import apply_changes
from vitrail.training.recipes import ask_for, recipe
from vitrail.training.run_data import contents_key, read_split_rows, reopen_data, report_replaced, write_contents
from vitrail.training.run_folder import RunLock, begin, read_config
from vitrail.training.session import reopen, settle_run
from vitrail.training.setup import open_training_data, prepare_run
from vitrail.weights.read import open_checkpoint


@pytest.fixture
def data(make_folder: Callable[..., Path]) -> Dataset:  # noqa: F811
    return open_data(make_folder("train/cat", "train/dog", "val/cat", "val/dog", count=6))


def paths_of(data: Dataset, split: str) -> list[Path]:
    source = data.split(split)
    return [Path(str(source.picture(index))) for index in range(len(source))]


def alter(path: Path) -> None:
    """Other contents of the same size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, (5, 5))


def copy(data: Dataset) -> None:
    for split in data.splits:
        for path in paths_of(data, split):
            os.utime(path, (7, 7))


def report(data: Dataset, folder: Path) -> list[str]:
    notes: list[str] = []
    report_replaced(data, folder, notes.append)
    return notes


def test_only_the_replaced_are_reported_once(data: Dataset, tmp_path: Path) -> None:
    write_contents(data, tmp_path)
    train, val = data.split("train"), data.split("val")
    before = contents_key(tmp_path, train), contents_key(tmp_path, val)
    copy(data)
    assert report(data, tmp_path) == []
    assert (contents_key(tmp_path, train), contents_key(tmp_path, val)) == before
    for path in paths_of(data, "val"):
        alter(path)
    alter(paths_of(data, "train")[3])
    assert report(data, tmp_path) == [
        "1 of the run's 12 train pictures has been replaced since the run began: train/cat/003.jpg; the run continues",
        "12 of the run's 12 val pictures have been replaced since the run began: val/cat/000.jpg, val/cat/001.jpg, "
        "val/cat/002.jpg, …; do not compare accuracies from before and after",
    ]
    after = contents_key(tmp_path, train), contents_key(tmp_path / "probe", val)
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert report(data, tmp_path) == []


def test_what_has_no_hash_was_copied_if_others_were(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "HASHED", 3)  # every fourth
    write_contents(data, tmp_path)
    key = contents_key(tmp_path, data.split("train"))
    alter(paths_of(data, "train")[1])
    assert report(data, tmp_path)[0].startswith("1 of the run's 12 train pictures has been replaced")
    assert contents_key(tmp_path, data.split("train")) != key
    key = contents_key(tmp_path, data.split("train"))
    copy(data)
    assert report(data, tmp_path) == []
    assert contents_key(tmp_path, data.split("train")) == key


def test_shards_and_pictures_in_memory(data: Dataset, tmp_path: Path) -> None:
    write_shards(data, tmp_path / "s")
    shards, digits = open_data(tmp_path / "s"), open_data("digits")
    for name, each in (("shards", shards), ("digits", digits)):
        write_contents(each, tmp_path / name)
        assert report(each, tmp_path / name) == []
    alter(tmp_path / "s" / "val-000000.tar")
    assert report(shards, tmp_path / "shards") == [
        "1 of the run's 1 val shard has been replaced since the run began: val-000000.tar; "
        "do not compare accuracies from before and after"
    ]
    test = digits.split("test")
    assert isinstance(test, ArraySource)
    test.images[:] += 1
    assert report(digits, tmp_path / "digits")[0].startswith("135 of a sample of 135 test pictures have been replaced")


def test_older_runs_and_damaged_records(data: Dataset, tmp_path: Path) -> None:
    assert report(data, tmp_path) == []
    assert contents_key(tmp_path, data.split("train")) == ""
    for text in ("", "name\n", "name,bytes,modified,blake2b\na,b,c,d\n", "name,bytes,modified,blake2b\na\n"):
        (tmp_path / "pictures.csv").write_text(text)
        with pytest.raises(DataError, match="pictures.csv is damaged"):
            report(data, tmp_path)


COUNT = 40  # pictures of each class


def draw(path: Path, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((12, 12, 3), colour, dtype=np.uint8)).save(path)


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    for index in range(COUNT):
        draw(tmp_path / "data" / "red" / f"{index:02d}.png", (200, index, 0))
        draw(tmp_path / "data" / "blue" / f"{index:02d}.png", (0, index, 200))
    return tmp_path / "data"


@pytest.fixture
def split(tmp_path: Path) -> Path:
    for part, count in (("train", COUNT), ("val", 6)):
        for index in range(count):
            draw(tmp_path / "data" / part / "red" / f"{index:02d}.png", (200, index, 0))
            draw(tmp_path / "data" / part / "blue" / f"{index:02d}.png", (0, index, 200))
    return tmp_path / "data"


def config_for(data: Path, **changes: object) -> TrainConfig:
    config = apply_changes(recipe("digits"), {"epochs": 2, "batch_size": 8, "image_size": 8} | changes)
    return apply_changes(TrainConfig(**{**vars(config), "data": str(data)}), {})


class Stop(Listener):
    """Ends a run in its second epoch; or only listens."""

    def __init__(self, *, stop: bool = True) -> None:
        self.stop = stop
        self.notes: list[str] = []

    def said(self, message: str) -> None:
        self.notes.append(message)

    def finished_epoch(self, row: object, is_best: bool) -> None:
        if self.stop:
            raise KeyboardInterrupt


def begin_and_resume(data: Path, run: Path, change: Callable[[], None]) -> list[str]:
    with pytest.raises(KeyboardInterrupt):
        train(config_for(data), run, Stop())
    change()
    notes = Stop(stop=False)
    train(config_for(data), run, notes)
    return [note for note in notes.notes if "is not calibrated" not in note]  # there are too few pictures for that


@pytest.mark.parametrize("layout", ["flat", "split"])
def test_added_files_are_named_and_left_out(layout: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    data: Path = request.getfixturevalue(layout)
    where = data if layout == "flat" else data / "val"
    train(config_for(data), tmp_path / "whole")
    notes = begin_and_resume(data, tmp_path / "run", lambda: draw(where / "red" / "new.png", (1, 2, 3)))
    assert len(notes) == 1
    assert notes[0].startswith("1 picture is new since the run began, and left out of it: ")
    assert notes[0].endswith("red/new.png")
    whole, run = (open_checkpoint(tmp_path / name).tensors for name in ("whole", "run"))
    assert all(torch.equal(whole[name], run[name]) for name in whole), "exactly the same run"


@pytest.mark.parametrize("layout", ["flat", "split", "digits"])
def test_excluded_pictures_stay_out_of_a_resumed_run(
    layout: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data = "digits" if layout == "digits" else str(request.getfixturevalue(layout))
    own = open_data(data)
    gone = [own.split(name).key(3) for name in ("train", "val")]
    (tmp_path / "labels.csv").write_text("\n".join(["key", *gone]))
    config = config_for(Path(data), exclude=[tmp_path / "labels.csv"], epochs=1)
    first = open_training_data(config)
    train(config, tmp_path / "run")
    rows = read_split_rows(tmp_path / "run" / "split.csv")
    assert [row.key for row in rows if row.split == "unused"] == gone
    (tmp_path / "labels.csv").unlink()
    notes: list[str] = []
    again = reopen_data(config, tmp_path / "run" / "split.csv", notes.append)
    assert {name: source.keys() for name, source in again.splits.items()} == {
        name: source.keys() for name, source in first.splits.items()
    }
    assert sum(map(len, again.splits.values())) == own.num_pictures - 2
    assert not notes


def test_a_new_class_is_left_out_too(flat: Path, tmp_path: Path) -> None:
    notes = begin_and_resume(flat, tmp_path / "run", lambda: draw(flat / "aqua" / "new.png", (1, 2, 3)))
    assert "aqua/new.png" in notes[0]
    assert open_checkpoint(tmp_path / "run").classes == ("blue", "red")


def test_missing_and_replaced_validation_pictures_are_named_and_noticed(split: Path, tmp_path: Path) -> None:
    def change() -> None:
        (split / "val" / "red" / "03.png").unlink()
        draw(split / "val" / "red" / "04.png", (1, 2, 3))

    assert begin_and_resume(split, tmp_path / "run", change) == [
        "1 of the run's 12 val pictures cannot be found: val/red/03.png; the run continues without them",
        "1 of the run's 11 val pictures has been replaced since the run began: val/red/04.png; "
        "do not compare accuracies from before and after",
        "the validation pictures have changed; do not compare accuracies from before and after",
    ]


def test_missing_training_pictures_are_an_error_that_names_them(split: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 of the run's 80 train pictures .*train/red/03.png.*Put them back"):
        begin_and_resume(split, tmp_path / "run", (split / "train" / "red" / "03.png").unlink)


def test_a_class_that_is_gone_is_an_error(flat: Path, tmp_path: Path) -> None:
    draw(flat / "aqua" / "1.png", (1, 2, 3))
    draw(flat / "aqua" / "2.png", (1, 2, 3))
    with pytest.raises(VitrailError, match="class aqua is no longer in the data|aqua"):
        begin_and_resume(flat, tmp_path / "run", lambda: shutil.rmtree(flat / "aqua"))


def test_of_many_training_pictures_a_few_may_be_missing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for index in range(150):
        draw(data / "red" / f"{index}.png", (200, index, 0))
        draw(data / "blue" / f"{index}.png", (0, index, 200))
    config = config_for(data)
    train(apply_changes(config, {"epochs": 1}), tmp_path / "run")
    rows = read_split_rows(tmp_path / "run" / "split.csv")
    gone = next(row.key for row in rows if row.split == "train")
    (data / gone).unlink()
    notes: list[str] = []
    dataset = reopen_data(config, tmp_path / "run" / "split.csv", notes.append)
    assert [dataset.split("train").key(index) for index in range(len(dataset.split("train")))] == [
        row.key for row in rows if row.split == "train"
    ]
    assert gone in notes[0]


def test_a_table_keeps_the_labels_that_the_run_began_with(tmp_path: Path) -> None:
    for index in range(30):
        draw(tmp_path / f"{index}.png", (index, 0, 0))
    lines = [f"{index}.png,{'ab'[index % 2]}" for index in range(30)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,label", *lines]))
    config = config_for(table)
    train(apply_changes(config, {"epochs": 1, "batch_size": 4}), tmp_path / "run")
    table.write_text("\n".join(["path,label", "0.png,b", *lines[1:]]))
    notes: list[str] = []
    dataset = reopen_data(config, tmp_path / "run" / "split.csv", notes.append)
    assert notes == ["1 picture is now of another class; the run keeps the class that it began with: 0.png"]
    original = open_data(table).split("train")
    assert len(dataset.split("train")) == len(original)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "key,split\na,train\n",
        "key,split,class\na,tra,x\n",
        "key,split,class\na,train\n",
        "key,split,class\n,val,a\n",
    ],
)
def test_a_damaged_file_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "split.csv").write_text(text)
    with pytest.raises(DataError, match="damaged"):
        read_split_rows(tmp_path / "split.csv")


def write_table(folder: Path, labels: list[str]) -> Path:
    for index in range(len(labels)):
        draw(folder / f"{index}.png", (index, 0, 0))
    lines = [f"{index}.png,{label}" for index, label in enumerate(labels)]
    (folder / "t.csv").write_text("\n".join(["path,label", *lines]))
    return folder / "t.csv"


@pytest.mark.parametrize(
    ("labels", "new", "task"),
    [
        (["red|large", "red", "", "large", "red|large", "red"] * 5, "large|red", "several"),
        ([f"{index / 7:.3f}" for index in range(30)], "99.5", "number"),
    ],
)
def test_labels_of_every_task_are_kept(labels: list[str], new: str, task: str, tmp_path: Path) -> None:
    table = write_table(tmp_path, labels)
    data = open_data(table)
    write_split_file(data, tmp_path / "split.csv")
    write_table(tmp_path, [labels[0], new, *labels[2:]])
    notes: list[str] = []
    again = reopen_data(apply_changes(config_for(table), {"task": task}), tmp_path / "split.csv", notes.append)
    assert again.task == task
    assert notes == ["1 picture is now labelled otherwise; the run keeps the labels that it began with: 1.png"]
    for name, source in data.splits.items():
        assert again.splits[name].keys() == source.keys()
        assert again.splits[name].labels.tobytes() == source.labels.tobytes()


def test_a_run_that_learned_combinations_as_classes_still_does(tmp_path: Path) -> None:
    table = write_table(tmp_path, ["red|large", "red", "large", "small|red", "small", "large|small"] * 5)
    data = open_data(table, DataConfig(task="one"))
    write_split_file(data, tmp_path / "split.csv")
    assert open_data(table).task == "several"
    again = reopen_data(config_for(table), tmp_path / "split.csv", print)
    assert (again.task, again.classes) == ("one", data.classes)


def test_folds_go_on_in_the_units_that_they_began_with(tmp_path: Path) -> None:
    """Those of the first fold; fitted to all pictures, the mean and the deviation would be others."""
    table = write_table(tmp_path, [f"{index**2 / 7:.3f}" for index in range(40)])
    config = config_for(table, folds=3, mixup=0.0, label_smoothing=0.0)
    setup, _ = settle_run(*resolve(str(table), ask_for(config), Ranks()), Ranks(), Listener())
    with RunLock() as lock:
        begin(setup, tmp_path / "run", lock)
    again = reopen(read_config(tmp_path / "run"), tmp_path / "run", Ranks(), Listener())
    assert again.task.kind == "number"
    assert again.task == setup.task
    assert prepare_run(again.config, again.dataset).task != setup.task
    (tmp_path / "run" / "task.json").write_text('{"kind": "number", "mean": 1}')
    with pytest.raises(ConfigError, match=r"task.json is damaged"):
        reopen(read_config(tmp_path / "run"), tmp_path / "run", Ranks(), Listener())

"""`vitrail.open_data`, `check_data`, `show_data` and `shard_data` do what the command does."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.conftest import make_folder  # noqa: F401

from vitrail.cli.main import main
from vitrail.data.config import Augment, DataConfig
from vitrail.errors import ConfigError, DataError
from vitrail.ranks import Ranks
from vitrail.training.auto_config import resolve
from vitrail.verbs.data import check_data, open_data, shard_data, show_data


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_both_doors_check_the_same(make_folder, inside, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    root = make_folder("cat|x", "dog", count=60)
    (root / "dog" / "empty.jpg").touch()
    assert main(["data", "check", str(root), "--out", "command", "--json", "--split-seed", "3"]) == 2
    capsys.readouterr()
    flags = ["--split-seed", "3", "--max-broken-rate", "0.1"]  # 1 of the few pictures for testing
    assert main(["data", "check", str(root), "--out", "command", "--json", *flags]) == 1
    told = json.loads(capsys.readouterr().out)
    report = check_data(root, split_seed=3, max_broken_rate=0.1)
    written = report.write("python")
    assert contents("command") == contents("python")
    assert [path.name for path in written] == ["check.csv", "contact_sheet.png", "split.csv"]
    assert told["counts"] == report.counts()
    assert told["split"] == report.split_note
    assert report.split_note.startswith("the splits were made here, as train makes them")
    assert told["exit_code"] == report.exit_code == 1
    kinds = [(item["severity"], item["finding"], item["count"]) for item in told["findings"]]
    assert kinds == [(item.severity, item.what, count) for item, count in report.summary()]
    table = report._repr_markdown_()
    assert "| error | cannot be read | 1 | dog/empty.jpg (" in table
    assert "121 pictures, 2 classes" in table
    assert repr(report) == f"<DataCheck of {report.dataset.name}: 121 pictures; 1 error, 0 warnings, 120 notes>"
    assert "thumbnail" not in repr(report.facts[0])
    assert capsys.readouterr() == ("", ""), "Python is quiet"
    splits = [{fact.key for fact in check.facts if fact.split == "val"} for check in (check_data(root), report)]
    assert splits[0] != splits[1], "another seed, another split"


def test_the_splits_that_are_checked_are_those_that_train_makes(make_folder, inside) -> None:  # noqa: F811
    root = make_folder("cat", "dog", count=20)
    _, dataset = resolve(str(root), {"weights": "none", "split_seed": 1}, Ranks())
    checked = check_data(root, split_seed=1)
    assert checked.dataset.splits.keys() == dataset.splits.keys() == {"train", "val", "test"}
    for name, source in dataset.splits.items():
        keys = [source.key(index) for index in range(len(source))]
        assert keys == [fact.key for fact in checked.facts if fact.split == name]
    own = make_folder("train/cat", "train/dog", "test/cat", "test/dog", count=20, root="own")
    assert "train takes one out of the training pictures" in check_data(own).split_note


def test_both_doors_show_the_same(inside) -> None:
    flags = ["--crop", "pad", "--pad", "1", "--mixup", "0.5", "--pictures", "2", "--seed", "4"]
    assert main(["data", "show", "digits", *flags, "--out", "command"]) == 0
    sheet = show_data("digits", crop="pad", pad=1, mixup=0.5, pictures=2, seed=4)
    with Image.open("command/augmented.png") as image:
        assert np.array_equal(np.asarray(image), np.asarray(sheet))
    plain = show_data(open_data("digits"), pictures=2, seed=4)
    assert not np.array_equal(np.asarray(plain), np.asarray(sheet))


def test_both_doors_shard_the_same(make_folder, inside) -> None:  # noqa: F811
    root = make_folder("a", "b", count=20)
    assert main(["data", "shard", str(root), "command", "--seed", "2", "--test-rate", "0"]) == 0
    written = shard_data(root, "python", seed=2, test_rate=0)
    assert contents("command") == contents("python")
    assert written.num_samples == 40
    assert set(open_data("python").splits) == {"train", "val"}


def test_open_data_takes_the_fields_of_the_config(make_folder) -> None:  # noqa: F811
    root = make_folder("a", "b", count=20)
    data = open_data(root, val_rate=0.5, test_rate=0)
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 20, "val": 20}
    assert check_data(data).dataset is data


def test_columns_may_be_named(make_folder) -> None:  # noqa: F811
    root = make_folder("a", "b", count=20)
    rows = [f"{path.relative_to(root)},{path.parent.name}" for path in sorted(root.glob("*/*"))]
    (root / "table.csv").write_text("\n".join(["shot,kind", *rows]))
    data = open_data(root / "table.csv", columns={"picture": "shot", "label": "kind"})
    assert data.classes == ("a", "b")


@pytest.mark.parametrize(
    ("verb", "keywords", "message"),
    [
        (open_data, {"spilt_seed": 1}, "open_data has no setting 'spilt_seed'; did you mean split_seed"),
        (check_data, {"worker": 1}, "check_data has no setting 'worker'; did you mean workers"),
        (check_data, {"mixup": 1}, "check_data has no setting 'mixup'"),
        (check_data, {"workers": -1}, "workers= must be between 0 and"),
        (check_data, {"val_rate": "much"}, "val_rate must be a number"),
        (show_data, {"mixupp": 0.5}, "did you mean mixup"),
        (show_data, {"flip_rate": 3.0}, "flip_rate= must be between 0 and 1"),
        (show_data, {"preset": "tim"}, "did you mean timm"),
        (show_data, {"pictures": 0}, "pictures must be at least 1"),
        (shard_data, {"out": "here", "max_megabytes": 0}, "max_megabytes must be at least 1"),
    ],
)
def test_mistakes(verb, keywords: dict, message: str, inside) -> None:
    with pytest.raises(ConfigError, match=message):
        verb("digits", **keywords)
    assert not Path("here").exists()


def test_mistakes_of_data(inside) -> None:
    with pytest.raises(DataError, match="did you mean digits"):
        check_data("digit")
    with pytest.raises(ConfigError, match="split_seed= cannot change an open data set"):
        check_data(open_data("digits"), split_seed=1)
    Path("file").touch()
    with pytest.raises(ConfigError, match="cannot be written there"):
        check_data("digits").write("file")


def test_a_setting_has_one_meaning() -> None:
    shared = set(vars(DataConfig())) & set(vars(Augment()))
    assert not shared, "`show_data` takes the fields of both"
